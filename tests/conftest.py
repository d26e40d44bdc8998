"""Settings of hypothesis (examples are bounded; in CI they are the same at every run), and the seed of drawn cases."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine

os.environ["DOVETAIL_CACHE"] = "0"  # what a test traces depends on no earlier run; those of the cache switch it on
os.environ.setdefault("DOVETAIL_TEST_SEED", str(random.SystemRandom().randrange(2**32)))  # workers inherit it
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile("dev", deadline=None, max_examples=20, suppress_health_check=QUIET)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

engine.MAX_SHRINKING_SECONDS = 20  # of 300: an example of a law that fails is to be small, and the run to end

_LONG = 8
"""A table of slow cases with more than these runs to a fifth where some are drawn, others to a quarter."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Counts four of five tests that are marked `fifth` as slow, as the seed of the run draws them."""
    if item.get_closest_marker("fifth") is None or os.environ.get("DOVETAIL_TEST_CASES") == "all":
        return
    if _draw(item.nodeid).random() > 1 / 5:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases as the seed of the run draws them; none where DOVETAIL_TEST_CASES=all.

    Of a table that is marked `few` as many run as it says. Where DOVETAIL_TEST_CASES=some, a part of the slow tests
    runs: of each table a fifth or a quarter of its cases, and of the tests of one case a quarter. Each table draws by
    its own name, so that what is added to one leaves the draws of the others as they are.
    """
    cases = os.environ.get("DOVETAIL_TEST_CASES")
    if cases == "all":
        return
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0]].append(item)
    left = _left_of_few(tables)
    if cases == "some":
        left |= _left_of_slow({name: [one for one in table if one not in left] for name, table in tables.items()})
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def _left_of_few(tables: dict[str, list[pytest.Item]]) -> set[pytest.Item]:
    """The cases of tables of which few run, of the slow and the others each for themselves, that do not."""
    left: set[pytest.Item] = set()
    for name, table in tables.items():
        marker = table[0].get_closest_marker("few")
        if marker is None:
            continue
        draw, most = _draw(name), (*marker.args, len(table))[0]
        quick = [one for one in table if one.get_closest_marker("slow") is None]
        slow = [one for one in table if one not in quick]
        for some, count in ((quick, marker.kwargs.get("quick", most)), (slow, most)):
            left |= set(draw.sample(some, max(0, len(some) - count)))
    return left


def _left_of_slow(tables: dict[str, list[pytest.Item]]) -> set[pytest.Item]:
    """The slow tests that do not run where some of them do."""
    left: set[pytest.Item] = set()
    for name, table in tables.items():
        slow, draw = [item for item in table if item.get_closest_marker("slow")], _draw(f"{name} slow")
        part = len(slow) / (5 if len(slow) > _LONG else 4)
        runs = int(part + draw.random())  # rounded up as often as makes it the part on the average
        left |= set(draw.sample(slow, len(slow) - min(len(slow), runs)))
    return left


def _draw(name: str) -> random.Random:
    """The draws of what has that name, by the seed of the run."""
    return random.Random(f"{os.environ['DOVETAIL_TEST_SEED']} {name}")


def pytest_collection_finish() -> None:
    """Keeps three things cheap that tests do thousands of times.

    Collections of garbage pass over what the imported libraries hold. A mode of fakes does not note the stack that it
    was made in, which is deep here, and for which each file on it is asked for its time. And PyTorch writes no log of
    what it compiles: it does so where its own logger has handlers, and pytest adds some to each logger that does not
    pass records on.
    """
    gc.collect()
    gc.freeze()
    if fakes := sys.modules.get("torch._subclasses.fake_tensor"):
        fakes.traceback = SimpleNamespace(**{**vars(traceback), "extract_stack": traceback.StackSummary})
    if "torch" in sys.modules:
        sys.modules["torch._logging._internal"].trace_log = logging.Logger("torch.__trace")


@pytest.fixture(autouse=True)
def _told_anew(request: pytest.FixtureRequest) -> None:
    """Has what is said once a process be said to a test that listens, whatever ran before it."""
    if not {"caplog", "capsys"} & set(request.fixturenames):
        return
    modules = [one for name, one in list(sys.modules.items()) if name.partition(".")[0] == "dovetail"]
    for told in (value for one in modules for value in list(vars(one).values()) if hasattr(value, "cache_clear")):
        if getattr(told, "__name__", "").lstrip("_").startswith(("tell", "warn")):
            told.cache_clear()


@pytest.fixture(scope="module")
def known_threads() -> Iterator[None]:
    """Hides threads that other tests, or libraries that they use, have left behind."""
    enumerate_all, before = threading.enumerate, set(threading.enumerate()) - {threading.main_thread()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "enumerate", lambda: [one for one in enumerate_all() if one not in before])
        yield


@pytest.fixture
def heeding_interrupts() -> Iterator[None]:
    """Has interrupts come: what a shell started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the seed by which the cases of this run were drawn; `pytest -q` shows no header that could."""
    terminalreporter.write_line(f"cases drawn by DOVETAIL_TEST_SEED={os.environ['DOVETAIL_TEST_SEED']}")


@pytest.fixture
def sims() -> Iterator[None]:
    """Simulated devices of the host's memory, which count from zero afterwards."""
    from dovetail.runtime import sim  # which tests of nothing else need not import

    sim.enable()
    yield
    for index in range(3):
        sim.reset_stats(index)


CLEANED: list[object] = []
"""The module whose test ended last with a collection of garbage, until another test runs."""
_BEGUN: list[object] = []
"""The module of the last test that began."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Gives simulated devices the memory of the host again, and at the first test of a module all of it."""
    if ledger := sys.modules.get("dovetail.runtime.sim.ledger"):
        bounded = [index for index, device in ledger._devices.items() if device.capacity != ledger._UNBOUND]
        ledger.set_capacities(dict.fromkeys(bounded, ledger.host_memory()))
        if item.path not in _BEGUN:
            _collect_what_holds_memory(ledger._devices.values())
    _BEGUN[:] = [item.path]


def _collect_what_holds_memory(devices: Collection[Any]) -> None:
    """Collects the garbage of modules before; also what was frozen while it was alive, which no collection sees."""
    if any(device.in_use for device in devices):
        gc.collect()
    if any(device.in_use for device in devices):
        was_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.collect()
        if was_frozen:
            gc.freeze()


def pytest_runtest_call() -> None:
    """Notes that a test runs, which may leave garbage."""
    CLEANED.clear()


@pytest.fixture
def clean_sims(request: pytest.FixtureRequest) -> Iterator[None]:
    """Simulated devices of the host's memory, with nothing of other tests in them, counting from zero."""
    from dovetail.runtime import sim

    if request.path not in CLEANED:
        gc.collect()  # which takes a tenth of a second once libraries are imported
    sim.enable()
    for index in range(3):
        sim.reset_stats(index)
    yield
    gc.collect()
    sim.enable()
    CLEANED.append(request.path)
