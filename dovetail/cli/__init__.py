"""The command line."""

import atexit
import contextlib
import gc
import os
import sys


def run() -> None:
    """The entry of a process that is the command line alone: `main`, whose process ends as soon as all is written.

    What there is at the end is not taken apart by Python: 0.2 s of a command that loaded torch and diffusers (mypy ends
    so too: `mypy.util.hard_exit`). Threads have ended then, and every function of `atexit` was called.
    """
    codes: list[object] = []
    atexit.register(_leave, codes)  # before any other function is registered: it is the last that runs
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
        raise


def main() -> None:
    """Runs the command line, and raises `SystemExit` with its exit code.

    Collections of garbage are off until a pipeline is loaded, for they would pass again and again over what imports
    make and keep, and what there is at the end is not collected.
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


def _leave(codes: list[object]) -> None:
    """Ends the process with the code of the command, unless there is none, or something could not be written."""
    if not codes or not isinstance(codes[0], int):
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # Python tells of it, as it always does
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])
