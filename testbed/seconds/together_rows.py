"""Published seconds of one card and of several that compute together: what was computed, how, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass

ULYSSES, RING, TENSOR, BATCH = "heads apart", "keys and values gathered", "columns and rows", "batch apart"
PCIE, NVLINK = 0.10, 0.20
"""How far a predicted time may be off, by the way between the cards."""

Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Source:
    """Where a table stands: its title, its address, and the day of the version that was read, where it is known."""

    title: str
    address: str
    date: str = ""


@dataclass(frozen=True)
class Row:
    """A published measurement of ``count`` cards, beside one of a single card.

    ``parts`` are what the cards share, each with how often it is called, ``apart`` what each computes by itself.
    ``within`` is how far the prediction may be off, ``cause`` why it is, and ``links`` what would explain it, as a
    rig says that behind its cards. ``launch`` are the seconds in which an operation starts, where these are not those
    of PyTorch as it is; ``fitted`` says that they were fitted on the row.
    """

    card: str
    what: str
    way: str
    count: int
    alone: float
    seconds: float
    parts: Parts
    source: Source
    apart: Parts = ()
    within: float = PCIE
    cause: str = ""
    links: str = ""
    launch: float | None = None
    fitted: bool = False

    @property
    def ratio(self) -> float:
        """The seconds of all cards as a part of those of one."""
        return self.seconds / self.alone


CACHE_DIT = "https://github.com/vipshop/cache-dit/blob/main/docs/user_guide/"
XDIT = "https://github.com/xdit-project/xDiT/blob/main/docs/performance/"
SEQUENCE = Source("cache-dit, Context Parallelism", f"{CACHE_DIT}CONTEXT_PARALLEL.md", "2026-05-25")
COLUMNS = Source("cache-dit, Tensor Parallelism", f"{CACHE_DIT}TENSOR_PARALLEL.md")
RINGS = Source("feat: support ring attn p2p comm", "https://github.com/vipshop/cache-dit/pull/754", "2026-01-27")
XDIT_FLUX = Source("xDiT, Flux.1 Performance Overview", f"{XDIT}flux.md", "2025-02-25")
XDIT_FILM = Source("xDiT, HunyuanVideo Performance Report", f"{XDIT}hunyuanvideo.md", "2025-02-25")
RAYLIGHT = Source("raylight, 5090 vs RTX 2000 ADA", "https://github.com/komikndr/raylight", "2026-05-30")
COMFY = Source("fix: enable XPU MultiGPU CFG Split on Windows (CFG > 1)",
               "https://github.com/Comfy-Org/ComfyUI/pull/14191", "2026-05-30")  # fmt: skip

FLUX28: Parts = (("flux-dev", 28),)
PICTURE: Parts = (("te-clip-l", 1), ("te-t5-xxl-mask", 1), ("dec-flux", 1))
FILM50: Parts = (("hunyuan-video-129", 50),)
FILM_720: Parts = (("te-llama-8b", 1), ("te-clip-l", 1), ("dec-hunyuan-tile", 308))  # 4 × 7 tiles by 11 in time
FILM_960: Parts = (("te-llama-8b", 1), ("te-clip-l", 1), ("dec-hunyuan-tile", 275))  # 5 × 5 by 11

COMPILED = 5e-6
"""The seconds in which a kernel starts where `torch.compile` has made Python of it: fitted on a row, see there."""

ACROSS = (";cuda0-cuda2=no P2P;cuda1-cuda2=no P2P", ";cuda0-cuda3=no P2P;cuda1-cuda3=no P2P;cuda2-cuda3=P2P")
BY_HOST = {
    3: f"{ACROSS[0]};cuda0+cuda1+cuda2@root0",
    4: f"{''.join(ACROSS)};cuda0+cuda1+cuda2+cuda3@root0",
}
"""Pairs of cards that copy to each other through their slots, and to others through the host's memory by one root."""

_SHORT = "FLUX.1-dev, 1024², 28 steps"
_PYTHON = "Python starts kernels there hardly quicker than cards end them: four cards take as long as two"
_OWN = "what each card does by itself takes about 100 s there, on H20 too: the decoder of its own repository, in tiles"
_SOCKETS = "copies cross sockets: within 10 % where pairs copy through slots, and others by the host on one root"
_OFFLOADED = "weights come from host memory there, for every call and on one card as on two"
_UNCLEAR = "no cause in its source: weights are unpacked from fp8 on each card, which is 2 to 3 % of a step"
_SPAN = "its one card is said to take 1.73 to 2.00 s, of which the middle is taken: at 2.00 s it is 5 % off"


def _l20(way: str, count: int, seconds: float, source: Source) -> Row:
    return Row("L20", _SHORT, way, count, 23.56, seconds, FLUX28, source, PICTURE)


def _h100(way: str, count: int, seconds: float, cause: str = "") -> Row:
    return Row("H100", _SHORT, way, count, 6.71, seconds, FLUX28, XDIT_FLUX, PICTURE, NVLINK, cause)


def _compiled(way: str, count: int, seconds: float, fitted: bool = False) -> Row:
    return Row("H100", f"{_SHORT}, torch.compile", way, count, 4.30, seconds, FLUX28, XDIT_FLUX, PICTURE, NVLINK,
               launch=COMPILED, fitted=fitted)  # fmt: skip


def _film(card: str, size: str, count: int, alone: float, seconds: float, cause: str = "") -> Row:
    within, apart = PCIE if card == "L20" else NVLINK, FILM_720 if size == "720p" else FILM_960
    what = f"HunyuanVideo, {size}, 129 frames, 50 steps"
    links = BY_HOST.get(count, "") if card == "L20" else ""
    return Row(card, what, ULYSSES, count, alone, seconds, FILM50, XDIT_FILM, apart, within, cause, links)


def _ada(what: str, part: str, alone: float, seconds: float, way: str = ULYSSES, cause: str = "") -> Row:
    return Row("RTX 2000 Ada", what, way, 2, alone, seconds, ((part, 1),), RAYLIGHT, cause=cause)


ROWS: tuple[Row, ...] = (
    _l20(ULYSSES, 2, 13.80, SEQUENCE),
    _l20(ULYSSES, 4, 8.28, SEQUENCE),
    _l20(TENSOR, 2, 14.61, COLUMNS),
    _l20(TENSOR, 4, 10.69, COLUMNS),
    _l20(RING, 2, 14.01, RINGS),
    _l20(RING, 4, 9.82, RINGS),
    _l20(ULYSSES, 2, 13.87, RINGS),
    _l20(ULYSSES, 4, 8.22, RINGS),
    Row("L20", "Qwen-Image, 1328², 50 steps with guidance", ULYSSES, 2, 181, 133, (("qwen-image-1328", 100),),
        SEQUENCE, cause=_OFFLOADED),
    _film("L20", "720p", 2, 6043.88, 3271.44),
    _film("L20", "720p", 4, 6043.88, 2080.05, _SOCKETS),
    _film("L20", "960²", 2, 6039.08, 3260.62),
    _film("L20", "960²", 3, 6039.08, 2284.74),
    _ada("SDXL, 720×1024, a step", "sdxl-unet-2-720x1024", 0.33, 0.19, BATCH),
    _ada("FLUX.1-dev, 1024², a step", "flux-dev", 2.22, 1.26),
    _ada("Wan 2.1 1.3B, 480×832, 33 frames, a step", "wan2.1-1.3b-33f", 2.70, 1.65),
    _ada("Wan 2.1 14B, 480×480, 33 frames, a step", "wan2.1-14b-480x480x33", 9.23, 5.18),
    _ada("HunyuanVideo, 480×832, 33 frames, a step", "hunyuan-video-33f", 13.21, 7.69),
    _ada("Chroma, 1024², a step with guidance", "chroma1-hd-2", 5.14, 3.24, cause=_UNCLEAR),
    Row("Arc A770", "SDXL, 2048², a step", BATCH, 2, 1.865, 1.10, (("sdxl-unet-2-2048", 1),), COMFY,
        cause=_SPAN),
    _h100(ULYSSES, 2, 4.38),
    _h100(ULYSSES, 4, 4.24, _PYTHON),
    _h100(RING, 2, 5.31),
    _h100(RING, 4, 5.11, _PYTHON),
    _compiled(ULYSSES, 2, 2.68, fitted=True),
    _compiled(ULYSSES, 4, 1.63),
    _compiled(RING, 2, 2.60),
    _compiled(RING, 4, 1.98),
    _film("H100", "720p", 2, 1904.08, 925.04),
    _film("H100", "720p", 4, 1904.08, 514.08),
    _film("H100", "720p", 8, 1904.08, 337.58, _OWN),
    _film("H100", "960²", 2, 1735.01, 934.09),
    _film("H100", "960²", 3, 1735.01, 645.45),
    _film("H100", "960²", 6, 1735.01, 367.02),
    _film("H20", "720p", 2, 6639.17, 3400.55),
    _film("H20", "720p", 4, 6639.17, 1762.86),
    _film("H20", "720p", 8, 6639.17, 940.97),
    _film("H20", "960²", 2, 6621.46, 3400.55),
    _film("H20", "960²", 3, 6621.46, 2310.48),
    _film("H20", "960²", 6, 6621.46, 1214.67),
)  # fmt: skip
