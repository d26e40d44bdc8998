"""Where nodes go, and where the graph is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import PassError
from dovetail.compiler.ir.aliasing import writes
from dovetail.compiler.ir.program import Program, device_of, placement_of, tensors_of, value_of
from dovetail.compiler.ir.split import first_reader, maker_of, source_of
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.placement.cut import Cut
from dovetail.passes.verify.deep import verify_deep
from tests.laws.oracles import contents

from .sample import DEVICES, RIG, program_of, sample

PINNED = "simplify,blocks,place{shares=1:1:1},pin"


def ops(program: Program, name: str) -> list[torch.fx.Node]:
    return [node for node in program.ops() if str(node.target).startswith(f"aten.{name}.")]


class Chain(nn.Module):
    """Three layers, an activation between, and a weight that is stored transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        for block in self.blocks:
            x = torch.relu(block(x))
        return (x @ self.table.T).view(-1) * 2


class UNet(nn.Module):
    """Every result of the way down is read on the way up, by two layers on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.blocks[:3]:
            x = block(x)
            skips.append(x)
        for block in self.blocks[3:]:
            x = block(x + skips[0] + skips[1])
        return x


def chain() -> Program:
    return program_of(Chain(), (torch.randn(2, 8),), PINNED)


def test_what_precedes_the_first_weight_is_on_the_main_device() -> None:
    program = chain()
    assert device_of(next(program.ops())) == program.main
    assert all(device_of(node) == program.main for node in (*program.inputs(), program.output))


def test_a_node_without_weights_stays_where_the_weight_consumed_last_is() -> None:
    program = chain()
    linears, relus = ops(program, "linear"), ops(program, "relu")
    assert [device_of(node) for node in linears] == list(DEVICES)
    assert [device_of(node) for node in relus] == [program.main, *DEVICES]


def test_a_weight_is_consumed_through_a_transposition_which_stays_at_its_home() -> None:
    program = chain()
    (transposed,), (product,), (view,) = ops(program, "numpy_T"), ops(program, "matmul"), ops(program, "view")
    assert device_of(transposed) == program.home["table"] == program.main
    assert placement_of(product).weights == ("table",)
    assert device_of(product) == device_of(view) == program.main


def test_memory_that_is_written_stays_on_one_device_with_all_its_views() -> None:
    program = sample(PINNED)
    (zeros,) = ops(program, "zeros")
    storage = tensors_of(zeros)[0].storage
    on = {device_of(n) for n in program.ops() if storage in {tensor.storage for tensor in tensors_of(n)}}
    assert on == {program.main}
    assert len({device_of(node) for node in ops(program, "linear")}) > 1


def test_a_number_asked_of_a_tensor_is_where_the_tensor_is() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            first = x
            for block in self.blocks:
                x = block(x)
            return x.view(first.shape[0] * 8), first.shape[0]

    from dovetail.compiler.frontend.trace import trace
    from dovetail.passes.pipeline import default_passes

    program = trace(Sized(), (torch.randn(3, 8),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2, max=64)}})
    program.rig = RIG.only(DEVICES[:2])
    PassManager(default_passes((1.0, 1.0))).run(program)
    (asked,) = ops(program, "sym_size")
    assert device_of(asked) == program.main
    assert all(tensors_of(source_of(transfer)) for transfer in program.transfers())


def test_a_skip_crosses_once_to_each_device_that_reads_it() -> None:
    program = program_of(UNet(), (torch.randn(2, 8),), f"{PINNED},hoist,cut")
    crossed = Counter((source_of(transfer), device_of(transfer)) for transfer in program.transfers())
    assert set(crossed.values()) == {1}
    first = ops(program, "linear")[0]
    brought = [transfer for transfer in program.transfers() if source_of(transfer) is first]
    assert {target for value, target in crossed if value is first} == set(DEVICES) - {device_of(first)}
    assert all({device_of(reader) for reader in one.users} == {device_of(one)} for one in brought)
    assert sum(len(one.users) for one in brought) > len(brought) == 2


def test_segments_are_maximal_and_number_the_nodes_in_order() -> None:
    program = program_of(UNet(), (torch.randn(2, 8),), f"{PINNED},hoist,cut")
    assert [segment.device for segment in program.segments] == list(DEVICES)
    assert [placement_of(node).segment for node in program.ops()] == sorted(
        placement_of(node).segment or 0 for node in program.ops()
    )


def test_a_value_that_is_written_between_two_readings_crosses_once_in_each_content() -> None:
    program = sample(f"{PINNED},hoist,cut")
    known = contents(program)
    states = [(source_of(one), device_of(one), times) for one, times in known.items() if times]
    assert len(states) == len(set(states)) >= 2
    assert all(writes(maker_of(one)) for one, times in known.items() if times), "each stands behind the last write"
    for transfer in program.transfers():
        producer, consumer = (placement_of(one).segment for one in (maker_of(transfer), first_reader(transfer)))
        if producer is not None and consumer is not None:
            assert producer < consumer


class Modulated(nn.Module):
    """The second layer reads some of four parts of what the first one makes, each ``times`` as often."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(2, 2)])
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        parts = self.blocks[0](x).chunk(4, -1)
        y = self.blocks[1](parts[0])
        for part in parts[1 : self.parts]:
            y = y * part + part
        return y


@pytest.mark.parametrize(("parts", "crossing"), [(1, 1), (3, 3), (4, 1)])
def test_parts_that_are_no_fewer_bytes_than_their_base_cross_as_that_and_are_viewed_there(
    parts: int, crossing: int
) -> None:
    module, x = Modulated(parts), torch.randn(3, 8)
    compiled = dovetail.compile(
        module, (x,), device_map={"blocks.0": "sim0", "blocks.1": "sim1"}, rig="sim0=1MiB,sim1=1MiB"
    )
    there = [one for one in compiled.program.transfers() if device_of(one).name == "sim1"]
    assert len(there) == crossing
    assert sum(tensor.nbytes for one in there for tensor in tensors_of(one)) == 3 * 4 * (
        2 * parts if crossing > 1 or parts == 1 else 8
    )
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    assert verify_deep(compiled.program) == len(list(compiled.program.ops()))


@pytest.mark.fifth
@pytest.mark.parametrize(
    "use",
    [
        lambda h: h.add_(1.0)[1:3].as_strided((1, 8), (8, 1), 8) * 2 + h[1:3].as_strided((2, 8), (8, 1), 8)[:1],
        lambda h: [(g := h * 2), (v := g[None]), g.unsqueeze_(0), v + g][-1],
        lambda h: (z := torch.complex(h, 2 * h).conj()).imag[:, :4].sum() + z.imag[:, 4:],
        lambda h: [v := h, *(v := v.t() for _ in range(1100)), v.t()[:, :8] + v.t()[:, :8]][-1],
    ],
    ids=["as_strided", "reshaped in place", "conj", "a long chain"],
)
def test_views_of_every_kind_cross_right(use: Callable[[Tensor], Tensor]) -> None:
    """Some name memory by its place, some are of a value that has another shape by then; a chain may be long."""

    class Used(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            found = use(self.blocks[0](x))
            return self.blocks[1](found.reshape(-1)[:8]) + found.sum()

    module, x = Used(), torch.randn(4, 8)
    compiled = dovetail.compile(
        module, (x,), device_map={"blocks.0": "sim0", "blocks.1": "sim1"}, rig="sim0=1MiB,sim1=1MiB"
    )
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    assert verify_deep(compiled.program)


def test_a_base_that_is_written_between_two_readings_of_its_parts_crosses_for_each() -> None:
    class Written(Modulated):
        def forward(self, x: Tensor) -> Tensor:
            made = self.blocks[0](x)
            first, second = made.chunk(2, -1)
            y = self.blocks[1](first[:, :2]) * first[:, 2:] + second[:, :2] * second[:, 2:]
            made.mul_(2)
            return y * first[:, :2] + first[:, 2:] + second[:, :2] + second[:, 2:]

    module, x = Written(4), torch.randn(3, 8)
    compiled = dovetail.compile(
        module, (x,), device_map={"blocks.0": "sim0", "blocks.1": "sim1"}, rig="sim0=1MiB,sim1=1MiB"
    )
    there = [one for one in compiled.program.transfers() if device_of(one).name == "sim1"]
    assert [value_of(one).shape for one in there] == [(3, 8), (3, 8)]  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


def test_a_program_on_one_device_has_one_segment_and_no_crossings() -> None:
    program = program_of(UNet(), (torch.randn(2, 8),), "simplify,blocks,place,pin,hoist,cut", devices=1)
    assert len(program.segments) == 1
    assert not list(program.transfers())


def test_a_cut_program_is_not_cut_again() -> None:
    program = sample()
    with pytest.raises(PassError, match="pass cut refuses one that is cut"):
        PassManager([Cut()]).run(program)


class Rotary(nn.Module):
    """Every block reads a view of one table that the module made for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.register_buffer("angles", torch.linspace(0, 1, 24).reshape(3, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x) * self.angles[index % 2] + self.angles.to(torch.float64)[2].float()
        return x + self.angles.sum()


def test_a_table_that_every_block_reads_draws_none_of_them_back() -> None:
    torch.manual_seed(0)
    module, x = Rotary().eval(), torch.ones(2, 8)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1&sim2")
    assert [segment.device.name for segment in compiled.program.segments] == ["sim0", "sim1", "sim2"]
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
