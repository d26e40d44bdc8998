"""What makers publish of graphics cards: memory, arithmetic in two widths, memory bandwidth, link to the host.

Figures are those of the makers' data sheets and architecture papers: tera floating-point operations a second without
sparsity, accumulated in float32, and giga bytes a second. ``half`` counts for float16, and for bfloat16 too unless
``bf16`` says otherwise: cards before Ampere have no units for it and compute it as float32. ``link`` is one direction
of the slot: 15.8 for PCIe 3.0 or half a PCIe 4.0 slot, 31.5 for PCIe 4.0 ×16, 63 for PCIe 5.0 ×16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PCIE3, PCIE4, PCIE5 = 15.8, 31.5, 63.0


@dataclass(frozen=True)
class Card:
    """The published figures of a card: GiB of memory, TFLOP/s, GB/s."""

    name: str
    memory: float
    single: float
    half: float
    bandwidth: float
    link: float = PCIE4
    bf16: bool = True


CARDS = (
    Card("RTX 5090", 32, 104.8, 209.5, 1792, PCIE5),
    Card("RTX 5080", 16, 56.3, 112.6, 960, PCIE5),
    Card("RTX 5070 Ti", 16, 43.9, 87.9, 896, PCIE5),
    Card("RTX 5070", 12, 30.9, 61.7, 672, PCIE5),
    Card("RTX 5060 Ti", 16, 23.7, 47.4, 448, PCIE4),
    Card("RTX 4090", 24, 82.6, 165.2, 1008),
    Card("RTX 4080 SUPER", 16, 52.2, 104.4, 736),
    Card("RTX 4080", 16, 48.7, 97.5, 717),
    Card("RTX 4070 Ti SUPER", 16, 44.1, 88.2, 672),
    Card("RTX 4070 Ti", 12, 40.1, 80.2, 504),
    Card("RTX 4070 SUPER", 12, 35.5, 71.0, 504),
    Card("RTX 4070", 12, 29.1, 58.3, 504),
    Card("RTX 4060 Ti", 16, 22.1, 44.1, 288, PCIE3),
    Card("RTX 4060", 8, 15.1, 30.2, 272, PCIE3),
    Card("RTX 3090 Ti", 24, 40.0, 80.0, 1008),
    Card("RTX 3090", 24, 35.6, 71.2, 936),
    Card("RTX 3080 Ti", 12, 34.1, 68.2, 912),
    Card("RTX 3080", 10, 29.8, 59.5, 760),
    Card("RTX 3070", 8, 20.3, 40.6, 448),
    Card("RTX 3060", 12, 12.7, 25.5, 360),
    Card("RTX 2080 Ti", 11, 13.4, 53.8, 616, PCIE3, False),
    Card("RTX 2080", 8, 10.1, 40.3, 448, PCIE3, False),
    Card("GTX 1080 Ti", 11, 11.3, 11.3, 484, PCIE3, False),
    Card("B200", 180, 80.0, 2250.0, 8000, PCIE5),
    Card("H200", 141, 67.0, 989.0, 4800, PCIE5),
    Card("H100 PCIe", 80, 51.0, 756.0, 2000, PCIE5),
    Card("H100", 80, 67.0, 989.0, 3350, PCIE5),
    Card("A100-SXM4-80GB", 80, 19.5, 312.0, 2039),
    Card("A100 80GB PCIe", 80, 19.5, 312.0, 1935),
    Card("A100", 40, 19.5, 312.0, 1555),
    Card("V100", 16, 15.7, 125.0, 900, PCIE3, False),
    Card("T4", 16, 8.1, 65.0, 320, PCIE3, False),
    Card("L40S", 48, 91.6, 362.0, 864),
    Card("L40", 48, 90.5, 181.0, 864),
    Card("L4", 24, 30.3, 121.0, 300, PCIE3),
    Card("A10G", 24, 31.5, 70.0, 600),
    Card("A10", 24, 31.2, 125.0, 600),
    Card("RTX 6000 Ada", 48, 91.1, 182.0, 960),
    Card("RTX A6000", 48, 38.7, 154.8, 768),
    Card("RTX A5000", 24, 27.8, 111.1, 768),
    Card("RTX A4000", 16, 19.2, 76.7, 448),
    Card("MI300X", 192, 163.4, 1307.0, 5300, PCIE5),
    Card("MI250X", 64, 23.9, 191.5, 1638),
    Card("RX 7900 XTX", 24, 61.4, 122.8, 960),
    Card("RX 7900 XT", 20, 51.5, 103.0, 800),
    Card("RX 6800 XT", 16, 20.7, 41.5, 512),
    Card("Arc(TM) A770", 16, 17.2, 137.6, 560),
    Card("Arc(TM) B580", 12, 13.7, 117.0, 456, PCIE3),
    Card("Apple GPU", 16, 5.3, 5.3, 150, 150.0),
)

BY_MEMORY = ("RTX 3070", "RTX 3080", "RTX 2080 Ti", "RTX 4070", "RTX 4070 Ti SUPER", "RX 7900 XT", "RTX 3090",
             "RTX 5090", "L40S", "MI250X", "A100 80GB PCIe", "H200", "MI300X")  # fmt: skip
"""The card that an unnamed one of so much memory is taken for: a common one, none of the fastest of its size."""


def card_of(label: str) -> Card | None:
    """The card that a maker's or PyTorch's name means; the longest listed name in it counts.

    >>> card_of("NVIDIA GeForce RTX 4070 Ti SUPER").name, card_of("rtx-3090").name, card_of("some card")
    ('RTX 4070 Ti SUPER', 'RTX 3090', None)
    """
    words = f" {_plain(label)} "
    found = [card for card in CARDS if f" {_plain(card.name)} " in words]
    return max(found, key=lambda card: len(card.name), default=None)


def card_of_size(gib: float) -> Card:
    """The card that an unnamed one is taken for: the smallest common one with at least so much memory, or the largest.

    A card with a little less than its name says (its driver keeps some) counts as whole.
    """
    common = [card_of(name) for name in BY_MEMORY]
    known = [card for card in common if card is not None]
    return next((card for card in known if card.memory * 1.02 >= gib), known[-1])


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[a-z]+\d*[a-z]*|\d+[a-z]*", name.lower()))
