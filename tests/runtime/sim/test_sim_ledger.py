"""Random sequences of ops give the CPU's bits, and the ledger counts every byte of them."""

from __future__ import annotations

import _thread
import functools
import gc
import operator
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime import sim
from dovetail.runtime.sim.holds import Hold, _alive, _gone, sweep

Tensors = list[torch.Tensor]
MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]

OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a @ b,
    "in-place add": lambda a, b: a.add_(1),
    "in-place product": lambda a, b: a.mul_(b.clone()),
    "copy": lambda a, b: a.copy_(b.clone()),
    "softmax": lambda a, b: a.softmax(-1),
    "transposed view": lambda a, b: a.t(),
    "clone": lambda a, b: a.clone(),
    "contiguous or itself": lambda a, b: a.contiguous(),
    "reshape or view": lambda a, b: a.reshape(-1).reshape(4, 4),
    "halves turned around": lambda a, b: torch.cat(a.chunk(2)[::-1]),
    "row times column": lambda a, b: a[:1].t() * b[:, :1].t(),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "norm": lambda a, b: torch.nn.functional.layer_norm(a, (4,)),
    "dropout at rest": lambda a, b: torch.nn.functional.dropout(a, training=False),
    "same type": lambda a, b: a.to(torch.float32),
    "there and back": lambda a, b: (a.to("sim:1") if a.device.type == "sim" else a.clone()).to(a.device),
}
Program = list[tuple[str, int, int, int | None]]


@pytest.fixture(autouse=True, scope="module")
def nothing_left_to_collect() -> None:
    sim.enable()
    gc.collect()


@st.composite
def programs(draw) -> Program:
    """Ops on the values made so far, each followed by dropping one of them or none."""
    steps, alive = [], 2
    for _ in range(draw(st.integers(0, 12))):
        name = draw(st.sampled_from(sorted(OPS)))
        first, second = draw(st.integers(0, alive - 1)), draw(st.integers(0, alive - 1))
        alive += 1
        dropped = draw(st.none() | st.integers(0, alive - 1)) if alive > 2 else None
        alive -= dropped is not None
        steps.append((name, first, second, dropped))
    return steps


def _run(program: Program, values: Tensors, after_each: Callable[[Tensors], None] = lambda values: None) -> Tensors:
    for name, first, second, dropped in program:
        values.append(OPS[name](values[first], values[second]))
        if dropped is not None:
            del values[dropped]
        after_each(values)
    return values


def _recount(values: Tensors) -> int:
    """Counts the bytes of the storages of CPU tensors, each once."""
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}
    return sum(storages.values())


def _inputs() -> Tensors:
    torch.manual_seed(0)
    return [torch.randn(4, 4), torch.randn(4, 4)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@given(programs())
def test_a_sequence_of_ops_gives_the_bits_of_the_cpu(mode, program):
    with mode():
        expected = _run(program, _inputs())
        result = _run(program, [value.to("sim:0") for value in _inputs()])
        for one, other in zip(result, expected, strict=True):
            assert one.stride() == other.stride()
            assert torch.equal(one.cpu().nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@given(programs())
def test_the_bytes_in_use_are_those_of_the_living_storages(mode, program):
    before = sim.stats(0).in_use
    counted, recounted = [], []
    with mode():
        _run(program, _inputs(), lambda values: recounted.append(_recount(values)))
        there = [value.to("sim:0") for value in _inputs()]
        _run(program, there, lambda values: counted.append(sim.stats(0).in_use - before))
        assert counted == recounted
        there.clear()
    assert sim.stats(0).in_use == before


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 9)), max_size=30))
def test_the_peak_is_the_highest_of_all_recounts(steps):
    sim.reset_peak(0)
    start = peak = in_use = sim.stats(0).in_use
    alive: Tensors = []
    for makes, size, index in steps:
        if makes or not alive:
            alive.append(torch.empty(size, dtype=torch.uint8, device="sim:0"))
            in_use += size
        else:
            in_use -= alive.pop(index % len(alive)).numel()
        peak = max(peak, in_use)
    assert (sim.stats(0).in_use, sim.stats(0).peak) == (in_use, peak)
    alive.clear()
    assert sim.stats(0).in_use == start


@given(st.lists(st.integers(1, 60), max_size=20), st.integers(0, 400))
def test_a_device_is_never_fuller_than_its_capacity(sizes, spare):
    capacity = sim.stats(2).in_use + spare
    sim.enable({2: capacity})
    kept = []
    for size in sizes:
        room = capacity - sim.stats(2).in_use
        if size <= room:
            kept.append(torch.empty(size, dtype=torch.uint8, device="sim:2"))
        else:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(size, dtype=torch.uint8, device="sim:2")
        assert sim.stats(2).in_use <= capacity


def test_nothing_of_python_runs_where_a_tensor_dies():
    """An interrupt that comes there would be swallowed."""
    called: list[str] = []
    value = torch.ones(3, device="sim:0")
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del value
    finally:
        sys.setprofile(None)
    assert called == []


def _interrupted_at(place: int, run: Callable[[], object]) -> bool:
    """Runs something and interrupts it where Python looks for signals: as a function begins, or one of C returns."""
    left = place

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_return")
        if left < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_an_interrupt_is_never_swallowed_and_leaves_nothing_in_use():
    side = sim.Stream(0)

    def make_and_drop() -> int:
        side.wait_stream(sim.default_stream(0))
        with sim.stream(side):
            value = torch.ones(3, device="sim:0")
            other = value + value
            del value
            other.cpu()
            del other
        return sim.stats(0).in_use

    before, place = make_and_drop(), 0
    while _interrupted_at(place, make_and_drop):
        assert sim.stats(0).in_use == before
        place += 1
    assert place > 50


def test_an_interrupt_as_a_copy_begins_leaves_no_frame_alive(heeding_interrupts: None) -> None:
    """One that comes in the code of C that looks for the device keeps the caller's frame, and all that is in it."""
    target, source = torch.zeros(3, device="sim:0"), torch.ones(3, device="sim:1")

    def interrupt(held: torch.Tensor) -> None:
        blocking = map(operator.not_, iter(_thread.interrupt_main, 0))  # nothing of Python runs before the copy
        list(map(target.copy_, [source], blocking))

    held = torch.ones(1000, device="sim:0")
    gone = weakref.ref(held)
    with pytest.raises(KeyboardInterrupt):
        interrupt(held)
    del held
    gc.collect()
    assert gone() is None


def test_a_finalizer_that_sweeps_in_the_midst_of_a_sweep_leaves_nothing_behind():
    left: list[str] = []

    def leave(name: str, again: list[None]) -> None:
        left.append(name)
        if again:
            again.pop()
            sweep()  # as a finalizer does that the garbage collector runs here

    sweep()
    holds = [Hold(functools.partial(leave, name, [None])) for name in "abc"]
    holds.clear()
    sweep()
    assert set(left) == set("abc")
    assert not _gone
    assert not [one for one in _alive if one() is None]
