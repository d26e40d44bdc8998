"""How a command ends: its exit code, and one message on stderr instead of a traceback."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..compiler.errors import DoesNotFitError, DovetailError, UsageError
from ..compiler.printable import printable
from ..conventions.quiet_imports import without_notices
from ..progress.refusals import telling
from .commands.devices import devices
from .options.typed import VERBOSE, DevicesAskedError, asks_for_all, shown, value_in, with_switches
from .signals import heeding, told

FAILED = 1
_OF_THE_EXTRA = {
    "diffusers", "transformers", "peft", "accelerate", "tokenizers", "sentencepiece", "google", "ftfy", "PIL",
    "huggingface_hub",
}  # fmt: skip


class Command(TyperCommand):
    """A command whose help shows no value for flags, and which says how several words are one argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads what was typed; raises UsageError for more arguments than the command takes."""
        ctx.allow_extra_args = True
        ctx.meta[VERBOSE] = ctx.meta.get(VERBOSE) or asks_for_all(args)
        more = super().parse_args(ctx, with_switches(args))
        if more and not ctx.resilient_parsing:
            raise UsageError(
                f"{self.name} has no use for {shlex.join(more)}: leave it out, or write words that belong together "
                "in quotes, as in 'a red circle'"
            )
        return more

    def get_params(self, ctx: Any) -> Any:
        """The parameters as help shows them."""
        return shown(super().get_params(ctx), bool(ctx.meta.get(VERBOSE)))


class Commands(TyperGroup):
    """The group of all commands; whatever one of them raises ends here."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters as help shows them."""
        return shown(super().get_params(ctx), all_of_them=False)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that the context names."""
        typed = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        with ending(ctx.meta), heeding(), without_notices():
            try:
                return super().invoke(ctx)
            except DevicesAskedError:
                return devices(rig=value_in(typed, "--rig"), json="--json" in typed)


@contextmanager
def ending(meta: dict[str, Any]) -> Iterator[None]:
    """Turns an error into a message on stderr and an exit code; `meta["debug"]` adds the traceback.

    What does not fit is told at once, and what would fit when that was found.
    """
    early: list[str] = []

    def tell(problem: str) -> None:
        early.append(f"error: {printable(problem)}")
        print(early[-1], file=sys.stderr, flush=True)

    try:
        with telling(None if meta.get("debug") else tell):
            yield
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
    except KeyboardInterrupt as interrupt:
        word, code = told(interrupt)
        print(word, file=sys.stderr)
        raise typer.Exit(code) from None
    except DovetailError as error:
        raise _told(str(error), error.exit_code, meta, early) from error
    except ModuleNotFoundError as error:
        raise _told(f"{error.name} is not installed: {_way_out(error.name or '')}", FAILED, meta) from error
    except Exception as error:
        if type(error).__module__.startswith(("typer", "click")):
            raise
        out_of_memory = type(error).__name__ == "OutOfMemoryError"
        text = str(error).strip() or "no message"
        name = "out of memory" if out_of_memory else type(error).__name__
        hint = "" if meta.get("debug") else "\n(--debug shows where)"
        raise _told(f"{name}: {text}{hint}", DoesNotFitError.exit_code if out_of_memory else FAILED, meta) from error


def _way_out(module: str) -> str:
    """How to get a module that is missing: with dovetail's own extra if it is one that this extra installs."""
    if module.partition(".")[0] in _OF_THE_EXTRA:
        return "pip install 'dovetail-diffusion[diffusers]'"
    return f"pip install {module.partition('.')[0] or 'it'}, which a library asks for here"


def _told(message: str, code: int, meta: dict[str, Any], early: Sequence[str] = ()) -> typer.Exit:
    """Prints a message, without what was told of it ``early``."""
    said = f"error: {printable(message)}"
    known = early[-1] if early and said.startswith(early[-1]) else ""
    if meta.get("debug"):
        traceback.print_exc()
    else:
        print(said[len(known) :].lstrip("\n:; "), file=sys.stderr)
    return typer.Exit(code)


def _close_stdout() -> None:
    """Whoever read our output has enough of it: what is left to flush goes nowhere, and that is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
