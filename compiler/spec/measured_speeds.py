"""What the host of this machine reaches, measured once and kept in a small file.

The file is data: numbers by key, where the key names the processor, the number of threads and PyTorch's version. A
file that is damaged, of another form or too large counts as empty. It is written whole or not at all.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from ..atomic_write import written_beside
from .speeds import Speed

logger = logging.getLogger(__name__)

_DTYPES = ("float32", "bfloat16", "float16")
_MOST = 32  # entries that are kept
_LARGEST = 1 << 16  # bytes of the file
_LEAST = 1e-5  # seconds to start an operation: one that is large enough to count starts threads besides


def cache_folder() -> Path | None:
    """Where measurements are kept: DOVETAIL_CACHE_DIR, or the system's place for such; None where nothing is kept."""
    if os.environ.get("DOVETAIL_CACHE", "1") in ("0", "no", "off", "false"):
        return None
    given, base = os.environ.get("DOVETAIL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or ""
    home = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return Path(given).expanduser() if given else home / "dovetail"


@functools.cache
def measured_host(file: Path | None = None) -> Speed:
    """The speed of this machine's host: from the file, or measured now, which takes a fraction of a second.

    Where no file can be written, it is measured again by the next process, and nothing else.
    """
    folder = cache_folder()
    path = file or (folder / "speeds.json" if folder else None)
    key, known = _key(), read_speeds(path) if path else {}
    if key in known:
        return known[key]
    found = measure_host()
    if path is None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, {**dict(list(known.items())[1 - _MOST :]), key: found})
    except OSError as error:
        logger.debug("what was measured of the host is not kept: %s", str(error))
    return found


def read_speeds(path: Path) -> dict[str, Speed]:
    """What a file has, by key; nothing of a file that is damaged, of another form or too large."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        return {str(key): _speed(entry) for key, entry in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _speed(entry: dict[str, object]) -> Speed:
    numbers = {name: float(str(entry[name])) for name in (*_DTYPES, "bandwidth", "launch")}
    if not all(math.isfinite(one) and one > 0 for one in numbers.values()):
        raise ValueError("a speed is a positive number")
    flops = {dtype: numbers[dtype] for dtype in _DTYPES}
    return Speed(flops, numbers["bandwidth"], numbers["bandwidth"] / 2, numbers["launch"], "measured")


def _write(path: Path, entries: dict[str, Speed]) -> None:
    data = {key: {**one.flops, "bandwidth": one.bandwidth, "launch": one.launch} for key, one in entries.items()}
    with written_beside(path) as draft:
        draft.write_text(json.dumps(data, indent=1))


def _key() -> str:
    import torch

    return f"{platform.machine()} {_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def measure_host() -> Speed:
    """Times a matrix product in each dtype, an addition that exceeds the caches, and an operation on nothing."""
    import torch

    def product(dtype: torch.dtype) -> float:
        a = torch.ones(512, 1024, dtype=dtype)
        b = torch.ones(1024, 1024, dtype=dtype)
        return 2 * 512 * 1024 * 1024 / _best(lambda: a @ b)

    with torch.inference_mode():
        flops = {name: product(getattr(torch, name)) for name in _DTYPES}
        large, out = torch.ones(2**23), torch.empty(2**23)
        bandwidth = 3 * large.nbytes / _best(lambda: torch.add(large, large, out=out))
        small = torch.ones(1)
        launch = _best(lambda: [small + small for _ in range(100)]) / 100
    return Speed(flops, bandwidth, bandwidth / 2, max(launch, _LEAST), "measured")


def _best(work: Callable[[], object], times: int = 3) -> float:
    """The least of the seconds that a piece of work took, after once that does not count."""
    work()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
