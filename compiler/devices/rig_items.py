"""The items of a rig: those with a device's name, and cards and sizes without one, such as `2x RTX 3090, 64GiB`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
from typing import TypeAlias

from ..spans import Span
from ..units import NUMBER
from .cards import CARDS, WAYS, Card, card_of, joined_name, odd_word, way_of

_COUNT = re.compile(r"([0-9]{1,9})(?:\s*[x×*]\s*(?=\S)|\s+(?=[a-z]{2}))", re.IGNORECASE)
_SIZE = re.compile(rf"{NUMBER}\s*(?:[kmgt]i?b?|b)(?:/{NUMBER}\s*(?:[kmgt]i?b?|b))?", re.IGNORECASE)
_CARD_SIZE = re.compile(rf"(.*\S)[\s(@:]+({_SIZE.pattern})\)?", re.IGNORECASE)
_SIZE_CARD = re.compile(rf"({_SIZE.pattern})\s*@\s*(\S.*)", re.IGNORECASE)
_KINDS = {"Arc": "xpu", "Iris": "xpu", "Apple": "mps"}
_MOST = 64
_MANY = "a few devices: 4x24GiB is four cards of 24 GiB"

NameOf: TypeAlias = Callable[[str], str]
"""The canonical name of a device in any spelling; empty for what is none."""


@dataclass(frozen=True)
class Item:
    """An item as ``device=size@card``, and the place where it, or what stands for it, was typed."""

    text: Span
    place: Span


def rig_items(span: Span, name_of: NameOf) -> list[Item]:
    """The items of a rig's text, with devices for the cards and sizes that stand without one.

    A card, or a size, is the next device of its kind; a size behind a card or a count is the host's memory:
    `4x24GiB,64GiB`, `RTX 4090 + RTX 3060`, `24GB,24GB`. `cuda0:24GiB` is `cuda0=24GiB`.

    Raises SpecError for more devices than a rig has.
    """
    found: list[Item] = []
    taken: set[str] = set()
    has_cards = False
    for part in _parts(span, name_of):
        many, what = _counted(part)
        text = _named(part, name_of)
        if not text and has_cards and many == 1 and _SIZE.fullmatch(what.value):
            text = f"cpu={what.value}"
        sized = None if text else _card_or_size(what)
        if sized is None:
            _refuse_what_is_nearly_one(what, many, bool(text))
            found.append(Item(Span.whole(text) if text and text != part.value else part, part))
            taken.add(name_of(text.partition("=")[0]))
            continue
        has_cards = has_cards or what != part or not _SIZE.fullmatch(what.value)  # 1x24GiB is a card
        for _ in range(many):
            name = _next(sized[0], taken)
            taken.add(name)
            found.append(Item(Span.whole(f"{name}={sized[1]}"), part))
    return found


def _parts(span: Span, name_of: NameOf) -> list[Span]:
    """The pieces between commas, and between plus signs where a piece names no device."""
    whole = [part for part in span.split(",") if part.value]
    return [one for part in whole for one in ([part] if _named(part, name_of) else part.split("+"))]


def _named(span: Span, name_of: NameOf) -> str:
    """A piece that names its device, behind a colon too: `cuda0:24GiB` as `cuda0=24GiB`; empty for others."""
    name, _, size = span.value.rpartition(":")
    if "=" not in span.value and name_of(name) and _SIZE.match(size.strip()):
        return f"{name.strip()}={size.strip()}"
    return span.value if "=" in span.value or name_of(span.value) else ""


def _counted(span: Span) -> tuple[int, Span]:
    """How many of a thing, and the thing: `4x RTX 3090`; raises SpecError for none, and for more than a rig has."""
    match = _COUNT.match(span.value)
    if match is None:
        return 1, span
    if not 0 < int(match[1]) <= _MOST:
        raise span.error(f"a rig cannot have {int(match[1])} devices of one kind", _MANY)
    return int(match[1]), Span(span.text, span.start + match.end(), span.end).strip()


def _card_or_size(span: Span) -> tuple[str, str] | None:
    """The kind of a device and its size, of a size or of a card with or without one; None where it is neither."""
    if _SIZE.fullmatch(span.value):
        return "cuda", span.value
    sized, behind = _CARD_SIZE.fullmatch(span.value), _SIZE_CARD.fullmatch(span.value)
    if joined_name(span.value) in {joined_name(one.name) for one in CARDS}:
        sized = behind = None  # a size in the name of a card, as in RTX 2060 12 GB, is none of its own
    name = behind[2] if behind else sized[1] if sized else span.value
    card = card_of(name)
    if card is None:
        return None
    refuse_odd_words(span, name)
    size = behind[1] if behind else sized[2] if sized else f"{card.memory:g}GiB"
    return _kind(card), f"{size}@{card.name} {way_of(name)}".strip()


def refuse_odd_words(span: Span, name: str) -> None:
    """Raises SpecError where a card's name in a text has a word beside it that means nothing."""
    odd = odd_word(name)
    at = span.value.lower().find(odd)
    if odd and at >= 0:
        word = Span(span.text, span.start + at, span.start + at + len(odd))
        problem = f"{word.value!r} means nothing beside the name of a card"
        raise word.error(problem, "the card alone, or its way to others: NVLink, P2P, no P2P", WAYS)


def _refuse_what_is_nearly_one(span: Span, many: int, has_name: bool) -> None:
    """Raises SpecError for a size without its unit behind a count, and for what is like the name of a card alone."""
    if many > 1 and re.fullmatch(NUMBER, span.value):
        raise span.error(f"{many} devices of {span.value} what?", f"a size with its unit: {many}x{span.value}GiB")
    names = {joined_name(one.name): one.name.lower() for one in CARDS}
    sized = _CARD_SIZE.fullmatch(span.value)
    name = Span(span.text, span.start, span.start + len(sized[1])) if sized else span
    near = get_close_matches(joined_name(name.value), list(names), 1, 0.8)
    if not has_name and near and re.search(" |[0-9]{3}", name.value):
        expected = "a card that dovetail devices --cards lists"
        raise name.error(f"no card {name.value!r} is known", expected, [names[near[0]]])


def _kind(card: Card) -> str:
    return next((kind for word, kind in _KINDS.items() if card.name.startswith(word)), "cuda")


def _next(kind: str, taken: Collection[str]) -> str:
    """The first device of a kind that is not taken; of those without a number there is one."""
    return kind if kind == "mps" else next(name for name in (f"{kind}{n}" for n in count()) if name not in taken)
