from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime import sim
from dovetail.runtime.devices import transfers
from dovetail.runtime.devices.accelerator import Accelerator, SimAccelerator, accelerator_of
from dovetail.runtime.devices.transfers import fence, start_copies, start_copy
from dovetail.runtime.sim import streams

sim.enable()
SIM0, SIM1, CPU = torch.device("sim", 0), torch.device("sim", 1), torch.device("cpu")
PAIRS = [(CPU, SIM0), (SIM0, CPU), (SIM0, SIM1), (CPU, CPU), (SIM0, SIM0)]


@pytest.fixture(autouse=True)
def untested_links(sim_devices):
    transfers.forget_self_tests()
    yield
    transfers.forget_self_tests()


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_a_value_arrives_with_its_bits_and_strides(source, target):
    value = torch.randn(3, 4, 5).permute(2, 0, 1)
    arrived = start_copy(value.to(source), target).wait()
    assert arrived.device == target
    assert (arrived.size(), arrived.stride()) == (value.size(), value.stride())
    assert torch.equal(arrived.cpu(), value)


def test_what_is_there_already_is_not_copied():
    value = torch.ones(3, device=SIM0)
    assert start_copy(value, SIM0).wait() is value
    assert sim.stats(0).bytes_in == sim.stats(0).bytes_out == 0


def test_an_expanded_value_is_sent_once():
    value = torch.randn(4, 1, device=SIM0).expand(4, 100)
    arrived = start_copy(value, SIM1).wait()
    assert arrived.stride() == (1, 0)
    assert sim.stats(1).bytes_in == sim.stats(1).in_use == 16
    assert torch.equal(arrived.cpu(), value.cpu())


def test_overlapping_windows_arrive_as_such():
    value = torch.arange(10.0).to(SIM0).unfold(0, 4, 2)
    arrived = start_copy(value, SIM1).wait()
    assert arrived.stride() == (2, 1)
    assert sim.stats(1).bytes_in == 40
    assert torch.equal(arrived.cpu(), value.cpu())


@st.composite
def strided_values(draw):
    """A tensor, or a view of it through some of the ways in which strides come about."""
    size = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    value = torch.arange(torch.Size(size).numel(), dtype=draw(st.sampled_from([torch.float32, torch.int64]))).view(size)
    for step in draw(st.lists(st.sampled_from(["slice", "permute", "expand", "every other"]), max_size=3)):
        if value.dim() == 0:
            break
        dim = draw(st.integers(0, value.dim() - 1))
        if step == "slice":
            value = value.narrow(dim, value.size(dim) // 2, value.size(dim) - value.size(dim) // 2)
        elif step == "permute":
            value = value.permute(draw(st.permutations(range(value.dim()))))
        elif step == "expand":
            value = value.unsqueeze(dim).expand(*value.shape[:dim], 3, *value.shape[dim:])
        else:
            value = value[(slice(None),) * dim + (slice(None, None, 2),)]
    return value


@given(strided_values())
def test_any_strided_value_arrives_as_it_was(value):
    for target in (SIM0, CPU):
        source = value if target is SIM0 else start_copy(value, SIM1).wait()
        arrived = start_copy(source, target).wait()
        assert (arrived.size(), arrived.stride()) == (value.size(), value.stride())
        assert torch.equal(arrived.cpu(), value)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_chain_of_copies_and_ops_needs_no_other_waits(mode):
    with mode():
        value = torch.ones(5)
        for target in (SIM0, SIM1, SIM0, CPU, SIM1, CPU):
            value = start_copy(value + 1, target).wait()
        assert value.tolist() == [7.0] * 5


def test_the_source_may_die_at_once():
    value = torch.ones(1000, device=SIM0) + 1
    coming = start_copy(value, SIM1)
    del value
    assert sim.stats(0).in_use == 0
    torch.zeros(1000, device=SIM0)
    assert coming.wait().sum().item() == 2000


@pytest.mark.parametrize(("source", "target"), [(CPU, SIM0), (SIM0, SIM1)], ids=str)
def test_using_a_value_without_the_wait_is_a_race(source, target):
    coming = start_copy(torch.ones(3).to(source), target)
    with pytest.raises(sim.RaceError, match="without waiting"):
        coming._value + 1


def test_using_a_value_on_the_host_without_the_wait_finds_nothing():
    coming = start_copy(torch.ones(3, device=SIM0), CPU)
    assert coming._value.isnan().all()
    assert coming.wait().tolist() == [1, 1, 1]


@pytest.mark.parametrize("target", [SIM1, CPU], ids=str)
@pytest.mark.parametrize("waited", [False, True])
def test_behind_a_fence_the_source_may_be_written(target, waited):
    value = torch.ones(3, device=SIM0)
    coming = start_copy(value, target)
    if waited and target is SIM1:
        coming.wait()
    with pytest.raises(sim.RaceError, match="writes a buffer"):
        value.zero_()
    fence(coming.done, SIM0)
    value.zero_()
    assert coming.wait().tolist() == [1, 1, 1]


def _use(value: torch.Tensor) -> None:
    arrived = start_copy(value + 1, SIM1).wait() + 1
    del value
    torch.zeros(1, device=SIM0)
    start_copy(arrived, SIM0).wait() + 1
    del arrived
    for device in (SIM0, SIM1):
        there = accelerator_of(device)
        torch.zeros(1, device=device)
        with there.use(there.side_stream()):
            torch.zeros(1, device=device)


@pytest.mark.parametrize("broken", ["wait", "keep"])
def test_leaving_out_a_wait_or_a_keep_is_caught(monkeypatch, broken):
    value = torch.ones(3, device=SIM0)
    _use(value)
    monkeypatch.setattr(SimAccelerator, broken, Accelerator.keep)
    with pytest.raises(sim.RaceError):
        _use(value)


def test_a_pair_that_damages_copies_goes_through_the_host_and_says_so_once(caplog):
    value = torch.randn(30, 20, device=SIM0).t()
    with sim.broken_link(0, 1), caplog.at_level(logging.WARNING):
        first = start_copy(value, SIM1).wait()
        second = start_copy(value + 1, SIM1).wait()
    assert torch.equal(first.cpu(), value.cpu())
    assert torch.equal(second.cpu(), value.cpu() + 1)
    assert first.stride() == value.stride()
    assert len(caplog.records) == 1
    assert "direct copy from sim:0 to sim:1" in caplog.text
    assert "through host memory" in caplog.text
    assert "twice as long" in caplog.text


def test_each_direction_of_a_pair_is_tested_by_itself(caplog):
    value = torch.ones(3, device=SIM1)
    with sim.broken_link(0, 1), caplog.at_level(logging.WARNING):
        assert start_copy(value, SIM0).wait().tolist() == [1, 1, 1]
    assert not caplog.records


@pytest.mark.parametrize("wrong", [0, 100, 255])
def test_a_single_wrong_byte_is_found(wrong):
    def flip(arrived: torch.Tensor) -> None:
        if arrived.numel() > wrong:
            arrived.view(torch.uint8)[wrong] ^= 1

    with sim.broken_link(0, 1, flip):
        assert not transfers.copies_arrive(accelerator_of(SIM0), accelerator_of(SIM1))


def test_a_self_test_leaves_no_trace_in_the_counters():
    value = torch.ones(3, device=SIM0)
    sim.enable({1: value.nbytes})
    before = sim.stats(0)
    arrived = start_copy(value, SIM1).wait()
    assert sim.stats(0).in_use == before.in_use
    assert sim.stats(0).peak == before.peak
    assert sim.stats(0).bytes_out == sim.stats(1).bytes_in == sim.stats(1).peak == arrived.nbytes


def test_copies_with_the_host_are_not_tested(monkeypatch):
    monkeypatch.setattr(transfers, "_probe", lambda here, there: pytest.fail("a copy with the host was tested"))
    start_copy(start_copy(torch.ones(3), SIM0).wait(), CPU).wait()


def test_unlike_accelerators_go_through_the_host(caplog):
    here, there = accelerator_of(SIM0), SimAccelerator(SIM1)
    there.device = torch.device("meta")
    with caplog.at_level(logging.WARNING):
        assert not transfers.copies_arrive(here, there)
    assert "no direct link" in caplog.text


def test_a_landing_that_is_freed_before_the_wait_is_not_given_out_again():
    def land(device: torch.device) -> None:
        whole = torch.empty(4, 6, device=SIM0)
        start_copy(torch.ones(4, 3, device=device), SIM0, whole.narrow(-1, 0, 3))

    for source in (SIM1, CPU):
        land(source)
        torch.zeros(16, device=SIM0)


@pytest.mark.parametrize(("source", "target", "dense"), [(SIM1, SIM0, False), (SIM1, CPU, True), (CPU, SIM0, False)])
def test_a_part_that_cannot_go_straight_into_its_place_is_put_there_when_it_is_awaited(source, target, dense):
    whole = torch.zeros(4, 5, device=target)
    numbers = torch.arange(1.0, 13.0)
    part = numbers.reshape(4, 3).to(source) if dense else numbers.reshape(3, 4).to(source).t()
    place = whole.narrow(-1, 1, 3)
    coming = start_copy(part, target, place)
    assert whole.sum().item() == 0
    assert torch.equal(coming.wait().cpu(), part.cpu())
    assert torch.equal(place.cpu(), part.cpu())
    assert whole.sum().item() == 78


@pytest.mark.parametrize(("source", "target"), [(SIM1, SIM0), (SIM1, CPU), (CPU, SIM0)])
@pytest.mark.parametrize("dense", [True, False])
def test_boxes_of_a_value_land_in_their_places(source, target, dense):
    whole = torch.zeros(4, 7, device=target)
    value = torch.arange(1.0, 25.0).reshape(4, 6).to(source)
    boxes = [value.narrow(1, at, 2).clone() if dense else value.narrow(1, at, 2) for at in (4, 0)]
    coming = start_copies(boxes, target, [whole.narrow(1, 5, 2), whole.narrow(1, 1, 2)])
    del boxes
    coming.wait()
    expected = torch.zeros(4, 7)
    expected[:, 5:], expected[:, 1:3] = value.cpu()[:, 4:], value.cpu()[:, :2]
    assert torch.equal(whole.cpu(), expected)


def test_boxes_between_devices_follow_each_other_without_waiting_for_each():
    transfers.copies_arrive(accelerator_of(SIM0), accelerator_of(SIM1))
    value, whole = torch.arange(12.0).to(SIM0), torch.zeros(12, device=SIM1)
    stream, events = accelerator_of(SIM0).side_stream(("to", SIM1)), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            streams.Event, "record", lambda self, of, record=streams.Event.record: [events.append(of), record(self, of)]
        )
        before = stream.now
        start_copies(list(value.split(4)), SIM1, list(whole.split(4))).wait()
    assert stream.now - before == 3
    assert len(events) == 3, "what both devices did before, and the end"
    assert torch.equal(whole.cpu(), value.cpu())


def test_boxes_go_through_the_host_where_a_link_is_broken():
    value, whole = torch.arange(12.0).to(SIM0), torch.zeros(12, device=SIM1)
    with sim.broken_link(0, 1):
        start_copies([value[6:], value[:6]], SIM1, [whole[:6], whole[6:]]).wait()
    assert torch.equal(whole.cpu(), torch.cat([value[6:], value[:6]]).cpu())


def test_boxes_of_another_size_than_their_places_are_refused():
    value, whole = torch.ones(4, device=SIM0), torch.zeros(4, device=SIM1)
    with pytest.raises(ValueError, match="does not fit"):
        start_copies([value[:2], value[2:]], SIM1, [whole[:2], whole[2:3]])
    assert whole.sum().item() == 0


SIM2 = torch.device("sim", 2)


def waits_for(stream: sim.Stream, other: sim.Stream, time: int) -> bool:
    return stream.clock.get(other.number, 0) >= time


def test_copies_of_two_pairs_and_of_two_directions_do_not_wait_for_each_other():
    streams = {}
    for source, target in ((SIM1, SIM0), (SIM2, SIM0), (SIM0, SIM1), (SIM0, SIM2), (SIM1, SIM2)):
        transfers.copies_arrive(accelerator_of(source), accelerator_of(target))
        streams[source, target] = accelerator_of(source).side_stream(("to", target))
    for device in (SIM0, SIM1, SIM2):
        sim.synchronize(device)
    whole = torch.empty(4, 12, device=SIM0)
    values = {device: torch.ones(4, 4, device=device) for device in (SIM0, SIM1, SIM2)}
    coming, launched = [], {}
    for (source, target), stream in streams.items():
        into = whole.narrow(-1, 4 * source.index, 4) if target == SIM0 else None
        coming.append(start_copy(values[source], target, into))
        launched[source, target] = stream.now
    for pair, stream in streams.items():
        others = (other for other in streams if other != pair)
        assert not any(waits_for(stream, streams[other], launched[other]) for other in others), pair
    for one in coming:
        one.wait()


def test_a_result_for_the_host_is_not_in_pinned_memory():
    kept = transfers.handed(torch.ones(3, device=SIM0), CPU)
    passed = start_copy(torch.ones(3, device=SIM0), CPU).wait()
    assert not torch.sim.is_pinned(kept)
    assert torch.sim.is_pinned(passed)


def test_an_argument_in_pinned_memory_is_read_when_it_has_been_handed_over():
    value = accelerator_of(SIM0).empty_on_host((3,), (1,), torch.float32).fill_(1)
    there = transfers.handed(value, SIM0)
    value.fill_(2)
    assert there.tolist() == [1, 1, 1]
    assert transfers.handed(there, SIM0) is there


class Copied(torch.Tensor):
    """Notes whether the host waits for what is copied to or from it."""

    waited: list[bool]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.copy_, torch.Tensor.to):
            Copied.waited.append(not (kwargs or {}).get("non_blocking", False))
        return super().__torch_function__(func, types, args, kwargs)


class Streamless(Accelerator):
    """A device that reads host memory behind the host and has no streams to wait for, as MPS."""


@pytest.mark.parametrize(
    "copy",
    [
        lambda value, place: transfers._send([value], accelerator_of(CPU), Streamless(CPU)),
        lambda value, place: transfers._send([value], accelerator_of(CPU), Streamless(CPU), into=[place]),
        lambda value, place: transfers._send([value], Streamless(CPU), accelerator_of(CPU), into=[place]),
        lambda value, place: transfers.land(value, place),
        lambda value, place: transfers.moved(value, torch.device("meta")),
    ],
    ids=["to memory of its own", "into a whole", "from the device", "a weight", "a tensor"],
)
def test_the_host_waits_for_a_copy_of_a_device_that_has_no_streams(copy, monkeypatch):
    Copied.waited = []
    monkeypatch.setattr(transfers, "accelerator_of", lambda one: accelerator_of(one) if one == CPU else Streamless(CPU))
    copy(torch.ones(4).as_subclass(Copied), torch.zeros(4).as_subclass(Copied))
    assert Copied.waited
    assert all(Copied.waited)


def interrupted_at(number: int, call: Callable[[], object]) -> BaseException | None:
    """The interrupt of a call that comes at the so-manieth of the moments at which one may; None where it has fewer.

    These are the beginning of each function of Python, and the end of each of C.
    """
    left = [number]

    def look(frame: FrameType, event: str, _: object) -> None:
        left[0] -= event in ("call", "c_return") and "dovetail" in frame.f_globals.get("__name__", "")
        if left[0] == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    before = sys.getprofile()
    try:
        sys.setprofile(look)
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(before)
    return None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where an interrupt meets a sweep
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("into", ["memory of its own", "a place", "two places"])
def test_an_interrupt_anywhere_in_a_copy_leaves_streams_as_they_were_and_no_race(into: str, is_kept: bool) -> None:
    value = torch.arange(12.0).reshape(3, 4)
    sent, place = value.to(SIM0), torch.zeros(3, 4, device=SIM1)

    def send() -> torch.Tensor:
        if into == "two places":
            start_copies((sent * 1).split([1, 2]), SIM1, place.split([1, 2])).wait()
            return place
        return start_copy(sent * 1, SIM1, into=place if into == "a place" else None).wait()

    send()
    before = [streams.current_stream(index) for index in range(2)]
    for number in itertools.count(1):
        error = interrupted_at(number, send)
        was_interrupted = error is not None
        error = error if is_kept else None  # it holds what the call held
        assert [streams.current_stream(index) for index in range(2)] == before, number
        for _ in range(2):
            assert torch.equal((send() + 1).cpu(), value + 1), number
        if not was_interrupted:
            break
    assert number > 50
