"""What is wrong with data that a schema does not take, in our words: where, what it has to be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .printable import on_one_line
from .units import counted, number_text

_TEXT, _NUMBER, _TRUTH, _LIST, _OBJECT = "a text", "a number", "true or false", "a list", "an object"
_WANTED = {
    "string": _TEXT, "bytes": _TEXT, "int": "a whole number", "float": _NUMBER, "finite": "a finite number",
    "bool": _TRUTH, "list": _LIST, "tuple": _LIST, "dict": _OBJECT, "model": _OBJECT, "dataclass": _OBJECT,
    "mapping": _OBJECT, "none": "null",
}  # fmt: skip
"""What a value has to be, by the first word of pydantic's name of what is wrong with it."""
_QUOTED = {
    "a whole number": re.compile(r"[+-]?[0-9]+"),
    _NUMBER: re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?"),
    _TRUTH: re.compile("true|false"),
}
"""What a text is like that was meant so."""
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
}
_OWN = "Value error, "
_LONGEST = 100


def told_of(error: ValidationError) -> str:
    """The first thing that is wrong, in a sentence that repeats nothing of the data but the names of its fields.

    Those stand on one line, whatever is in them.
    What a schema's own checks say stands as it is.

    >>> from pydantic import TypeAdapter
    >>> def told(kind, value):
    ...     try:
    ...         TypeAdapter(kind).validate_python(value, strict=True)
    ...     except ValidationError as error:
    ...         return told_of(error)
    >>> told(dict[str, int], {"steps": "4"})
    'steps has to be a whole number, and is a text: write it without quotes'
    >>> told(dict[str, int], {"steps": "many"}), told(int, [])
    ('steps has to be a whole number, and is a text', 'it has to be a whole number, and is a list')
    """
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    place = ".".join(on_one_line(str(part)[:_LONGEST]) for part in first["loc"])
    if first["type"] in ("value_error", "assertion_error"):  # which a schema of ours has put into words
        return ": ".join(filter(None, (place, first["msg"].removeprefix(_OWN))))
    return f"{place or 'it'} {_problem(first['type'], first.get('ctx') or {}, first['input'])}"


def field_of(error: ValidationError) -> str:
    """The field of the data in which the first thing is that is wrong; nothing where it is not in one."""
    place = error.errors(include_url=False)[0]["loc"]
    return on_one_line(str(place[0])[:_LONGEST]) if place else ""


def _problem(kind: str, context: Mapping[str, Any], value: object) -> str:
    """What is wrong with a value, and the way out where there is one way."""
    if kind in ("missing", "missing_argument"):
        return "is missing: give it"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return "is not known here: leave it out"
    if kind in ("literal_error", "enum"):
        return f"has to be {str(context['expected']).replace(chr(39), '')}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"has to be {words} {_number(context[name])}"
    if kind.endswith(("too_long", "too_short")):
        return _length(kind, context)
    if kind == "json_invalid":
        why = str(context.get("error", ""))
        if "recursion" in why:
            return "is nested too deeply"
        found = re.search(r"line (\d+) column (\d+)", why)
        return f"is no JSON at line {found[1]}, column {found[2]}" if found else "is no JSON"
    if kind == "bytes_invalid_encoding":
        return "is no base64: send the bytes of a file as base64"
    wanted = _WANTED.get(kind.partition("_")[0])
    return _unlike(wanted, value) if wanted else "cannot be used as it is: see the documentation for what it may be"


def _unlike(wanted: str, value: object) -> str:
    is_quoted = isinstance(value, str) and bool(_QUOTED[wanted].fullmatch(value)) if wanted in _QUOTED else False
    found = "" if wanted == _WANTED["finite"] else _kind_of(value)
    return f"has to be {wanted}{found and f', and is {found}'}{': write it without quotes' if is_quoted else ''}"


def _kind_of(value: object) -> str:
    """What a value is, in a word."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds = {
        (str, bytes): _TEXT, (int,): _NUMBER, (float,): "a number that is not whole", (list, tuple): _LIST,
        (dict,): _OBJECT,
    }  # fmt: skip
    return next((said for of, said in kinds.items() if isinstance(value, of)), "")


def _length(kind: str, context: Mapping[str, Any]) -> str:
    """How many characters or entries there may be."""
    is_long = kind.endswith("long")
    number = context["max_length" if is_long else "min_length"]
    is_text = kind.startswith(("string", "bytes"))
    things = counted(number, "character") if is_text else counted(number, "entry", "entries")
    return f"has to have {'at most' if is_long else 'at least'} {things}"


def _number(value: object) -> str:
    return number_text(value) if isinstance(value, (int, float)) else str(value)
