"""Every error that dovetail raises on purpose.

A message names what was asked, what is there and the way out. `exit_code` is what the command line answers with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .printable import printable

T = TypeVar("T")


class DovetailError(Exception):
    """Something that dovetail was asked to do could not be done."""

    exit_code = 1

    def __str__(self) -> str:
        """The message, in which names from files move no cursor: an error that nobody catches is written as it is."""
        return printable(super().__str__())


class UsageError(DovetailError):
    """The request itself is wrong: an option, a file name or a combination of them.

    ``field`` is what a request that came as data calls the part of it that is wrong, where that is one and known.
    """

    exit_code = 2

    def __init__(self, *words: object, field: str = "") -> None:
        super().__init__(*words)
        self.field = field


class SpecError(UsageError):
    """A placement spec, budget, split or rig is written wrongly, or names what is not there.

    Args:
        problem: what is wrong, in one sentence.
        text: the whole text that was given.
        start: where in `text` the wrong place begins.
        end: where it ends.
        expected: what may stand there.
        nearest: the known name that resembles the wrong one most.
    """

    def __init__(
        self, problem: str, text: str = "", start: int = 0, end: int = 0, expected: str = "", nearest: str | None = None
    ) -> None:
        self.problem = problem
        self.text = text
        self.start = start
        self.end = end
        self.expected = expected
        self.nearest = nearest
        super().__init__("\n".join(self._lines()))

    @property
    def on_one_line(self) -> str:
        """The problem and what is expected, for a message that says itself where the text stands."""
        return f"{_short(self.problem)}, expected {self.expected}" if self.expected else _short(self.problem)

    def _lines(self) -> list[str]:
        text, start, end = _around(self.text, self.start, self.end)
        lines = [_short(self.problem), f"  {text}", f"  {' ' * start}{'^' * max(1, end - start)}"]
        if self.expected:
            lines.append(f"expected {self.expected}")
        if self.nearest:
            lines.append(f"did you mean {_short(self.nearest)!r}?")
        return lines


_ASIDE, _WIDEST = 40, 60


def _around(text: str, start: int, end: int) -> tuple[str, int, int]:
    """A place in a text with what stands beside it, and where it is in that; the whole of a short text."""
    if len(text) <= 2 * _ASIDE + _WIDEST:
        return text, start, end
    end = min(end, start + _WIDEST)
    first, last = max(0, start - _ASIDE), min(len(text), end + _ASIDE)
    before, after = "…" * (first > 0), "…" * (last < len(text))
    return f"{before}{text[first:last]}{after}", start - first + len(before), end - first + len(before)


def _short(text: str) -> str:
    """A text of one sentence, the middle of which is left out where somebody typed a page."""
    return text if len(text) <= 400 else f"{text[:200]}…{text[-100:]}"


class DoesNotFitError(DovetailError):
    """What was asked needs more memory than a device, a budget or the machine has.

    ``over`` has by how many bytes each device is exceeded, as far as that is known, and ``component`` is the one at
    whose fullest moment that is, where that is known; it is ``own`` where that moment is a call's, and not for others.
    ``problem`` is the message without what it proposes, which is ``ways``. A problem that takes long to find is given
    as a function, which is called when the message is read, once: most refusals are caught, and something else is
    tried.
    """

    exit_code = 3

    def __init__(
        self, problem: str | Callable[[], str], over: Mapping[Any, int] | None = None, ways: str = "", *,
        own: bool = False, component: str = "",
    ) -> None:  # fmt: skip
        self.over: Mapping[Any, int] = over or {}
        self.own, self.component, self.alone = own, component, ""
        self.ways = ways
        self._problem = problem
        super().__init__(problem)

    @property
    def problem(self) -> str:
        """What was asked, what there is, and why it does not fit."""
        if not isinstance(self._problem, str):
            self._problem = self._problem()
        return self._problem

    def as_value(self) -> DoesNotFitError:
        """Itself, to be returned and not raised: without the frames that raised it, which hold what was tried."""
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)

    def __str__(self) -> str:
        """The problem and the ways out."""
        return printable(f"{self.problem}: {self.ways}" if self.ways else self.problem)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def unless_refused(found: T | DoesNotFitError) -> T:
    """What was found; raises a refusal that was returned in its place, which no frame keeps then."""
    if not isinstance(found, DoesNotFitError):
        return found
    try:
        raise found
    finally:
        del found  # whose frames have it


class VerificationError(DovetailError):
    """A program or schedule breaks a rule that every one of them must keep."""

    exit_code = 4


class TraceError(DovetailError):
    """A module could not be turned into a program."""


class ProgramTextError(DovetailError):
    """The text form of a program cannot be read."""


class TextError(ValueError):
    """A piece of text is not what it should be; whoever reads the whole says where that is."""


def in_our_words(error: Exception) -> str:
    """What is wrong with a text, in words of ours, whatever was raised while it was read."""
    if isinstance(error, SpecError):
        return error.on_one_line
    return str(error) if isinstance(error, (DovetailError, TextError)) else "what it says does not go together"


class WeightError(DovetailError):
    """A weight is missing, damaged, or not of the shape and type that the program needs."""


class NoWeightsError(WeightError):
    """Something was named that cannot have weights: a pickle, an address, or a folder without any."""

    exit_code = 2


class PlanFileError(DovetailError):
    """A plan file cannot be read, or does not belong to what it is used with."""


class NoPlanError(PlanFileError):
    """A file was named that is no plan."""

    exit_code = 2


class PassError(DovetailError):
    """A pass was asked for in a wrong way, or what it requires does not hold."""

    exit_code = 2


class FailedPassError(PassError):
    """A pass raised, or did not do what it ensures."""

    exit_code = 1


class SideEffectError(TraceError):
    """A module changes itself at each call, so that a program, or a rehearsal, is not what the call is."""


class CallError(DovetailError):
    """A compiled module was called with something that it was not compiled for."""


class NotHereError(CallError):
    """What was called was compiled for devices or weights that this machine does not have."""


class AdapterError(DovetailError):
    """A LoRA cannot be put on a pipeline that was asked for by its name on a list; no path is told of it."""


class ExecutionError(DovetailError):
    """An operation failed while a compiled module was running."""
