"""The command line."""

import atexit
import contextlib
import gc
import os
import sys

_SPINS = "1000"
"""So often a thread of OpenMP looks whether others are done before it sleeps.

The usual 300000 take a millisecond, in which a core that other programs want does nothing: where one of two cores is
busy, small models take fifty times as long. With so few they take a sixth more where none is.
"""


def run() -> None:
    """What the script `dovetail` calls, whose process is the command alone: `main`, and an end at once.

    What there is at the end is not taken apart by Python: 0.2 s of a command that loaded torch and diffusers (mypy ends
    so too: `mypy.util.hard_exit`). Threads have ended then, and every function of `atexit` was called; where one was
    registered before, such as a profiler's, the process ends as Python ends it.
    """
    codes: list[object] = []
    if getattr(atexit, "_ncallbacks", lambda: 1)() == 0:
        atexit.register(_leave, codes)  # registered first, it is called last
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
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    atexit.register(_silence_leak_reports)
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
        os._exit(codes[0] & 0xFF)


def _silence_leak_reports() -> None:
    """Closes stderr for what is written after Python's end, where triton is loaded.

    Its newer releases then list each of their objects that was not taken apart as leaked.
    """
    if "triton._C.libtriton" not in sys.modules or sys.stderr is None:
        return
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
