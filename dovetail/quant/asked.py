"""What a person asks to be packed: a type for each component, by its name or role."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from ..compiler.checkpoints.quantized_types import FLOAT8, QUANT_TYPES
from ..compiler.errors import UsageError
from ..compiler.spec.roles import role_of, role_of_component
from ..convert.types import PLAIN

Quant = str | Mapping[str, str]
"""Types by component: ``"transformer=q8_0,te=f8"``, or a dict."""

PACKED = tuple(quant for quant in QUANT_TYPES if quant not in PLAIN)
"""The types that weights can be packed in, beside 8-bit floats."""

_FLOAT8 = frozenset({"f8", "fp8", "f8_e4m3", "float8_e4m3fn"})


def read_quant(given: Quant | None) -> dict[str, str]:
    """The type for each name that was given, components or roles, in the order in which they were named.

    >>> read_quant("transformer=q8_0,te=f8")
    {'transformer': 'Q8_0', 'te': 'F8_E4M3'}

    Raises UsageError for what is no NAME=TYPE, for a name that is given twice, and for an unknown type.
    """
    if given is None:
        return {}
    pairs = list(given.items()) if isinstance(given, Mapping) else [_pair(text) for text in given.split(",") if text]
    found: dict[str, str] = {}
    for name, quant in pairs:
        if name in found:
            raise UsageError(f"quant names {name} twice: give it one type")
        found[name] = parse_type(quant)
    return found


def parse_type(text: object) -> str:
    """A type that weights are packed in, by its name in any case; raises UsageError that lists them.

    >>> parse_type("q4_k"), parse_type("f8")
    ('Q4_K', 'F8_E4M3')
    """
    named = str(text).strip()
    if named.lower() in _FLOAT8:
        return FLOAT8
    if named.upper() in PACKED:
        return named.upper()
    offered = ["f8", *(quant.lower() for quant in PACKED)]
    near = difflib.get_close_matches(named.lower(), offered, 1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    raise UsageError(f"quant: no weights are packed in {text!r}: {hint} {', '.join(offered)}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, quant = text.partition("=")
    if not equals or not name.strip() or not quant.strip():
        raise UsageError(f"quant: {text!r} names no type of a component: write NAME=TYPE, such as transformer=q8_0")
    return name.strip(), quant


def meant_by(name: str, own: Sequence[str]) -> list[str]:
    """The components of which a name or a role speaks."""
    return [name] if name in own else [one for one in own if role_of_component(one) == role_of(name)]


def by_component(asked: Mapping[str, str], own: Sequence[str]) -> dict[str, str]:
    """The type of each component of those that a pipeline has; a role means all that have it, a name comes before it.

    Raises UsageError for a name that means none of them, and for one whose type none of them would have.
    """
    found: dict[str, str] = {}
    by: dict[str, str] = {}
    for name, quant in sorted(asked.items(), key=lambda item: item[0] not in own):
        meant = meant_by(name, own)
        if not meant:
            near = difflib.get_close_matches(name, [*own, *map(role_of_component, own)], n=1)
            hint = f", did you mean {near[0]!r}?" if near else ":"
            raise UsageError(
                f"quant: this pipeline loads no {name!r}{hint} name one of its components: {', '.join(own) or 'none'}"
            )
        free = [one for one in meant if one not in found]
        rivals = [one for one in meant if one not in free and (not free or by[one] not in own)]
        for one in sorted(rivals, key=lambda one: by[one] in own):
            if found[one] != quant:
                both = f"{by[one]} and {name} both mean {one}, and say {found[one]} and {quant}"
                raise UsageError(f"quant: {both}: give it one type")
        found |= dict.fromkeys(free, quant)
        by |= dict.fromkeys(free, name)
    return found
