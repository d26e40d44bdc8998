"""Where the wholes of split results are gathered: on each device that reads them, in memory that fits; forged plans."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail import CompiledModule
from dovetail.compiler.errors import DoesNotFitError, ProgramTextError, VerificationError
from dovetail.compiler.ir.program import Program, placement_of
from dovetail.compiler.ir.schedule import Allocate, Copy
from dovetail.compiler.ir.split import assembles, original
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.analysis.memory_needs import needs_of
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.placement.assignment import arranged
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.verify.verifier import verify

Use = Callable[[nn.ModuleList, Tensor], Tensor]
BATCH = 16

pytestmark = pytest.mark.usefixtures("clean_sims")


class Block(nn.Module):
    def __init__(self, use: Use) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.layers, x)


def chained(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[2](layers[1](layers[0](x)))  # type: ignore[no-any-return]


def crossed(layers: nn.ModuleList, x: Tensor) -> Tensor:
    one, two = layers[0](x), layers[1](x)
    return layers[2](torch.tanh(one) * two) + layers[2](one)  # type: ignore[no-any-return]


def together(layers: nn.ModuleList, x: Tensor) -> Tensor:
    one, two = layers[0](x), layers[1](x)
    return layers[2](one) + layers[2](two)  # type: ignore[no-any-return]


def rewritten(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """The whole is read by a matmul first, and written then."""
    y = layers[0](x)
    z = layers[1](y)
    y.add_(1)
    return z + layers[2](y)  # type: ignore[no-any-return]


USES = {use.__name__: use for use in (chained, crossed, together, rewritten)}
SHARES = ([1, 1, 1], [1, 2, 1], [0, 1, 1], [3, 0, 1])


def model(use: Use) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(use), Block(use)).eval()


def compiled(
    module: nn.Module, shares: list[int], rig: str = "sim0=64MiB,sim1=64MiB,sim2=64MiB", **kw: Any
) -> CompiledModule:
    x = torch.linspace(-1, 1, BATCH * 8 * 256).reshape(BATCH, 8, 256)
    gc.collect()
    return dovetail.compile(
        module, (x,), backend="sim0&sim1&sim2", rig=rig, split_mode="row", tensor_split=shares, **kw
    )


@pytest.mark.fifth
@pytest.mark.few(12, quick=5)
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_row_split_runs_in_exactly_what_it_needs(use: Use, shares: list[int], is_dynamic: bool) -> None:
    module, needs = model(use), dict[str, int]()

    def note(step: Any, program: Program, change: object) -> None:
        if step.name == "rows":
            copy = arranged(program)
            found = needs_of(copy, copy.places(), finest=True)
            needs.update({str(device): max(need.total, 1) for device, need in found.items()})

    options: dict[str, Any] = {"callbacks": [note]}
    if is_dynamic:
        options["dynamic_shapes"] = {"input": {0: torch.export.Dim("batch", min=1, max=64)}}
    compiled(module, shares, **options)
    rig = {name: f"{name}={nbytes}B" for name, nbytes in needs.items()}
    one = compiled(module, shares, ",".join(rig.values()), **options)
    x = torch.randn(BATCH, 8, 256)
    with torch.no_grad():
        expected = module(x.clone())
    assert torch.allclose(one(x), expected, rtol=1e-4, atol=1e-5)
    assert {str(device): usage.total for device, usage in simulate(one.program).items()} == {
        name: nbytes if nbytes > 1 else 0 for name, nbytes in needs.items()
    }
    one.unload()
    name, nbytes = max(needs.items(), key=lambda item: item[1])
    with pytest.raises(DoesNotFitError):
        compiled(module, shares, ",".join({**rig, name: f"{name}={nbytes - 1}B"}.values()), **options)


def test_each_device_gathers_for_itself_what_it_reads_and_nothing_goes_over_the_main_one() -> None:
    program = compiled(model(chained), [1, 1, 1]).program
    groups = [placement_of(one).group for one in program.transfers() if assembles(one)]
    assert groups == [program.devices] * 5 + [program.devices[:1]], (
        "six matmuls, of which the result is on the main one"
    )
    whole = BATCH * 8 * 256 * 4
    assert crossing_bytes(program) < 2 * 3 * (whole * 2 + 2 * whole // 3), "less than there and back for each matmul"
    assert len(program.segments) == 1, "a segment ends where the group changes"
    assert program.schedule is not None
    for copy in (one for one in program.schedule.flat() if isinstance(one, Copy) and one.landings):
        assert original(copy.value.node) is copy.sent.node, "parts come from where they were made"


def test_a_whole_that_the_main_device_alone_reads_takes_its_parts_as_they_are_made() -> None:
    schedule = compiled(model(lambda layers, x: layers[0](x).softmax(-1)), [1, 1, 1]).schedule
    places = [index for index, one in enumerate(schedule) if isinstance(one, Allocate)]
    assert all(schedule.instructions[index].device == schedule.instructions[0].device for index in places)  # type: ignore[union-attr]
    assert not any(isinstance(one, Copy) and one.landings for one in schedule), "steps send them"


def test_on_no_device_of_a_group_a_value_is_of_a_dtype_that_it_lacks() -> None:
    module = model(chained).double()
    x = torch.randn(2, 3, 256, dtype=torch.float64)
    with pytest.raises(VerificationError, match="is float64, which mps does not have"):
        dovetail.compile(
            module, (x,), backend="cpu&mps", rig="cpu=1GiB,mps=1GiB", split_mode="row", tensor_split=[1, 1]
        )


def written() -> str:
    """The text of a program in which a whole is written on the main device and read there and on others."""
    return print_program(compiled(model(rewritten), [1, 1, 1]).program)


def plain() -> str:
    return print_program(compiled(model(lambda layers, x: layers[1](layers[0](x)).softmax(-1)), [1, 1, 1]).program)


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"%{start}:"))


def edited(text: str, name: str, old: str, new: str) -> str:
    line = line_of(text, name)
    assert old in line
    return text.replace(line, line.replace(old, new, 1))


def memory_of(name: str) -> str:
    """What says in the text in which memory a value lies."""
    return "~" + line_of(plain(), name).partition("~")[2].split()[0]


FORGED = {
    "a member that reads nothing": lambda: edited(plain(), "linear_1_whole", " @sim0", " @sim0+sim1"),
    "a member that is missing": lambda: edited(plain(), "linear_whole", "@sim0+sim1+sim2", "@sim0+sim1"),
    "another order of members": lambda: edited(plain(), "linear_whole", "@sim0+sim1+sim2", "@sim1+sim0+sim2"),
    "an operation on a group": lambda: edited(plain(), "softmax", " @sim0 ", " @sim0+sim1 "),
    "a term of a sum": lambda: edited(plain(), "softmax", " #1", " #1 partial"),
    "a term in the place of a part": lambda: edited(plain(), "linear", "split 2 [0:85, 85:171, 171:256]", "partial"),
    "a whole that is a part": lambda: edited(plain(), "linear_whole", "@sim0+sim1+sim2", "@sim0+sim1+sim2 partial"),
    "the memory of an input": lambda: edited(plain(), "linear_whole", memory_of("linear_whole"), memory_of("input")),
    "a written whole on all": lambda: edited(written(), "linear_whole", " @sim0", " @sim0+sim1+sim2"),
}


@pytest.mark.fifth
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_plan_is_refused_before_anything_is_made_of_it(forged: Callable[[], str]) -> None:
    program = parse_program(forged())
    with pytest.raises(VerificationError):
        verify(program)


@pytest.mark.parametrize("more", [" partial", "+sim1", " and more"])
def test_nothing_behind_the_device_of_an_input_or_a_weight_is_dropped(more: str) -> None:
    text = plain()
    for line in (line_of(text, "input"), line_of(text, "p_0_layers_1_weight")):
        head, sign, tail = line.partition(" @sim0")
        assert sign
        with pytest.raises(ProgramTextError):
            parse_program(text.replace(line, f"{head}{sign}{more}{tail}"))
    again = parse_program(text)
    verify(again)
    assert PassManager([Lower()]).run(again).schedule is not None
