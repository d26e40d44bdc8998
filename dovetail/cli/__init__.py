"""The command line."""

import gc
import sys


def main() -> None:
    """Runs the command line, and leaves the process with its exit code.

    Collections of garbage are off until a pipeline is loaded, for they would pass again and again over what imports
    make and keep, and what there is at the end is not taken apart: a third of the time of a short command.
    """
    gc.disable()
    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # before the command began, while modules were imported
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()
