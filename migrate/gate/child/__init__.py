"""What runs inside a worker process: needs torch and triton-ascend, and nothing else of this project."""
