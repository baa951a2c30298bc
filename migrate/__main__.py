"""The entry point: an interrupt while modules are still being imported is an interrupt, too."""
from __future__ import annotations

import signal
import sys


def main() -> None:
    # `timeout`, a job that is cancelled: as Ctrl-C, so that no compiler is left running
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from migrate.cli import main as run
    except KeyboardInterrupt:
        print("migrate: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
