"""Components that no trace takes whole are planned by their parts, with and without weights, on one device too."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler.errors import NotHereError
from dovetail.compiler.spec.residency import Residency
from dovetail.components import alike
from dovetail.components.weights.module_view import ModuleView
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.runtime import sim
from tests.dovetail.components.small_pipeline import WIDTH, Block, Model, Numpy, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

STEPS = 4
RIGS = (
    {"rig": "sim0=1GiB"},
    {"rig": "sim0=60KiB,cpu=4GiB", "backend": "sim0", "params_backend": "diffusion=cpu"},
    {"rig": "sim0=1GiB,sim1=1GiB", "backend": "sim0&sim1"},
)
"""All weights on one device, weights that come and go, and two devices."""


class Steps(Pipeline):
    """Calls its component in steps, each on what the one before gave."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        for _ in range(STEPS):
            x = self.unet(x)
        return x


class Experts(Block):
    """A block that hands rows to one of two layers by their values, so that their lengths are not known before."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU()) for _ in range(2))

    def between(self, x: Tensor) -> Tensor:
        chosen, made = (x.sum(-1) > 0).long(), torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().flatten()
            if len(rows) > 1:
                made[rows] = expert(x[rows])
        return made


class Attending(Block):
    """A block that looks at a value, with attention that reads the weights of a part of it without calling that."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return super().forward(self.attention(x, x, x)[0])


class Reading(Numpy):
    """A block that reads a parameter of a part itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gamma = dict(self.norm.named_parameters()).popitem()[1]
        return super().forward(x * gamma + gamma)


class Turning(Model):
    """Calls another layer at every second call."""

    def forward(self, x: Tensor) -> Tensor:
        self.is_odd = not getattr(self, "is_odd", False)
        if x.sum() > 1e9:
            return x
        made: Tensor = (self.first if self.is_odd else self.last)(x)
        return made


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def made(kind: type[Block] = Numpy, cls: type[Model] = Model) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return cls(kind).eval(), torch.randn(6, WIDTH)


def planned(model: Model, x: Tensor, **asked: Any) -> Any:
    """The account of a plan."""
    dry = DryPipeline(Steps(model), asked)
    plan = dry(x)
    assert plan is not None
    return dry.account(plan)


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("asked", [{"rig": "cuda0=1GiB,cpu=4GiB"}, {"rig": "cuda0=1GiB,cuda1=1GiB"}, *RIGS])
def test_all_of_a_component_that_runs_by_its_parts_is_in_the_plan(asked: dict[str, str]) -> None:
    model, x = made()
    account = planned(model, x, **asked)
    (part,) = account.shown
    assert (part.title, part.programs) == ("unet", 10)
    assert {one.call.times for one in account.parts} == {STEPS}
    weights = sum(tensor.nbytes for tensor in model.parameters())
    own = model.shift.nbytes + sum(block.scale.nbytes for block in model.blocks)  # which no part reads
    assert weights - own <= sum(row.weights + row.streamed for row in part.rows) <= weights
    assert part.seconds == pytest.approx(account.seconds)
    assert account.seconds > 0
    assert [row[0] for row in account.rows()] == ["unet", *[""] * (len(part.rows) - 1)]
    facts = account.document()["components"]["unet"]
    assert (facts["class"], facts["programs"], facts["calls"]) == ("Model", 10, STEPS)


@pytest.mark.fifth
@pytest.mark.few(4, quick=2)
@pytest.mark.parametrize("kind", [Numpy, Experts, Attending, Reading])
@pytest.mark.parametrize("asked", RIGS)
def test_it_computes_the_bits_of_eager_and_takes_what_was_planned(asked: dict[str, Any], kind: type[Block]) -> None:
    model, x = made(kind)
    with torch.no_grad():
        expected = Steps(copy.deepcopy(model))(x)
    pipe = Steps(model)
    rig = asked["rig"] if issubclass(kind, Numpy) else asked["rig"].replace("60KiB", "200KiB")
    dovetail.compile_pipeline(pipe, **{**asked, "rig": rig})
    plan = pipe.dovetail.plan(x)
    assert torch.equal(pipe(x), expected)
    peaks = {device: peak.total for device, peak in plan.peaks().items() if device.is_simulated}
    for device in peaks:
        sim.reset_peak(device.index)
    assert torch.equal(pipe(x), expected)
    if issubclass(kind, Numpy):  # of the others a plan does not know the lengths, or what runs as it is
        assert {device: sim.stats(device.index).peak for device in peaks} == peaks
    pipe.dovetail.undo()


class Tail(Model):
    """Computes much of its own behind its last part."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat(64, 1, 1).mean(0)


class Keeping(Steps):
    """Holds more with each step."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        x, kept = x.to(self._execution_device), []
        for _ in range(STEPS):
            x = self.unet(x)
            kept.append(x.repeat(8, 1))
        return x


@pytest.mark.fifth
def test_what_a_later_call_computes_behind_its_last_part_is_planned() -> None:
    model, x = made(cls=Tail)
    pipe = Keeping(model)
    dovetail.compile_pipeline(pipe, **RIGS[0])
    (peak,) = pipe.dovetail.plan(x).peaks().values()
    pipe(x)
    sim.reset_peak(0)
    pipe(x)
    assert sim.stats(0).peak == peak.total
    pipe.dovetail.undo()


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "asked",
    [
        {"rig": "cuda0=1GiB,cpu=4GiB"},
        {"rig": "cuda0=100KiB,cpu=4GiB", "backend": "cuda0", "params_backend": "diffusion=cpu"},
        {"rig": "cuda0=1GiB,cuda1=1GiB,cpu=4GiB", "backend": "cuda0&cuda1", "params_backend": "diffusion=cpu"},
    ],
)
def test_a_plan_without_weights_is_that_with_weights(asked: dict[str, str]) -> None:
    (model, x), (hollow, _) = made(), made()
    with_weights, without = planned(model, x, **asked), planned(hollow.to("meta"), x, **asked)
    assert [row[:-1] for row in without.rows()] == [row[:-1] for row in with_weights.rows()]
    assert without.devices() == with_weights.devices()
    assert without.settings == with_weights.settings
    assert without.seconds == pytest.approx(with_weights.seconds, rel=1e-9)


class Tabled(Numpy):
    """Reads a table besides, which is no parameter and stays where it is computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """What the block computes, times the table."""
        return super().forward(x) * self.table


@pytest.mark.fifth
def test_where_parameters_rest_is_said_of_parameters_alone() -> None:
    model, x = made(Tabled)
    account = planned(model, x, rig="cuda0=1GiB,cpu=4GiB", backend="cuda0", params_backend="cpu")
    (part,) = account.shown
    facts = account.document()["components"]["unet"]
    assert [set(row.rests) for row in part.rows] == [{Residency.HOST}]
    assert facts["rests"] == "cpu"


def test_what_has_nothing_but_tables_lacks_no_files() -> None:
    model = nn.Module()
    model.register_buffer("table", torch.ones(WIDTH))
    assert not ModuleView(model).lacks_files
    assert ModuleView(nn.Linear(4, 4, device="meta")).lacks_files


@pytest.mark.fifth
def test_that_parts_are_computed_on_the_host_is_said_in_one_line() -> None:
    model, x = made()
    account = planned(model, x, rig="cuda0=1GiB,cpu=4GiB", backend="cuda0&cpu", tensor_split="1,1")
    (warning,) = account.warnings
    assert "4 of 10 parts of unet are computed on cpu" in warning


@pytest.mark.fifth
def test_what_a_call_leaves_in_its_module_decides_which_parts_the_next_one_calls_in_a_plan_too() -> None:
    account = planned(*made(cls=Turning), rig="cuda0=1GiB,cpu=4GiB")
    assert {one.call.title: one.call.times for one in account.parts} == {"unet.first": 2, "unet.last": 2}


@pytest.mark.fifth
def test_parts_that_are_alike_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []
    trace = alike.trace

    def noted(module: nn.Module, *args: Any, **options: Any) -> Any:
        traced.append(type(module).__name__)
        return trace(module, *args, **options)

    monkeypatch.setattr(alike, "trace", noted)
    account = planned(*made(), rig="cuda0=1GiB,cpu=4GiB")
    assert len(account.parts) == 10
    assert sorted(traced) == ["Linear", "Linear", "Linear", "Numpy"]


@pytest.mark.slow
def test_parts_whose_lengths_numbers_decide_share_a_program_of_open_sizes() -> None:
    model, _ = made(Experts)
    inputs = [torch.randn(rows, WIDTH) for rows in (5, 9, 12, 17, 23, 30)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    pipe = Pipeline(model)
    dovetail.compile_pipeline(pipe, "unet=sim0")
    assert all(torch.equal(pipe(x), wanted) for x, wanted in zip(inputs, expected, strict=True))
    experts = [call for call in pipe.dovetail.components["unet"].calls if ".experts." in call.path and call.programs]
    assert experts
    assert any(one.program.symbols for call in experts for one in call.programs.values())


@pytest.mark.fifth
@pytest.mark.parametrize("rig", ["cuda0=1GiB,cuda1=1GiB", "sim0=1GiB,sim1=1GiB"])
def test_a_module_without_weights_is_compiled_by_its_parts(rig: str) -> None:
    model, x = made()
    with torch.no_grad():
        expected = model(x)
    hollow = copy.deepcopy(model).to("meta")
    compiled = dovetail.compile(hollow, (x.to("meta"),), rig=rig, backend=rig.replace("=1GiB", "").replace(",", "&"))
    assert isinstance(compiled, CompiledByParts)
    assert len(compiled.programs) == 10
    assert len({program.program.main for program in compiled.programs}) == 2
    with pytest.raises(NotHereError, match=r"which is not this machine|has no data for 25 of its weights"):
        compiled(x)
    if compiled.rig.present:
        hollow.load_state_dict(model.state_dict(), assign=True)
        assert torch.equal(compiled(x), expected)
