"""What the host and the cards of this machine reach, measured once and kept in a small file.

The file is data: numbers by key, where the key names the processor, the number of threads and PyTorch's version, or
the card and PyTorch's version. A file that is damaged, of another form or too large counts as empty, and an entry of it
that is none is passed over. It is written whole or not at all.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from ..atomic_write import written_beside
from .speeds import LAUNCH_ON_HOST, Speed

logger = logging.getLogger(__name__)

_DTYPES = ("float32", "bfloat16", "float16")
_MOST = 32  # entries that are kept
_LARGEST = 1 << 16  # bytes of the file
_OPTIONAL = ("link", "peer")
_KINDS = ("attention", "convolution")
_RATES = (1e5, 1e18)  # the least and the most operations, or bytes, a second that a measurement gives
_STARTS = (1e-9, 1.0)  # the same of the seconds in which an operation starts
_ROWS, _ENOUGH = (8, 64, 512), 5e-3  # the first number of rows with which a product takes so many seconds is enough


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
    path = file or speeds_file()
    key, known = _key(), read_speeds(path) if path else {}
    if key in known:
        return known[key]
    found = measure_host()
    keep_speed(path, key, found)
    return found


def keep_host(found: Speed) -> bool:
    """Has a speed be this machine's from now on; returns whether it could be written."""
    measured_host.cache_clear()
    return keep_speed(speeds_file(), _key(), found)


def speeds_file() -> Path | None:
    """Where measured speeds are kept; None where nothing is kept."""
    folder = cache_folder()
    return folder / "speeds.json" if folder else None


def keep_speed(path: Path | None, key: str, found: Speed) -> bool:
    """Writes a speed into the file, in the place of what it has of that key; returns whether that was possible."""
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        others = {name: one for name, one in read_speeds(path).items() if name != key}
        _write(path, {**dict(list(others.items())[1 - _MOST :]), key: found})
    except OSError as error:
        logger.debug("what was measured of %s is not kept: %s", key, str(error))
        return False
    return True


def read_speeds(path: Path) -> dict[str, Speed]:
    """What a file has, by key; nothing of a file that is damaged, of another form or too large."""
    try:
        entries = json.loads(path.read_text()) if path.stat().st_size <= _LARGEST else {}
    except (OSError, ValueError, RecursionError):
        return {}
    read = {key: _speed(entry) for key, entry in entries.items()} if isinstance(entries, dict) else {}
    return {key: speed for key, speed in read.items() if speed is not None}


def _speed(entry: object) -> Speed | None:
    """The speed of an entry; None for what is none, or is one that nothing reaches."""
    try:
        return _believed(dict(entry))  # type: ignore[call-overload]
    except (ValueError, TypeError, KeyError):
        return None


def _believed(entry: dict[str, object]) -> Speed:
    flops = {name: _within(entry[name], _RATES) for name in _DTYPES if name in entry}
    attention, convolution = (_rates(entry.get(name)) for name in _KINDS)
    bandwidth, launch = _within(entry["bandwidth"], _RATES), _within(entry["launch"], _STARTS)
    link = _within(entry.get("link", bandwidth / 2), _RATES)
    peer = _within(entry["peer"], _RATES) if entry.get("peer") else 0.0
    if "float32" not in flops:
        raise ValueError("a speed has float32")
    return Speed(flops, bandwidth, link, launch, "measured", attention, peer, convolution=convolution)


def _rates(entry: object) -> dict[str, float]:
    return {str(name): _within(value, _RATES) for name, value in dict(entry or {}).items()}  # type: ignore[call-overload]


def _within(value: object, bounds: tuple[float, float]) -> float:
    number = float(str(value))
    if not bounds[0] <= number <= bounds[1]:
        raise ValueError(f"{number} is not within {bounds}")
    return number


def _write(path: Path, entries: dict[str, Speed]) -> None:
    with written_beside(path) as draft:
        draft.write_text(json.dumps({key: _entry(one) for key, one in entries.items()}, indent=1))


def _entry(one: Speed) -> dict[str, object]:
    kinds = {name: dict(getattr(one, name)) for name in _KINDS if getattr(one, name)}
    links = {name: getattr(one, name) for name in _OPTIONAL if getattr(one, name)}
    return {**one.flops, "bandwidth": one.bandwidth, "launch": one.launch, **links, **kinds}


def _key() -> str:
    import torch

    processor = f"{platform.machine()} {_processor()}, {torch.get_num_threads()} threads"
    return f"{processor}, torch {torch.__version__}, launches of {LAUNCH_ON_HOST * 1e6:.0f} us and more"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def measured_before(key: str, file: Path | None = None) -> Speed | None:
    """What the file has under a key; None if nothing, or where there is no file."""
    path = file or speeds_file()
    return read_speeds(path).get(key) if path else None


def measure_host() -> Speed:
    """Times matrix products in each dtype, an addition that exceeds the caches, and an operation on nothing."""
    import torch

    def product(dtype: torch.dtype) -> float:
        rate = 0.0
        b = torch.ones(1024, 1024, dtype=dtype)
        for rows in _ROWS:  # some processors take a thousand times as long in a dtype that they lack
            a = torch.ones(rows, 1024, dtype=dtype)
            took = best_of(lambda: a @ b)  # noqa: B023
            rate = max(rate, 2.0 * rows * 1024 * 1024 / took)
            if took >= _ENOUGH:
                break
        return rate

    with torch.inference_mode():
        flops = {name: product(getattr(torch, name)) for name in _DTYPES}
        large, out = torch.ones(2**23), torch.empty(2**23)
        bandwidth = 3 * large.nbytes / best_of(lambda: torch.add(large, large, out=out))
        small = torch.ones(1)
        launch = best_of(lambda: [small + small for _ in range(100)]) / 100
    return Speed(flops, bandwidth, bandwidth / 2, max(launch, LAUNCH_ON_HOST), "measured", peer=0.0)


def best_of(work: Callable[[], object], times: int = 3, wait: Callable[[], object] = lambda: None) -> float:
    """The least seconds that a piece of work took, after once that does not count; ``wait`` waits for its end."""
    work()
    wait()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
