"""What makers publish of graphics cards, and which part of it is reached.

Figures are those of the makers' data sheets and architecture papers: GiB of memory, tera floating-point operations a
second without sparsity, accumulated in float32, and giga bytes a second. ``half`` counts for float16, and for bfloat16
too unless ``bf16`` says otherwise: cards before Ampere have no units for it and compute it as float32. ``link`` is one
direction of the slot: 15.8 for PCIe 3.0 or half a PCIe 4.0 slot, 31.5 for PCIe 4.0 ×16, 63 for PCIe 5.0 ×16. ``peer``
is one direction of the way to another card of the model: NVLink or Infinity Fabric where the card has it, the slot
where the driver lets cards copy to each other through it, and 0 where copies go through the host's memory. A rig may
say otherwise behind the name of a card (`way_of`).

Makers publish what nothing exceeds. What programs reach is a part of that (`Reached`), which was fitted on at most two
published measurements a card; `python -m benchmarks.published` prints these and what is predicted of all others.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

PCIE3, PCIE4, PCIE5 = 15.8, 31.5, 63.0


@dataclass(frozen=True)
class Reached:
    """The part of a card's arithmetic that programs reach: in products and convolutions, and in attention.

    ``source`` says which rows of `benchmarks.published` it was fitted on, or that it is a family's.
    """

    products: float
    attention: float
    source: str


GAMERS = Reached(0.90, 0.80, "its family (GeForce, Arc), which clocks above the data sheet: 85-100 % of it")
OFFICE = Reached(0.50, 0.37, "its family, by RTX 6000 Ada")
CENTRE = Reached(0.62, 0.46, "its family, which power holds at 55-65 % of the data sheet: by L40S, A100 and H100")
HOPPER = Reached(0.63, 0.32, "two rows of an H100 (xDiT)")
AMPERE = Reached(0.71, 0.53, "a row of an A100 SXM 80 GB (ParaAttention)")
RADEON = Reached(0.56, 0.34, "a row of an RX 6900 XT (ComfyUI on ROCm)")
OLDER = Reached(0.60, 0.30, "its family, before Ampere: no fused attention of the newer kind")
SINGLE = Reached(0.85, 0.50, "float32 on the ordinary units")
"""What is reached in float32, by every card."""


@dataclass(frozen=True)
class Card:
    """The published figures of a card: GiB of memory, TFLOP/s, GB/s; and the part of its ``half`` that is reached.

    An integrated card has no memory of its own: it shares the host's.
    """

    name: str
    memory: float
    single: float
    half: float
    bandwidth: float
    link: float = PCIE4
    bf16: bool = True
    reached: Reached = GAMERS
    peer: float = 0.0
    integrated: bool = False

    @property
    def cached(self) -> bool:
        """Whether its cache (48 MB and more) holds much of what one element-wise operation hands to the next."""
        return self.name in CACHED


def _old(name: str, memory: float, single: float, half: float, bandwidth: float, peer: float = 0.0) -> Card:
    """A card before Ampere: without bfloat16, in a slot of PCIe 3.0."""
    return Card(name, memory, single, half, bandwidth, PCIE3, False, OLDER, peer)


def _office(
    name: str, memory: float, single: float, half: float, bandwidth: float, link: float = PCIE4,
    reached: Reached = OFFICE,
) -> Card:  # fmt: skip
    """A workstation card, which may copy to another one through the slot."""
    return Card(name, memory, single, half, bandwidth, link, reached=reached, peer=link)


def _centre(
    name: str, memory: float, single: float, half: float, bandwidth: float, link: float = PCIE4,
    reached: Reached = CENTRE, peer: float | None = None,
) -> Card:  # fmt: skip
    """A data-centre card; through the slot to another one where it has no faster way."""
    return Card(name, memory, single, half, bandwidth, link, True, reached, link if peer is None else peer)


def _within(name: str, memory: float, single: float, half: float, bandwidth: float, bf16: bool = True) -> Card:
    """An integrated card, whose way to the host's memory is that memory's."""
    return Card(name, memory, single, half, bandwidth, bandwidth, bf16, OLDER, 0.0, True)


CARDS = (
    Card("RTX 5090", 32, 104.8, 209.5, 1792, PCIE5),
    Card("RTX 5080", 16, 56.3, 112.6, 960, PCIE5),
    Card("RTX 5070 Ti", 16, 43.9, 87.9, 896, PCIE5),
    Card("RTX 5070", 12, 30.9, 61.7, 672, PCIE5),
    Card("RTX 5060 Ti", 16, 23.7, 47.4, 448, PCIE4),
    Card("RTX 5060", 8, 19.2, 38.4, 448, PCIE4),
    Card("RTX 4090", 24, 82.6, 165.2, 1008, reached=Reached(1.0, 0.85, "a row (github.com/aredden)")),
    Card("RTX 4090 D", 24, 73.5, 147.1, 1008, reached=Reached(1.0, 0.85, "that of an RTX 4090")),
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
    Card("RTX 3070 Ti", 8, 21.7, 43.5, 608),
    Card("RTX 3070", 8, 20.3, 40.6, 448),
    Card("RTX 3060 Ti", 8, 16.2, 32.4, 448),
    Card("RTX 3060", 12, 12.7, 25.5, 360),
    Card("RTX 3050", 8, 9.1, 18.2, 224, PCIE3),
    _old("RTX 2080 Ti", 11, 13.4, 53.8, 616),
    _old("RTX 2080 SUPER", 8, 11.2, 44.6, 496),
    _old("RTX 2080", 8, 10.1, 40.3, 448),
    _old("RTX 2070 SUPER", 8, 9.1, 36.3, 448),
    _old("RTX 2070", 8, 7.5, 29.9, 448),
    _old("RTX 2060 SUPER", 8, 7.2, 28.7, 448),
    _old("RTX 2060 12 GB", 12, 7.2, 28.7, 336),
    _old("RTX 2060", 6, 6.5, 25.8, 336),
    _old("GTX 1660 Ti", 6, 5.4, 10.9, 288),
    _old("GTX 1660 SUPER", 6, 5.0, 10.0, 336),
    _old("GTX 1660", 6, 5.0, 10.0, 192),
    _old("GTX 1080 Ti", 11, 11.3, 11.3, 484),
    _old("GTX 1080", 8, 8.9, 8.9, 320),
    _old("GTX 1070 Ti", 8, 8.2, 8.2, 256),
    _old("GTX 1070", 8, 6.5, 6.5, 256),
    _old("GTX 1060", 6, 4.4, 4.4, 192),
    _old("TITAN RTX", 24, 16.3, 65.2, 672),
    _old("TITAN V", 12, 14.9, 110.0, 653),
    _centre("B200", 180, 80.0, 2250.0, 8000, PCIE5, peer=900, reached=Reached(0.40, 0.20, "a row (TheStage)")),
    _centre("H200", 141, 67.0, 989.0, 4800, PCIE5, peer=450, reached=HOPPER),
    _centre("GH200", 96, 67.0, 989.0, 4000, 450.0, reached=HOPPER),
    _centre("H100 PCIe", 80, 51.0, 756.0, 2000, PCIE5, reached=HOPPER),
    _centre("H100 NVL", 94, 60.0, 835.0, 3900, PCIE5, peer=300, reached=HOPPER),
    _centre("H100", 80, 67.0, 989.0, 3350, PCIE5, peer=450, reached=HOPPER),
    _centre("H800", 80, 67.0, 989.0, 3350, PCIE5, peer=200, reached=HOPPER),
    _centre("H20", 96, 44.0, 148.0, 4000, PCIE5, peer=450, reached=Reached(0.85, 0.60, "a row (xDiT)")),
    _centre("A100-SXM4-80GB", 80, 19.5, 312.0, 2039, peer=300, reached=AMPERE),
    _centre("A100 80GB PCIe", 80, 19.5, 312.0, 1935, reached=AMPERE),
    _centre("A100", 40, 19.5, 312.0, 1555, peer=300, reached=AMPERE),
    _centre("A800", 80, 19.5, 312.0, 2039, peer=200, reached=AMPERE),
    _centre("A40", 48, 37.4, 149.7, 696, reached=AMPERE),
    _centre("A30", 24, 10.3, 165.0, 933, reached=AMPERE),
    _old("V100", 16, 15.7, 125.0, 900, 150.0),
    _old("V100 32GB", 32, 15.7, 125.0, 900, 150.0),
    _old("P100", 16, 10.6, 10.6, 732, PCIE3),
    _old("P40", 24, 11.8, 11.8, 346, PCIE3),
    _old("P4", 8, 5.5, 5.5, 192, PCIE3),
    _old("M40", 24, 6.8, 6.8, 288, PCIE3),
    _old("T4", 16, 8.1, 65.0, 320, PCIE3),
    _centre("L40S", 48, 91.6, 362.0, 864, reached=Reached(0.62, 0.46, "a row (benchmarks of diffusers)")),
    _centre("L40", 48, 90.5, 181.0, 864),
    _centre("L20", 48, 59.8, 119.5, 864, reached=Reached(0.77, 0.87, "two rows (ParaAttention)")),
    _centre("L4", 24, 30.3, 121.0, 300, PCIE3),
    _centre("A10G", 24, 31.5, 70.0, 600),
    _centre("A10", 24, 31.2, 125.0, 600),
    _office("RTX PRO 6000", 96, 125.0, 503.8, 1792, PCIE5),
    _office("RTX PRO 5000", 48, 73.7, 294.9, 1344, PCIE5),
    _office("RTX PRO 4500", 32, 54.9, 219.8, 896, PCIE5),
    _office("RTX PRO 4000", 24, 46.9, 187.7, 672, PCIE5),
    _office("RTX 6000 Ada", 48, 91.1, 364.2, 960, reached=Reached(0.50, 0.37, "a row (github.com/aredden)")),
    _office("RTX 5000 Ada", 32, 65.3, 261.1, 576),
    _office("RTX 4500 Ada", 24, 39.6, 158.5, 432),
    _office("RTX 4000 Ada", 20, 26.7, 106.9, 360),
    _office("RTX 2000 Ada", 16, 12.0, 48.0, 224, PCIE3),
    _office("RTX A6000", 48, 38.7, 154.8, 768),
    _office("RTX A5500", 24, 34.1, 136.4, 768),
    _office("RTX A5000", 24, 27.8, 111.1, 768),
    _office("RTX A4500", 20, 23.7, 94.6, 640),
    _office("RTX A4000", 16, 19.2, 76.7, 448),
    _office("RTX A2000", 12, 8.0, 32.0, 288),
    _old("Quadro RTX 8000", 48, 16.3, 130.5, 672),
    _old("Quadro RTX 6000", 24, 16.3, 130.5, 672),
    _centre("MI355X", 288, 157.3, 2516.0, 8000, PCIE5, peer=76),
    _centre("MI325X", 256, 163.4, 1307.0, 6000, PCIE5, peer=64),
    _centre("MI300X", 192, 163.4, 1307.0, 5300, PCIE5, peer=64),
    Card("MI300A", 128, 122.6, 980.6, 5300, 5300.0, True, CENTRE, 64.0, True),
    _centre("MI250X", 64, 23.9, 191.5, 1638, peer=50),
    _centre("MI210", 64, 22.6, 181.0, 1638, peer=50),
    _old("MI100", 32, 23.1, 184.6, 1229, 46.0),
    _old("MI60", 32, 14.7, 29.5, 1024),
    _old("MI50", 16, 13.3, 26.5, 1024),
    Card("RX 9070 XT", 16, 48.7, 195.0, 640, PCIE5, reached=RADEON),
    Card("RX 9070", 16, 36.1, 145.0, 640, PCIE5, reached=RADEON),
    Card("RX 9060 XT", 16, 25.6, 103.0, 320, PCIE5, reached=RADEON),
    Card("RX 7900 XTX", 24, 61.4, 122.8, 960, reached=RADEON),
    Card("RX 7900 XT", 20, 51.5, 103.0, 800, reached=RADEON),
    Card("RX 7900 GRE", 16, 46.0, 92.0, 576, reached=RADEON),
    Card("RX 7800 XT", 16, 37.3, 74.6, 624, reached=RADEON),
    Card("RX 7700 XT", 12, 35.2, 70.3, 432, reached=RADEON),
    Card("RX 7600 XT", 16, 22.6, 45.1, 288, PCIE3, reached=RADEON),
    Card("RX 6900 XT", 16, 23.0, 46.1, 512, bf16=False, reached=RADEON),
    Card("RX 6800 XT", 16, 20.7, 41.5, 512, bf16=False, reached=RADEON),
    _office("Radeon PRO W7900", 48, 61.3, 122.6, 864, reached=RADEON),
    _office("Radeon PRO W7800", 32, 45.2, 90.5, 576, reached=RADEON),
    Card("Arc A770", 16, 17.2, 137.6, 560),
    Card("Arc A750", 8, 14.7, 117.6, 512),
    Card("Arc B580", 12, 13.7, 117.0, 456, PCIE3),
    Card("Arc B570", 10, 11.5, 98.0, 380, PCIE3),
    _within("GB10", 128, 31.0, 125.0, 273),
    _within("Radeon 8060S", 96, 29.7, 59.4, 256),
    _within("Radeon 890M", 16, 11.9, 23.8, 120),
    _within("Radeon 780M", 16, 8.3, 16.6, 90),
    _within("Arc 140V", 16, 4.0, 32.0, 136),
    _within("Iris Xe", 16, 2.1, 4.2, 68, bf16=False),
    _within("iGPU", 16, 2.0, 4.0, 60, bf16=False),
    _within("Apple M1 Ultra", 128, 21.0, 21.0, 800),
    _within("Apple M1 Max", 64, 10.4, 10.4, 400),
    _within("Apple M1 Pro", 32, 5.2, 5.2, 200),
    _within("Apple M1", 16, 2.6, 2.6, 68),
    _within("Apple M2 Ultra", 192, 27.2, 27.2, 800),
    _within("Apple M2 Max", 96, 13.6, 13.6, 400),
    _within("Apple M2 Pro", 32, 6.8, 6.8, 200),
    _within("Apple M2", 24, 3.6, 3.6, 100),
    _within("Apple M3 Ultra", 512, 28.4, 28.4, 819),
    _within("Apple M3 Max", 128, 14.2, 14.2, 400),
    _within("Apple M3 Pro", 36, 6.4, 6.4, 150),
    _within("Apple M3", 24, 3.6, 3.6, 100),
    _within("Apple M4 Max", 128, 18.4, 18.4, 546),
    _within("Apple M4 Pro", 64, 9.2, 9.2, 273),
    _within("Apple M4", 32, 4.6, 4.6, 120),
    _within("Apple GPU", 16, 5.3, 5.3, 150),
)

CACHED = frozenset(
    {"RTX 5090", "RTX 5080", "RTX 5070 Ti", "RTX 5070", "RTX 4090", "RTX 4090 D", "RTX 4080 SUPER", "RTX 4080",
     "RTX 4070 Ti SUPER", "RTX 4070 Ti", "RTX 4070 SUPER", "RTX PRO 6000", "RTX PRO 5000", "RTX PRO 4500",
     "RTX PRO 4000", "RTX 6000 Ada", "RTX 5000 Ada", "RTX 4500 Ada", "RTX 4000 Ada", "L40S", "L40", "L20", "L4",
     "B200", "MI300X", "MI325X", "MI355X", "MI300A", "RX 9070 XT", "RX 9070", "RX 7900 XTX", "RX 7900 XT",
     "RX 7900 GRE", "RX 7800 XT", "RX 7700 XT", "RX 6900 XT", "RX 6800 XT"}
)  # fmt: skip
"""Cards with caches of 48 MB and more, by the makers' architecture papers."""

NVLINK = {
    **dict.fromkeys(("RTX 3090", "RTX A6000", "RTX A5500", "RTX A5000", "RTX A4500", "A40"), 56.2),
    **dict.fromkeys(("RTX 2080 Ti", "TITAN RTX", "Quadro RTX 8000", "Quadro RTX 6000"), 50.0),
    **dict.fromkeys(("RTX 2080 SUPER", "RTX 2080"), 25.0),
    "A30": 100.0,
}
"""GB/s in one direction of the NVLink bridge that may join two cards, by the makers' data sheets."""

WAYS = ("NVLink", "no P2P", "P2P")
"""What may stand behind a card: its way to others of its kind is a bridge, the host's memory, or the slot."""

BY_MEMORY = ("RTX 3070", "RTX 3080", "RTX 2080 Ti", "RTX 4070", "RTX 4070 Ti SUPER", "RX 7900 XT", "RTX 3090",
             "RTX 5090", "L40S", "MI250X", "A100 80GB PCIe", "H200", "MI300X")  # fmt: skip
"""The card that an unnamed one of so much memory is taken for: a common one, none of the fastest of its size."""

MACS = ("Apple M1", "Apple M2", "Apple M2 Pro", "Apple M1 Max", "Apple M3 Max", "Apple M2 Ultra")
"""The same for the GPU of a Mac."""


@functools.lru_cache(1024)
def card_of(label: str) -> Card | None:
    """The card that a maker's or PyTorch's name means; the longest listed name in it counts.

    >>> card_of("NVIDIA GeForce RTX 4070 Ti SUPER").name, card_of("rtx-3090").name, card_of("some card")
    ('RTX 4070 Ti SUPER', 'RTX 3090', None)
    >>> card_of("RTX3090").name, card_of("rtx4070ti super nvlink").name
    ('RTX 3090', 'RTX 4070 Ti SUPER')
    >>> card_of("Intel(R) Arc(TM) A770 Graphics").name, card_of("Arc A770").name
    ('Arc A770', 'Arc A770')
    """
    words = f" {plain_name(label)} "
    found = [card for card in CARDS if f" {plain_name(card.name)} " in words]
    return max(found, key=lambda card: len(card.name), default=None) or _by_joined_name().get(joined_name(label))


@functools.cache
def _by_joined_name() -> dict[str, Card]:
    return {joined_name(card.name): card for card in CARDS}


def way_of(text: str) -> str:
    """The way to other cards that is said behind the name of a card, as `WAYS` has it; empty where none is.

    >>> way_of("RTX 3090 NVLink"), way_of("rtx 4090 no p2p"), way_of("RTX 4090 p2p"), way_of("H100 NVL")
    ('NVLink', 'no P2P', 'P2P', '')
    """
    return next((way for way in WAYS if plain_name(text).endswith(f" {way.lower()}")), "")


_BESIDE = re.compile(
    r"nvidia|geforce|amd|radeon|instinct|intel|tesla|quadro|graphics|gpu|card|laptop|corporation|series|edition|"
    r"founders|r|tm|c|pcie?[0-9]?|sxm[0-9]?|hbm[0-9]?e?|[0-9]+(?:g|gb|gib)?"
)
"""The words that may stand beside the name of a card: its maker's, how it is built, and its memory."""


def odd_word(text: str) -> str:
    """The first word beside the name of a card and its way to others that means nothing; empty where none does.

    >>> odd_word("RTX 3090 NVLnk"), odd_word("NVIDIA GeForce RTX 3090 24GB NVLink"), odd_word("rtx3090")
    ('nvlnk', '', '')
    """
    card, way = card_of(text), way_of(text)
    known = {*plain_name(card.name).split(), joined_name(card.name)} if card is not None else set()
    words = [word for word in plain_name(text).split() if word not in plain_name(way).split()]
    if joined_name("".join(words)) == joined_name(card.name if card is not None else ""):
        return ""
    return next((word for word in words if word not in known and not _BESIDE.fullmatch(word)), "")


def peer_of(card: Card, way: str) -> float | None:
    """GB/s in one direction to another card of the model by a way; None for a bridge that it cannot have."""
    bridge = card.peer if card.peer > card.link else NVLINK.get(card.name)
    return {"NVLink": bridge, "no P2P": 0.0, "P2P": card.link}.get(way, card.peer)


def card_of_size(gib: float, within: str = "") -> Card:
    """The card that an unnamed one is taken for: the smallest common one with at least so much memory, or the largest.

    A card with a little less than its name says (its driver keeps some) counts as whole. ``within`` is the kind of one
    that shares the host's memory.

    >>> card_of_size(32).name, card_of_size(32, "mps").name, card_of_size(32, "xpu").name
    ('RTX 5090', 'Apple M2 Pro', 'iGPU')
    """
    names = BY_MEMORY if not within else MACS if within == "mps" else ("iGPU",)
    common = [card_of(name) for name in names]
    known = [card for card in common if card is not None]
    return next((card for card in known if card.memory * 1.02 >= gib), known[-1])


def joined_name(name: str) -> str:
    """A name in small letters without blanks, its maker, and the way to other cards behind it.

    >>> joined_name("NVIDIA GeForce RTX 3090 NVLink"), joined_name("rtx3090")
    ('rtx3090', 'rtx3090')
    """
    joined = re.sub("[^a-z0-9]", "", plain_name(name))
    return re.sub("^(?:nvidia|geforce|tesla|amd|instinct|intel|radeon(?=rx))+|(?:nop2p|p2p|nvlink)$", "", joined)


def plain_name(name: str) -> str:
    """A name in small letters, without marks such as (TM)."""
    return " ".join(re.findall(r"[a-z]+[0-9]*[a-z]*|[0-9]+[a-z]*", re.sub(r"\((?:r|tm|c)\)", " ", name.lower())))
