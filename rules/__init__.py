"""What Ascend needs of a Triton kernel. One file is one rule is one class; see CONTRIBUTING.md."""
