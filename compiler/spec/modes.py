"""How a component is split (`--split-mode`), and in which shares (`--tensor-split`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..devices.device import Device
from ..errors import SpecError, UsageError
from ..spans import Span
from ..units import NUMBER, number_text
from .items import ByComponent, Given, read_items, spec_text
from .roles import read_key

TOGETHER = ("tensor", "sequence", "batch", "spatial", "batch+sequence", "batch+tensor")
"""The modes in which devices compute each operation together, in the states that are solved for.

In those of two levels groups of devices have some of the pictures each, and compute them together under the inner one.
"""

QUICKEST = "auto"
"""The quickest of all modes that fit: a search says which, and by layers until then."""

MODES = ("layer", "row", *TOGETHER, QUICKEST)
ALIASES = {"tp": "tensor", "sp": "sequence", "ulysses": "sequence", "ring": "sequence", "cfg": "batch", "dp": "batch"}
"""Names of modes elsewhere, and of both levels of a mode that has two, as in `cfg+ulysses`: tensor parallel, sequence
parallel and two ways of it, guidance and data parallel."""

SHORT_TERMS = "bfloat16"
"""The dtype in which devices send terms of float32 sums (`--bf16-partials`)."""

_MOST = 1e12
Shares = tuple[float, ...]


@dataclass(frozen=True)
class SplitMode(ByComponent[str]):
    """How each component is spread over its devices; `layer` where nothing is said."""

    def mode_for(self, attribute: str, role: str) -> str:
        """One of `MODES`: `layer`, `row`, one of those of `TOGETHER`, or `auto` where a search is to say."""
        return self.get(attribute, role) or "layer"


@dataclass(frozen=True)
class TensorSplit(ByComponent[Shares]):
    """How much of each component every device of its list gets, in proportion."""

    def shares_for(self, attribute: str, role: str, devices: Sequence[object]) -> Shares | None:
        """The fractions of a component that its devices get (they sum to 1), or None where nothing is said.

        A component on one device is whole there, whatever the default says.

        Raises:
            SpecError: there are not as many shares as devices.
        """
        shares = self.get(attribute, role)
        if shares is None or len(devices) == 1:
            return None if shares is None else (1.0,)
        if len(shares) != len(devices):
            text = self._value_text(shares)
            names = ", ".join(map(str, devices))
            number = f"{len(shares)} share{'s' * (len(shares) != 1)}"
            problem = f"{attribute} has {number} for {len(devices)} devices ({names})"
            ones = ":".join("1" * len(devices))
            comma = "; a comma begins another component's" if len(shares) == 1 else ""
            alone = f"{attribute or 'diffusion'}={ones} for it alone"
            expected = f"one share for each device: {ones} for all, {alone}{comma}"
            raise SpecError(problem, text, 0, len(text), expected)
        return tuple(share / sum(shares) for share in shares)

    def _value_text(self, value: Shares) -> str:
        return ":".join(map(number_text, value))


def parse_split_mode(given: Given, components: Mapping[str, str] | None = None) -> SplitMode:
    """The split modes of a text such as `row` or `diffusion=row,te=layer`, or of a dict.

    Raises:
        SpecError: points at the wrong place and says what was expected.
    """
    return SplitMode(*read_items(spec_text(given), partial(read_key, components=components or {}), _read_mode))


def parse_tensor_split(given: Given, components: Mapping[str, str] | None = None) -> TensorSplit:
    """The shares of a text such as `3,1`, `3:1` or `diffusion=3:1,te=1:1`, of a list of numbers, or of a dict of such.

    Raises:
        SpecError: points at the wrong place and says what was expected.
    """
    text = spec_text(given, joint=":")
    if text.strip() and "=" not in text:
        return TensorSplit(_read_shares(Span.whole(text)))
    return TensorSplit(*read_items(text, partial(read_key, components=components or {}), _read_shares))


def check_kinds(name: str, mode: str, devices: Sequence[Device]) -> None:
    """Raises UsageError for devices of different kinds, which are not to wait for one another at each operation."""
    kinds = dict.fromkeys(device.kind for device in devices)
    if len(kinds) > 1:
        raise UsageError(
            f"{name} cannot be split by {mode} over {' & '.join(map(str, devices))}: all devices compute each operation"
            f" together, and wait for the slowest kind ({' and '.join(kinds)}): name devices of one kind, or split it "
            "by layer or row (--split-mode layer)"
        )


def inner_mode(mode: str) -> str:
    """The mode within groups, of one of two levels; nothing of another."""
    return mode.partition("+")[2]


def shares_out_weights(mode: str) -> bool:
    """Whether devices hold parts of weights under a mode, or under that within groups, so that they exchange sums."""
    return (inner_mode(mode) or mode) == "tensor"


def shares_out_pictures(mode: str) -> bool:
    """Whether devices, or groups of them, have some of the pictures of a call each under a mode."""
    return mode.partition("+")[0] == "batch"


def _read_mode(span: Span) -> str:
    mode = "+".join(ALIASES.get(one.strip(), one.strip()) for one in span.value.lower().split("+"))
    if mode not in MODES:
        raise span.error(f"{span.value!r} is not a split mode", ", ".join(MODES), (*MODES, *ALIASES))
    return mode


def _read_shares(span: Span) -> Shares:
    shares = tuple(map(_read_share, span.split(",:/")))
    if not sum(shares):
        raise span.error("no device gets anything", "shares, at least one of them more than nothing")
    if len(shares) == 1 and span.text != span.value and "=" not in span.text[: span.start]:
        raise span.error("a share stands alone", "shares joined by ':', such as 3:1,te=1:1")
    return shares


def _read_share(span: Span) -> float:
    if not re.fullmatch(NUMBER, span.value, re.IGNORECASE):
        raise span.error(f"{span.value!r} is not a share", "a number, as in 3:1")
    share = float(span.value)
    if share > _MOST:
        raise span.error(f"{span.value!r} is too large a share", "a number, as in 3:1")
    return share
