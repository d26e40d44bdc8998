"""`dovetail devices`: what there is to run on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from ...compiler.devices.cards import CARDS, Card
from ...compiler.devices.device import Device
from ...compiler.devices.memory import Memory
from ...compiler.devices.rig import Rig as Devices
from ...compiler.errors import UsageError
from ...compiler.units import format_bytes
from ..options.shared import Debug, Json, Rig
from ..output.results import print_json, print_table

HEAD_OF_CARDS = ("card", "GiB", "TFLOP/s", "reached", "GB/s", "link", "peer", "bf16")
Cards = Annotated[bool, typer.Option("--cards", help="List the cards that a rig may name (24GiB@RTX 3090).")]


def devices(rig: Rig = "", cards: Cards = False, json: Json = False, debug: Debug = False) -> None:
    """List the devices with their memory, by the names that --backend takes.

    Simulated devices (sim0, sim1, …) are not listed: naming one makes it. --cards lists the cards that predictions
    know: memory, arithmetic in 16 bits by the data sheet, the parts of it that products and attention reach, bandwidth,
    the way from the host and to another card, and whether bfloat16 has units of its own.
    """
    if cards:
        if rig:
            raise UsageError("--cards lists all cards that are known, and takes no rig")
        print_cards(json)
        return
    found = Devices.parse(rig) if rig else Devices.detect()
    if json:
        print_json({"devices": [facts(*one) for one in found.memory.items()]})
        return
    rows = [(d.name, m.label or d.kind, format_bytes(m.free), format_bytes(m.total)) for d, m in found.memory.items()]
    print_table(("device", "what it is", "free", "total"), rows, right=(2, 3))


def print_cards(json: bool) -> None:
    """Prints the table of cards, or all that is known of them as one JSON document."""
    if json:
        print_json({"cards": [asdict(card) for card in CARDS]})
        return
    print_table(HEAD_OF_CARDS, [tuple(_cells(card)) for card in CARDS], right=(1, 2, 4, 5, 6))


def _cells(card: Card) -> Iterator[str]:
    yield f"{card.name} (integrated)" if card.integrated else card.name
    yield from (f"{card.memory:g}", f"{card.half:g}", f"{card.reached.products:.0%}, {card.reached.attention:.0%}")
    yield from (f"{card.bandwidth:g}", f"{card.link:g}", f"{card.peer:g}" if card.peer else "-")
    yield "yes" if card.bf16 else "no"


def facts(device: Device, memory: Memory) -> dict[str, object]:
    """A device as JSON takes it."""
    return {
        "name": device.name,
        "kind": device.kind,
        "label": memory.label,
        "free_bytes": memory.free,
        "total_bytes": memory.total,
        "integrated": memory.integrated,
    }
