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


def collect_from_now() -> None:
    """Switches collections of garbage on, which pass over what is made from now on alone, and seldom.

    Programs are made of many objects that stay; what is worth collecting is tensors, which no circle keeps.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
