"""Slots that are filled once for a phase: what is in them, when they are empty, and who waits for what."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError, WeightError
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.compiler.ir.staging import offsets
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import SimAccelerator, accelerator_of, has_memory
from dovetail.runtime.failures import let_go
from dovetail.runtime.store.kept import KeptLoad, Place
from dovetail.runtime.store.lane import lane_of
from dovetail.runtime.store.origins import origins_of
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.staging import Staging
from dovetail.runtime.store.store import Store
from dovetail.runtime.store.stored_weight import Numbers, StoredWeight

pytestmark = pytest.mark.usefixtures("sim_devices")
sim.enable()
SIM0 = torch.device("sim", 0)
X = torch.linspace(-1, 1, 4 * 64).reshape(4, 64)

Given = tuple[ProgramWeights, list[Weight], nn.Module]


@pytest.fixture(params=["memory", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """What gives the weights of a module, out of its tensors in pinned memory or out of a file."""
    monkeypatch.setattr(SimAccelerator, "host_view", lambda *_: None)  # as no other device has one
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval().requires_grad_(False)
    save_file(module.state_dict(), tmp_path / "m.safetensors")
    for tensor in module.parameters():
        tensor.data = accelerator_of(SIM0).pin(tensor.data)
    files = tmp_path / "m.safetensors" if request.param == "file" else None
    compiled = dovetail.compile(module, (X,), backend="sim0", weights=files, params_backend="disk" if files else "cpu")
    assert compiled._weights is not None
    assert not compiled._weights.missing(compiled.program)
    return compiled._weights, list(compiled.program.weights.values()), module


def sim0() -> Device:
    (device,) = Rig.parse("sim0=1GiB").devices
    return device


def test_what_was_started_is_there_when_it_was_awaited(source: Given) -> None:
    give, weights, module = source
    tensors = give.keep(weights, sim0(), 0).wait()
    assert all(torch.equal((one + 0).cpu(), module.get_parameter(weight.name))
               for weight, one in zip(weights, tensors, strict=True))  # fmt: skip


def test_what_was_not_awaited_must_not_be_used(source: Given) -> None:
    give, weights, _ = source
    load = give.keep(weights, sim0(), 0)
    load.settle()
    with pytest.raises(sim.RaceError):
        load._tensors[-1] + 1


def test_what_was_started_waits_for_nothing_that_the_device_computes(source: Given) -> None:
    give, weights, _ = source
    computing, bringing = sim.current_stream(0), accelerator_of(SIM0).side_stream("weights")
    computed = torch.ones(8, device=SIM0) + 1
    load = give.keep(weights, sim0(), 0)
    load.settle()
    assert not bringing.has_waited(computing.number, computing.now)
    load.wait()
    assert computed.sum().item() == 16


def test_a_slot_has_its_memory_when_it_is_started_and_none_when_it_was_emptied(source: Given) -> None:
    give, weights, _ = source
    before = sim.stats(0).in_use
    load = give.keep(weights, sim0(), 0)
    assert sim.stats(0).in_use - before == sum(weight.nbytes for weight in weights)
    load.wait()
    assert sim.stats(0).in_use - before == sum(weight.nbytes for weight in weights)
    del load
    end_phase(give)
    assert sim.stats(0).in_use == before


def test_a_filled_slot_is_not_filled_again_and_each_stream_waits_for_it(source: Given) -> None:
    give, weights, _ = source
    first = give.keep(weights, sim0(), 0)
    first.settle()
    sent = sim.stats(0).bytes_in
    there = accelerator_of(SIM0)
    with there.use(there.side_stream("another")):
        again = give.keep(weights, sim0(), 0)
        assert again is first
        assert [(one + 1).shape for one in again.wait()] == [weight.shape for weight in weights]
    assert sim.stats(0).bytes_in == sent


def end_phase(give: ProgramWeights) -> None:
    give._staging.drop()
    for one in (give._found or {}).values():
        one.leave_slots()


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_slot_is_empty_after_a_filling_that_failed(
    source: Given, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    give, weights, module = source
    real, before, tries = give.store.land, sim.stats(0).in_use, iter([None, None])

    def land(*args: Any) -> None:
        if next(tries, kind) is kind:
            raise kind
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(give.store, "land", land)
        load = give.keep(weights, sim0(), 0)
        with pytest.raises(kind) as raised:
            load.wait()
        let_go([], raised.value)  # as the executor does
    assert not give.is_filled(sim0(), 0)
    with pytest.raises(WeightError, match="failed in another call"):
        load.wait()
    del load
    assert sim.stats(0).in_use == before
    tensors = give.keep(weights, sim0(), 0).wait()
    assert torch.equal((tensors[0] + 0).cpu(), module.get_parameter(weights[0].name))


def test_two_threads_that_find_a_slot_empty_fill_it_once(source: Given) -> None:
    give, weights, module = source
    sent, both, found = sim.stats(0).bytes_in, threading.Barrier(2), list[KeptLoad]()

    def use() -> None:
        both.wait()
        load = give.keep(weights, sim0(), 0)
        tensors = load.wait()
        assert torch.equal((tensors[0] + 0).cpu(), module.get_parameter(weights[0].name))
        found.append(load)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found[0] is found[1]
    assert sim.stats(0).bytes_in - sent == sum(weight.nbytes for weight in weights)


def test_a_forked_process_has_its_slots_empty(source: Given) -> None:
    give, weights, _ = source
    give.keep(weights, sim0(), 0).wait()
    child = os.fork()
    if not child:
        os._exit(give.is_filled(sim0(), 0))
    assert os.waitpid(child, 0)[1] == 0
    assert give.is_filled(sim0(), 0)


CHANGES: dict[str, Callable[[Store, StoredWeight], object]] = {
    "write": lambda store, one: store.write(one).add_(1),
    "exchange": lambda store, one: store.exchange(one, nn.Parameter(one.tensor + 1)),
    "forget": lambda store, one: store.forget_parts(one),
    "release": lambda store, one: store.release([one]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_filled", [True, False])
def test_a_slot_is_empty_when_a_weight_in_it_was_changed(change: str, is_filled: bool) -> None:
    component = Shared(2)
    give = component.program([[0, 1]])
    held = threading.Event()
    real = give.store.land
    if not is_filled:
        give.store.land = lambda *args: (held.wait(), real(*args))  # type: ignore[method-assign, func-returns-value, assignment]
    load = give.keep(component.weights[:2], component.device, 0)
    if is_filled:
        load.wait()
    CHANGES[change](component.store, component.stored[1])
    held.set()
    load.settle()
    assert not give.is_filled(component.device, 0)
    assert not component.stored[1].staged
    give.store.land = real  # type: ignore[method-assign]
    tensors = give.keep(component.weights[:2], component.device, 0).wait()
    assert torch.equal((tensors[1] + 0).cpu(), component.stored[1].tensor)


class Shared:
    """Weights of a component in host memory, which several programs read; no sizes have the same sum."""

    def __init__(self, given: int | Sequence[torch.Tensor]) -> None:
        self.store, self.staging, self.device = Store(), Staging(), sim0()
        numbered = [torch.full((2**index, 4), float(index)) for index in range(given if isinstance(given, int) else 0)]
        tensors = [nn.Parameter(one, False) for one in (numbered if isinstance(given, int) else given)]
        self.weights = [
            Weight(f"w{index}", "parameter", tuple(one.shape), one.dtype, frozen=True)
            for index, one in enumerate(tensors)
        ]
        self.stored = [
            StoredWeight(weight.name, one, owner="net", residency=Residency.HOST)
            for weight, one in zip(self.weights, tensors, strict=True)
        ]

    def program(self, kept: Sequence[Sequence[int]], others: Sequence[int] = ()) -> ProgramWeights:
        """What gives a program its weights that keeps some in slots, and reads others."""
        read = sorted({number for some in (*kept, others) for number in some})
        weights = {self.weights[number].name: self.weights[number] for number in read}
        loads = [tuple(self.weights[number].name for number in some) for some in kept]
        program: Any = SimpleNamespace(
            name="net",
            weights=weights,
            constants={},
            devices=(self.device,),
            main=self.device,
            home=dict.fromkeys(weights, self.device),
            residency=dict.fromkeys(weights, Residency.HOST),
            bounds={},
            weight_nodes=lambda: [SimpleNamespace(name=name, users=()) for name in weights],
            weight=lambda node: weights[node.name],
            schedule=[Load(slot, names, self.device, Lifetime.PHASE, slot) for slot, names in enumerate(loads)],
        )
        found = {one.name: one for one in self.stored}
        give = ProgramWeights(self.store, program, lambda: found, staging=self.staging)
        assert not give.missing(program)
        return give


@contextmanager
def called(give: ProgramWeights) -> Iterator[list[list[torch.Tensor]]]:
    """A call of a program that awaits all its loads."""
    with give.call({}):
        yield [
            give.keep([give._program.weights[name] for name in one.weights], one.device, one.slot).wait()
            for one in give._program.schedule or ()
            if isinstance(one, Load)
        ]


NUMBERS = st.integers(0, 5)
PROGRAMS = st.lists(
    st.tuples(st.lists(st.lists(NUMBERS, min_size=1, max_size=3, unique=True), max_size=3), st.lists(NUMBERS)),
    min_size=1,
    max_size=3,
)


@given(PROGRAMS, st.lists(st.one_of(st.integers(0, 2), st.none()), max_size=8))
def test_programs_of_a_component_bring_what_no_slot_has_and_leave_what_they_read_and_do_not_keep(
    programs: list[tuple[list[list[int]], list[int]]], turns: list[int | None]
) -> None:
    component = Shared(6)
    gives = [component.program(*one) for one in programs]
    there, last = set[int](), None
    start = sim.stats(0).in_use
    for turn in turns:
        if turn is None:
            end_phase(gives[0])
            for one in component.stored:
                one.leave_slots()
            there = set()
            continue
        number = turn % len(gives)
        kept, others = {one for some in programs[number][0] for one in some}, programs[number][1]
        if number != last:
            there -= {*others} - kept
        last = number
        sent = sim.stats(0).bytes_in
        with called(gives[number]) as loads:
            assert sim.stats(0).bytes_in - sent == sum(component.weights[one].nbytes for one in kept - there)
            for some, tensors in zip(programs[number][0], loads, strict=True):
                assert all(bool((one == float(index)).all()) for index, one in zip(some, tensors, strict=True))
        loads = tensors = []
        there |= kept
        assert sim.stats(0).in_use - start == sum(component.weights[one].nbytes for one in there)


def test_where_there_is_no_room_the_weight_is_named_and_the_slot_is_empty_and_takes_nothing() -> None:
    component = Shared(6)
    give, start = component.program([range(6)]), sim.stats(0).in_use
    sim.enable({0: start + sum(one.nbytes for one in component.weights) - 1})
    with pytest.raises(DoesNotFitError, match=r"^weight w5 of net needs 512 B on sim0: .*: list more devices, or give"):
        give.keep(component.weights, component.device, 0)
    assert not give.is_filled(component.device, 0)
    assert sim.stats(0).in_use == start
    sim.enable({0: start + sum(one.nbytes for one in component.weights)})
    assert len(give.keep(component.weights, component.device, 0).wait()) == 6


def test_on_the_host_a_slot_has_the_weight_itself_and_takes_no_memory() -> None:
    component = Shared(2)
    (host,) = Rig.parse("cpu=1GiB").devices
    give = component.program([[0, 1]])
    component.stored[1].residency = Residency.DISK  # though it lies in no file
    tensors = give.keep(component.weights, host, 0).wait()
    assert [one.data_ptr() for one in tensors] == [one.tensor.data_ptr() for one in component.stored]


@st.composite
def laid_out(draw: st.DrawFn) -> torch.Tensor:
    """A tensor with its dimensions in any order in memory, many of them of one, and perhaps cut out of another."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3]), max_size=5))
    order = draw(st.permutations(range(len(sizes))))
    within = [size + draw(st.integers(0, 1)) for size in sizes]
    whole = torch.randn(within).permute(order)
    return whole[tuple(slice(sizes[axis]) for axis in order)]


@given(st.lists(laid_out(), min_size=1, max_size=4))
def test_weights_that_come_have_the_strides_of_copies_also_of_dimensions_of_one(tensors: list[torch.Tensor]) -> None:
    component = Shared(tensors)
    give, wanted = component.program([range(len(tensors))]), [torch.empty_like(one).stride() for one in tensors]
    kept = give.keep(component.weights, component.device, 0).wait()
    assert [one.stride() for one in kept] == wanted
    with give.call({component.device: [offsets(component.weights)[1]]}):
        load = give.stage(component.weights, component.device, 0)
        staged = load.wait()
        assert [one.stride() for one in staged] == wanted
        assert all(torch.equal((one + 0).cpu(), tensor) for one, tensor in zip(staged, tensors, strict=True))
        load.release()
    assert all(torch.equal((one + 0).cpu(), tensor) for one, tensor in zip(kept, tensors, strict=True))


class EmptiedFirst(dict[Place, KeptLoad]):
    """Has each load be empty just before it is noted, as the lane or another thread may."""

    def __setitem__(self, place: Place, load: KeptLoad) -> None:
        load.empty()
        super().__setitem__(place, load)


def test_a_load_that_is_emptied_before_it_is_noted_fills_no_slot() -> None:
    component = Shared(2)
    give = component.program([[0, 1]])
    give._slots._filled = EmptiedFirst()
    first = give.keep(component.weights, component.device, 0)
    assert not give.is_filled(component.device, 0)
    give._slots._filled = {}
    again = give.keep(component.weights, component.device, 0)
    assert again is not first
    give._slots._filled[component.device, 0] = first
    assert not give.is_filled(component.device, 0)
    assert give.keep(component.weights, component.device, 0) is not first
    give._slots._filled[component.device, 0] = again
    give._slots.leave((component.device, 0), first)
    assert give.is_filled(component.device, 0)


class Held:
    """Holds the lane before it fills what is on its way, and has it fail so many times then."""

    def __init__(self, store: Store, failures: int = 0) -> None:
        self._go, self._failures, self._land = threading.Event(), failures, store.land
        store.land = self  # type: ignore[method-assign, assignment]

    def __call__(self, *args: Any) -> None:
        self._go.wait(20)  # no longer, for other tests need the lane
        self._failures -= 1
        if self._failures >= 0:
            raise OSError
        self._land(*args)

    def go(self) -> None:
        """Has the lane go on."""
        self._go.set()


@pytest.mark.parametrize("what", ["is filled", "fails", "is emptied"])
def test_what_is_on_its_way_is_not_brought_again_for_another_program(what: str) -> None:
    component = Shared(3)
    first, second = component.program([[0, 1]]), component.program([[1, 2]])
    idle = threading.Event()
    lane_of(component.device.torch).submit(idle.set)
    assert idle.wait(10), "what other tests have left on the lane"
    start, sent = sim.stats(0).in_use, sim.stats(0).bytes_in
    held = Held(component.store, failures=what == "fails")
    loads = [give.keep(component.weights[at : at + 2], component.device, 0) for at, give in enumerate((first, second))]
    assert sim.stats(0).in_use - start == sum(one.nbytes for one in component.weights)
    if what == "is emptied":
        component.store.release(component.stored[:1])
    held.go()
    assert [float(one.cpu().unique()) for one in loads[1].wait()] == [1.0, 2.0]
    assert first.is_filled(component.device, 0) is (what == "is filled")
    assert second.is_filled(component.device, 0)
    if what != "fails":
        tensors = loads[0].wait() + loads[1].wait()
        assert tensors[1].data_ptr() == tensors[2].data_ptr()
        assert sim.stats(0).bytes_in - sent == sum(one.nbytes for one in component.weights)
        del tensors
    del loads
    component.store.release(component.stored)
    assert sim.stats(0).in_use == start


def test_what_was_on_its_way_before_it_was_changed_is_brought_again() -> None:
    component = Shared(1)
    first, second = component.program([[0]]), component.program([[0]])
    held = Held(component.store)
    first.keep(component.weights, component.device, 0)
    component.store.exchange(component.stored[0], nn.Parameter(torch.full((1, 4), 9.0), False))
    load = second.keep(component.weights, component.device, 0)
    held.go()
    assert load.wait()[0].cpu().unique().tolist() == [9.0]


def test_a_forked_process_brings_what_was_on_its_way() -> None:
    component = Shared(1)
    first, second = component.program([[0]]), component.program([[0]])
    land, held = component.store.land, Held(component.store)
    load = first.keep(component.weights, component.device, 0)
    child = os.fork()
    if not child:
        signal.alarm(30)  # where it waits for ever
        component.store.land = land  # type: ignore[method-assign]
        found = [give.keep(component.weights, component.device, 0).wait()[0].cpu() for give in (second, first)]
        os._exit(not all(torch.equal(one, component.stored[0].tensor) for one in found))
    assert os.waitpid(child, 0)[1] == 0
    held.go()
    assert torch.equal(load.wait()[0].cpu(), component.stored[0].tensor)


def test_a_call_that_fails_waits_for_what_was_emptied_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    component = Shared(1)
    give, held, settle = component.program([[0]]), Held(component.store), KeptLoad.settle
    monkeypatch.setattr(KeptLoad, "settle", lambda load: (held.go(), settle(load)))
    with pytest.raises(ValueError, match="of the call"), give.call({}):
        load = give.keep(component.weights, component.device, 0)
        component.store.release(component.stored)
        raise ValueError("of the call")
    has_arrived = load._ready.is_set()
    held.go()
    assert has_arrived


def test_a_number_of_an_adapter_is_held_against_what_was_traced() -> None:
    component = Shared(1)
    give = component.program([[0]])
    component.weights.append(Weight("scale", "adapter", (), torch.float64))
    for wrong in (torch.tensor(0.5), torch.ones(3, dtype=torch.float64)):
        give.adapters.exchange({"scale": wrong})
        with pytest.raises(WeightError, match=r"weight scale is .*, but the program was traced with torch.float64\[\]"):
            give.keep(component.weights, component.device, 0)
    give.adapters.exchange({"scale": torch.tensor(0.5, dtype=torch.float64)})
    assert give.keep(component.weights, component.device, 0).wait()[1].item() == 0.5


def test_a_view_of_a_file_has_the_strides_of_dimensions_of_one(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4, 1, 1).as_strided((4, 4, 1, 1), (4, 1, 4, 4))
    save_file({"w0": tensor}, tmp_path / "m.safetensors")
    origin = origins_of(WeightIndex.of_file(tmp_path / "m.safetensors"))["w0"]
    component = Shared([torch.empty_like(tensor, device="meta")])
    component.stored[0] = replace(component.stored[0], numbers=Numbers(origin=origin), residency=Residency.DISK)
    (host,) = Rig.parse("cpu=1GiB").devices
    (found,) = component.program([[0]]).keep(component.weights, host, 0).wait()
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)
    assert not has_memory(found)
