"""Streams of simulated devices: what is ordered runs, and what is not raises."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.sim.regions import Region, are_apart, region_of
from dovetail.runtime.sim.streams import HOST

sim.enable()
pytestmark = pytest.mark.usefixtures("sim_devices")


def test_reading_what_another_stream_wrote_without_waiting_is_a_race():
    side = sim.Stream(0)
    with sim.stream(side):
        value = torch.ones(3, device="sim:0")
    with pytest.raises(sim.RaceError, match=f"reads a buffer last written on stream {side.number} .* without waiting"):
        value + 1


@pytest.mark.parametrize("wait", ["event", "stream", "host", "device", "event on the host"])
def test_after_a_wait_the_value_may_be_read(wait):
    side, current = sim.Stream(0), sim.current_stream(0)
    with sim.stream(side):
        value = torch.ones(3, device="sim:0")
    event = side.record_event()
    {
        "event": lambda: current.wait_event(event),
        "stream": lambda: current.wait_stream(side),
        "host": side.synchronize,
        "device": lambda: sim.synchronize(0),
        "event on the host": event.synchronize,
    }[wait]()
    assert (value + 1).tolist() == [2, 2, 2]


def test_an_event_recorded_too_early_does_not_help():
    side = sim.Stream(0)
    with sim.stream(side):
        early = side.record_event()
        value = torch.ones(3, device="sim:0")
    sim.current_stream(0).wait_event(early)
    with pytest.raises(sim.RaceError):
        value + 1


def test_waiting_is_passed_on():
    first, second = sim.Stream(0), sim.Stream(0)
    with sim.stream(first):
        value = torch.ones(3, device="sim:0")
    second.wait_stream(first)
    sim.current_stream(0).wait_stream(second)
    assert (value + 1).tolist() == [2, 2, 2]


def test_writing_what_another_stream_still_reads_is_a_race():
    value, side = torch.ones(3, device="sim:0"), sim.Stream(0)
    side.wait_stream(sim.current_stream(0))
    with sim.stream(side):
        result = value + 1
    with pytest.raises(sim.RaceError, match="writes a buffer that stream"):
        value.zero_()
    sim.current_stream(0).wait_stream(side)
    value.zero_()
    assert result.tolist() == [2, 2, 2]


def test_a_view_looks_at_no_element_and_needs_no_wait():
    side = sim.Stream(0)
    with sim.stream(side):
        value = torch.ones(3, 2, device="sim:0")
    view = value.t()[1:]
    with pytest.raises(sim.RaceError):
        view + 1
    sim.current_stream(0).wait_stream(side)
    assert view.tolist() == [[1, 1, 1]]


def test_memory_freed_while_another_stream_reads_it_must_not_be_given_out_again():
    def read_on(side: sim.Stream, record: bool) -> None:
        value = torch.ones(3, device="sim:0")
        side.wait_stream(sim.current_stream(0))
        with sim.stream(side):
            value + 1
        if record:
            value.record_stream(side)

    side = sim.Stream(0)
    read_on(side, record=True)
    torch.ones(3, device="sim:0")
    read_on(side, record=False)
    with pytest.raises(sim.RaceError, match="memory that was freed while stream"):
        torch.ones(3, device="sim:0")
    read_on(side, record=False)
    sim.current_stream(0).wait_stream(side)
    torch.ones(3, device="sim:0")


def test_a_copy_between_devices_is_ordered_with_both_current_streams():
    value = torch.ones(3, device="sim:0")
    there = value.to("sim:1", non_blocking=True)
    value.zero_()
    assert (there + 1).tolist() == [2, 2, 2]


def test_a_copy_on_a_side_stream_waits_for_nothing_by_itself():
    value, side = torch.ones(3, device="sim:0"), sim.Stream(0)
    with sim.stream(side), pytest.raises(sim.RaceError):
        value.to("sim:1", non_blocking=True)


def test_a_non_blocking_copy_to_the_host_arrives_with_the_wait():
    value = torch.ones(3, device="sim:0")
    floats, whole = value.to("cpu", non_blocking=True), torch.empty(3, dtype=torch.int64)
    whole.copy_(value.long(), non_blocking=True)
    assert floats.isnan().all()
    assert whole.tolist() == [-1, -1, -1]
    sim.current_stream(0).synchronize()
    assert floats.tolist() == whole.tolist() == [1, 1, 1]


def test_a_blocking_copy_to_the_host_lets_earlier_ones_arrive():
    value = torch.ones(3, device="sim:0")
    early = value.to("cpu", non_blocking=True)
    assert value.sum().item() == 3
    assert early.tolist() == [1, 1, 1]


def test_host_memory_that_is_not_filled_yet_cannot_be_sent_on():
    halfway = torch.ones(3, device="sim:0").to("cpu", non_blocking=True)
    with pytest.raises(sim.RaceError, match="has not filled yet"):
        halfway.to("sim:1", non_blocking=True)
    sim.current_stream(1).wait_stream(sim.current_stream(0))
    assert halfway.to("sim:1", non_blocking=True).tolist() == [1, 1, 1]


def test_the_current_stream_is_a_threads_own():
    side, seen = sim.Stream(0), []
    with sim.stream(side):
        thread = threading.Thread(target=lambda: seen.append(sim.current_stream(0)))
        thread.start()
        thread.join()
        assert sim.current_stream(0) is side
    assert seen == [sim.default_stream(0)]


def pinned(*values: float) -> torch.Tensor:
    return (
        accelerator_of(torch.device("sim", 0))
        .empty_on_host((len(values),), (1,), torch.float32)
        .copy_(torch.tensor(values))
    )


@pytest.mark.parametrize("send", ["to", "copy_"])
def test_a_copy_from_pinned_memory_reads_it_as_late_as_it_may(send):
    source = pinned(1, 1, 1)
    if send == "to":
        there = source.to("sim:0", non_blocking=True)
    else:
        there = torch.empty(3, device="sim:0").copy_(source, non_blocking=True)
    source.fill_(2)
    view = there[1:]
    source.fill_(3)
    assert (view + 0).tolist() == [3, 3]
    source.fill_(4)
    assert there.tolist() == [3, 3, 3]


@pytest.mark.parametrize("wait", ["event", "stream", "device", "query"])
def test_after_the_wait_pinned_memory_may_be_filled_again(wait):
    source = pinned(1, 1, 1)
    there = source.to("sim:0", non_blocking=True)
    current = sim.current_stream(0)
    {
        "event": current.record_event().synchronize,
        "stream": current.synchronize,
        "device": lambda: sim.synchronize(0),
        "query": current.query,
    }[wait]()
    source.fill_(2)
    assert there.tolist() == [1, 1, 1]


def test_copies_from_pinned_memory_arrive_in_the_order_of_their_stream():
    first, second = pinned(1, 1), pinned(2)
    there = torch.empty(2, device="sim:0")
    there.copy_(first, non_blocking=True)
    there[:1].copy_(second, non_blocking=True)
    there.mul_(2)
    there[1:].copy_(second, non_blocking=True)
    assert there.tolist() == [4, 2]


def test_a_blocking_copy_and_one_from_other_host_memory_read_it_at_once():
    source, pageable = pinned(1, 1, 1), torch.ones(3)
    there, also = source.to("sim:0"), pageable.to("sim:0", non_blocking=True)
    source.fill_(2)
    pageable.fill_(2)
    assert there.tolist() == also.tolist() == [1, 1, 1]


def test_a_copy_to_what_is_gone_comes_to_nothing():
    before = len(HOST.pending)
    there = pinned(1).to("sim:0", non_blocking=True)
    assert len(HOST.pending) == before + 1
    del there
    assert len(HOST.pending) == before


def test_memory_is_kept_by_a_stream_that_has_waited_for_its_use():
    """As on real devices, where an event is recorded on the stream when the memory is freed."""
    side, other = sim.Stream(0), sim.Stream(0)

    def use(wait: bool) -> None:
        value = torch.ones(3, device="sim:0")
        side.wait_stream(sim.current_stream(0))
        with sim.stream(side):
            value + 1
        value.record_stream(other)
        if wait:
            other.wait_stream(side)

    use(wait=True)
    torch.ones(1, device="sim:0")
    use(wait=False)
    with pytest.raises(sim.RaceError, match="freed while stream"):
        torch.ones(1, device="sim:0")


@given(st.data())
def test_parts_are_apart_only_if_they_share_no_element(data):
    storage = torch.zeros(4, 3, 6)

    def part() -> tuple[Region, set[int]]:
        view = storage
        for dim in range(3):
            start = data.draw(st.integers(0, storage.size(dim) - 1))
            view = view.narrow(dim, start, data.draw(st.integers(0, storage.size(dim) - start)))
        view = view.transpose(0, data.draw(st.integers(0, 2)))
        elements = torch.arange(storage.numel()).as_strided(view.size(), view.stride(), view.storage_offset())
        return region_of(view), set(elements.flatten().tolist())

    (one, ours), (other, theirs) = part(), part()
    assert not (are_apart(one, other) and ours & theirs)


def test_two_streams_may_fill_other_columns_of_one_buffer_but_not_the_same():
    whole = torch.zeros(4, 6, device="sim:0")
    sides = [sim.Stream(0) for _ in range(3)]
    for side, columns in zip(sides, ((0, 2), (2, 4), (3, 6)), strict=True):
        side.wait_stream(sim.current_stream(0))
        with sim.stream(side):
            copy = functools.partial(whole[:, slice(*columns)].copy_, torch.ones(4, columns[1] - columns[0]))
            if columns == (3, 6):
                with pytest.raises(sim.RaceError, match="writes a buffer"):
                    copy(non_blocking=True)
            else:
                copy(non_blocking=True)
    sim.current_stream(0).wait_stream(sides[0])
    with pytest.raises(sim.RaceError, match="wrote a part"):
        whole + 1
    sim.current_stream(0).wait_stream(sides[1])
    assert whole.sum().item() == 16


class Compared(tuple[Any, ...]):
    """A region; when it is compared with another one, something is done first."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def __eq__(self, other: object) -> bool:
        self.act()
        return super().__eq__(other)

    __hash__ = tuple.__hash__


def test_no_write_of_a_part_is_lost_where_another_thread_writes_one_meanwhile():
    whole, streams = torch.zeros(3, device="sim:0"), [sim.Stream(0) for _ in range(2)]
    for stream in streams:
        stream.wait_stream(sim.current_stream(0))
    first, second, third = ((index, (1,), (1,)) for index in range(3))
    again, write = Compared(second), whole._buffer.write
    write(streams[0], "a copy", first)
    write(streams[0], "a copy", again)
    other = threading.Thread(target=write, args=(streams[1], "a copy", third))

    def write_meanwhile() -> None:
        if other.ident is None:
            other.start()
            other.join(0.2)  # it ends only when the first write is noted

    again.act = write_meanwhile  # type: ignore[method-assign]
    write(streams[0], "a copy", second)
    other.join()
    assert {region for region, _, _ in whole._buffer.parts} == {first, second, third}


STREAMS = [sim.Stream(0) for _ in range(3)]


@dataclass
class Slot:
    """A buffer, with the events of its last write and of the reads since."""

    value: torch.Tensor
    written: sim.Event
    read: list[sim.Event] = field(default_factory=list)


@st.composite
def schedules(draw) -> list[tuple[str, int, int, int]]:
    """Steps (kind, stream, slot read, slot written) on three streams and four slots."""
    number = st.integers(0, 3)
    step = st.tuples(st.sampled_from(["op", "copy", "write", "reads"]), st.integers(0, 2), number, number)
    return draw(st.lists(step, min_size=1, max_size=12))


class Player:
    """Plays a schedule with every wait that it needs, except for those of the one step that are to be dropped."""

    def __init__(self, dropped: int | None = None) -> None:
        self.dropped = dropped
        self.waits = 0
        with sim.stream(STREAMS[0]):
            values = [torch.ones(2, device="sim:0") for _ in range(4)]
        sim.synchronize(0)
        event = STREAMS[0].record_event()
        self.slots = [Slot(value, event) for value in values]

    def play(self, schedule: list[tuple[str, int, int, int]]) -> None:
        try:
            for kind, stream, source, target in schedule:
                self.step(kind, STREAMS[stream], self.slots[source], self.slots[target])
        finally:
            sim.synchronize(0)

    def step(self, kind: str, stream: sim.Stream, source: Slot, target: Slot) -> None:
        reads, writes = kind != "write", kind != "reads"
        self.wait(stream, [source.written] * reads + [target.written, *target.read] * writes)
        with sim.stream(stream):
            self.act(kind, source.value, target.value)
        event = stream.record_event()
        if reads:
            source.read.append(event)
        if writes:
            target.written, target.read = event, []

    def wait(self, stream: sim.Stream, events: list[sim.Event]) -> None:
        needed = [one for one in events if not all(stream.has_waited(*mark) for mark in one.clock.items())]
        if needed and self.waits != self.dropped:
            for event in needed:
                stream.wait_event(event)
        self.waits += bool(needed)

    @staticmethod
    def act(kind: str, source: torch.Tensor, target: torch.Tensor) -> None:
        if kind == "op":
            target.add_(source)
        elif kind == "copy":
            target.copy_(source)
        elif kind == "write":
            target.zero_()
        else:
            source.sum()


@given(schedules())
def test_a_schedule_with_all_its_waits_never_races(schedule):
    Player().play(schedule)


@given(schedules(), st.integers(0, 30))
def test_a_schedule_in_which_one_step_does_not_wait_races(schedule, dropped):
    whole = Player()
    whole.play(schedule)
    if whole.waits:
        with pytest.raises(sim.RaceError):
            Player(dropped % whole.waits).play(schedule)
