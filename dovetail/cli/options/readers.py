"""Numbers and words of a fixed set, read here and not by typer, so that what is wrong is said as of other options."""

from __future__ import annotations

import copy
import difflib
import inspect
import math
import re
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ...compiler.errors import UsageError

_WHOLE = re.compile("[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?|[+-]?(?:inf|nan)", re.IGNORECASE
)


def with_readers(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter of a command, read by a function of this file where it is a number or a word of a fixed set."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, given = get_args(parameter.annotation)[:2]
    reader = _reader_of(_without_none(kind), _spelling(parameter.name, given), given)
    if reader is None:
        return parameter
    option = copy.copy(given)
    option.parser = reader
    option.metavar = given.metavar or _metavar(_without_none(kind), given)
    option.min = option.max = None
    return parameter.replace(annotation=Annotated[kind, option])


def none_of(option: str, typed: str, words: Sequence[str], what: str = "") -> UsageError:
    """The error for a value that is none of the words that an option takes, with the one that resembles it most."""
    near = difflib.get_close_matches(typed.lower(), words, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"{option} {_short(typed)} is {what or 'unknown'}: give {', '.join(words)}{hint}")


def _reader_of(kind: Any, option: str, given: Any) -> Callable[[str], Any] | None:
    if get_origin(kind) is Literal:
        return _word(option, get_args(kind))
    return {int: _whole, float: _real}[kind](option, given.min, given.max) if kind in (int, float) else None


def _word(option: str, words: Sequence[str]) -> Callable[[str], str]:
    def word(typed: str) -> str:
        if typed not in words:
            raise none_of(option, typed, words)
        return typed

    return word


def _whole(option: str, least: float | None, most: float | None) -> Callable[[str], int]:
    def whole(typed: str) -> int:
        if not _WHOLE.fullmatch(str(typed).strip()):
            raise UsageError(f"{option} {_short(typed)} is no whole number: give one{_range(least, most)}")
        _check_range(option, typed, int(typed), "a whole number", least, most)
        return int(typed)

    return whole


def _real(option: str, least: float | None, most: float | None) -> Callable[[str], float]:
    def number(typed: str) -> float:
        if not _NUMBER.fullmatch(str(typed).strip()):
            raise UsageError(f"{option} {_short(typed)} is no number: give one{_range(least, most)}, such as 0.5")
        if not math.isfinite(float(typed)):
            raise UsageError(f"{option} takes a number, and {typed} is none to compute with: write 7.5, say")
        _check_range(option, typed, float(typed), "a number", least, most)
        return float(typed)

    return number


def _check_range(option: str, typed: str, value: float, noun: str, least: float | None, most: float | None) -> None:
    if (least is not None and value < least) or (most is not None and value > most):
        raise UsageError(f"{option} {_short(typed)} is out of range: give {noun}{_range(least, most)}")


def _range(least: float | None, most: float | None) -> str:
    """What numbers may be, behind a noun; empty where they may be any."""
    if least is None:
        return ""
    return f" of {least} or more" if most is None else f" from {least} to {most}"


def _metavar(kind: Any, given: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return f"{given.min} to {given.max}" if given.max is not None else "NUMBER"


def _spelling(name: str, given: Any) -> str:
    """What is typed before the value: the first long name of an option, or the name of an argument."""
    words = (given.default, *(given.param_decls or ()))  # in an annotation typer takes the first name for a default
    longs = [word for word in words if isinstance(word, str) and word.startswith("--")]
    if longs or type(given).__name__ == "ArgumentInfo":
        return longs[0] if longs else name
    return f"--{name.replace('_', '-')}"


def _without_none(kind: Any) -> Any:
    """The type that a value has where there is one."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def _short(typed: object) -> str:
    return f"{typed!s:.40}" or "''"
