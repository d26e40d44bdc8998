"""The command line."""

import atexit
import gc
import os
import sys


def main() -> None:
    """Runs the command line, and leaves the process with its exit code.

    Collections of garbage are off until a pipeline is loaded, for they would pass again and again over what imports
    make and keep, and what there is at the end is not taken apart: a third of the time of a short command.
    """
    gc.disable()
    atexit.register(_silence_leak_reports)  # before any other function is registered: it is the last that runs
    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # before the command began, while modules were imported
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()


def _silence_leak_reports() -> None:
    """Closes stderr for what is written after Python's end, where triton is loaded.

    Its newer releases then list each of their objects that was not taken apart as leaked.
    """
    if "triton._C.libtriton" not in sys.modules or sys.stderr is None:
        return
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
