"""What goes with modes in which all devices compute together: each cell of the table in docs/modes.md."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.compiler.ir.program import Program, placement_of
from dovetail.compiler.spec.modes import ALIASES, TOGETHER, inner_mode
from dovetail.compiler.states.parts import bytes_held
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.conventions.modes import Watching
from dovetail.draw.graph.graphml import graphml
from dovetail.draw.outline.outline import outline
from dovetail.explain.states import states_in_words
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.states.states import split_mode_of
from dovetail.plans.folder import Plans
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux, paint
from tests.cases import slow_but
from tests.command_line import done

FLAT = [one for one in TOGETHER if not inner_mode(one)]
X = torch.linspace(-1, 1, 2 * 6 * 64).reshape(2, 6, 64)
PICTURES = torch.linspace(-1, 1, 2 * 64 * 8 * 4).reshape(2, 64, 8, 4)


class Block(nn.Module):
    """Two layers after each other, as of a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Stack(nn.Module):
    """Blocks of a batch of two, of six tokens each."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Resnet(nn.Module):
    """A convolution of normalized pictures, as of a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(torch.nn.functional.silu(self.norm(x)))


class Decoder(Stack):
    """Blocks of two pictures."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.blocks = nn.ModuleList(Resnet(64) for _ in range(2))


def stack(mode: str) -> Stack:
    torch.manual_seed(0)
    return (Decoder() if mode == "spatial" else Stack()).eval()


def given(mode: str) -> torch.Tensor:
    return PICTURES if mode == "spatial" else X


def devices_for(mode: str) -> str:
    """Two devices, or two groups of two."""
    return "sim0&sim1&sim2&sim3" if inner_mode(mode) else "sim0&sim1"


def split(mode: str, backend: str = "", **more: Any) -> Any:
    backend = backend or devices_for(mode)
    return dovetail.compile(stack(mode), (given(mode),), backend=backend, split_mode=mode, **more)


def is_grouped_by_its_nodes(program: Program) -> bool:
    """Whether a program is grouped, as its segments and its operations say alike."""
    by_nodes = any(len(placement_of(node).group) > 1 for node in program.ops())
    assert program.is_grouped == by_nodes == replace(program, segments=()).is_grouped
    return by_nodes


def is_close(compiled: Any, mode: str) -> bool:
    found, expected = compiled(given(mode)).cpu(), stack(mode)(given(mode))
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


@pytest.mark.few(4)
@pytest.mark.parametrize("rest", [None, "cpu"])
@pytest.mark.parametrize("mode", TOGETHER)
def test_weights_on_devices_and_in_host_memory(mode: str, rest: str | None) -> None:
    compiled = split(mode, params_backend=rest)
    assert is_close(compiled, mode)
    assert split_mode_of(compiled.program) == mode
    assert is_grouped_by_its_nodes(compiled.program)
    held = list(bytes_held(compiled.program).values())
    whole = sum(weight.nbytes for weight in compiled.program.weights.values())
    assert held == [whole] * len(held) if not mode.endswith("tensor") else max(held) < 0.6 * whole


@pytest.mark.parametrize(("name", "mode"), [*ALIASES.items(), ("cfg+ulysses", "batch+sequence")])
def test_names_of_modes_elsewhere_are_taken(name: str, mode: str) -> None:
    assert split_mode_of(split(name, devices_for(mode)).program) == mode


@pytest.mark.parametrize("mode", TOGETHER)
def test_a_plan_file_is_read_back(mode: str, tmp_path: Path) -> None:
    shares = {"batch": "1,1", **{one: "3,1,3,1" for one in TOGETHER if inner_mode(one)}}.get(mode, "3,1")
    compiled = split(mode, tensor_split=shares)
    compiled.save(tmp_path / "plan.json")
    again = dovetail.load(tmp_path / "plan.json", weights=stack(mode))
    assert (str(again), str(again.schedule)) == (str(compiled), str(compiled.schedule))
    assert torch.equal(again(given(mode)).cpu(), compiled(given(mode)).cpu())
    text = print_program(compiled.program)
    assert print_program(parse_program(text)) == text
    assert split_mode_of(parse_program(text)) == mode


@pytest.mark.parametrize("mode", TOGETHER)
def test_the_pass_has_a_text(mode: str) -> None:
    steps = default_passes((3.0, 1.0), split_mode=mode)
    text = ",".join(map(str, steps))
    assert f"states{{mode={mode},shares=3:1}}" in text
    assert parse_passes(text) == steps
    with pytest.raises(UsageError, match="not solved for a mode 'rows'"):
        parse_passes("states{mode=rows}")


@pytest.mark.parametrize("mode", TOGETHER)
def test_devices_of_different_kinds_are_refused_before_anything_runs(mode: str) -> None:
    with pytest.raises(UsageError, match=rf"split by {re.escape(mode)} over sim0 & cpu.*one kind.*layer or row"):
        split(mode, "sim0&cpu")


@pytest.mark.parametrize("mode", TOGETHER)
def test_a_device_map_is_refused(mode: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"a device map places each weight whole, split mode {mode}")):
        dovetail.compile(stack(mode), (given(mode),), device_map={"": "sim0", "blocks.1": "sim1"}, split_mode=mode)


@pytest.mark.parametrize("mode", TOGETHER)
def test_what_does_not_fit_is_refused_with_both_numbers(mode: str) -> None:
    with pytest.raises(DoesNotFitError, match=r"on sim1, which has 64\.0 KiB free"):
        split(mode, "sim0&sim1", rig="sim0=8MiB,sim1=64KiB", tensor_split="1,1")


@pytest.mark.parametrize("mode", TOGETHER)
def test_inductor_says_why_it_compiles_nothing(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = split(mode, inductor=True)
    assert "is not compiled by Inductor" in caplog.text
    assert is_close(compiled, mode)


def test_dynamic_sizes_are_placed_by_layers_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    with caplog.at_level(logging.WARNING):
        compiled = split("tensor", dynamic_shapes={"x": {0: batch}})
    assert "cannot be split by tensor, for its sizes are dynamic" in caplog.text
    assert split_mode_of(compiled.program) == "layer"
    assert is_close(compiled, "tensor")


@pytest.mark.parametrize("mode", ["layer", "row"])
def test_devices_of_other_modes(mode: str) -> None:
    compiled = dovetail.compile(stack("tensor"), (X,), backend="sim0&sim1", split_mode=mode)
    assert not is_grouped_by_its_nodes(compiled.program) or mode == "row"


@pytest.mark.parametrize("mode", TOGETHER)
def test_one_device_is_no_reason_to_warn(mode: str) -> None:
    assert is_close(split(mode, "sim0"), mode)


class ByParts(nn.Module):
    """Blocks between which its own Python looks at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if float(x.sum()) < 1e9 else x
        return x


@pytest.mark.parametrize("mode", TOGETHER)
def test_what_runs_by_its_parts_is_placed_whole_and_this_is_said(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = ByParts().eval()
    expected = module(X)
    with caplog.at_level(logging.WARNING):
        compiled = dovetail.compile(module, (X,), backend="sim0&sim1", split_mode=mode)
    assert "is compiled by its parts" in caplog.text
    assert f"split mode {mode} takes a component that is compiled whole" in caplog.text
    assert torch.allclose(compiled(X).cpu(), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["sequence"], TOGETHER))
def test_a_component_of_another_mode_is_not_assigned_weights(mode: str) -> None:
    pipe, call = flux()
    dovetail.compile_pipeline(pipe, f"diffusion={devices_for(mode)},te=sim0,vae=sim0", split_mode=f"diffusion={mode}")
    with pipe.dovetail as handle:
        paint(pipe, call)
        component = next(one for name, one in handle.components.items() if name == "transformer")
        with pytest.raises(UsageError, match=re.escape(f"split mode {mode} decides")):
            component.assign({})


@pytest.mark.parametrize("mode", TOGETHER)
def test_it_is_explained_and_drawn(mode: str) -> None:
    program: Program = split(mode).program
    said = " ".join(states_in_words(program))
    assert "operations of blocks.up (4 blocks)" in said or "of blocks (2 blocks)" in said, said
    assert "split" in said
    assert "<graphml" in graphml({"model": program})
    for depth in ("devices", "segments", "blocks"):
        assert all(edge.nbytes for edge in outline(program, depth=depth).edges if edge.crosses)


@pytest.mark.few(8)
@pytest.mark.parametrize("mode", slow_but(["tensor", "spatial"], TOGETHER))
@pytest.mark.parametrize("kind", ["text", "html", "svg", "mermaid", "dot", "json", "graphml", "trace"])
def test_a_plan_is_shown_in_every_form_and_verified(mode: str, kind: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    split(mode).save(plan)
    done("show", str(plan), "--as", kind, "-o", str(tmp_path / "shown"))
    assert (tmp_path / "shown").stat().st_size > 0
    assert "kept" in done("verify", str(plan))


@pytest.mark.slow
def test_plans_of_a_pipeline_are_used_with_their_mode(tmp_path: Path) -> None:
    asked = ("--backend", "diffusion=sim0&sim1,te=sim1,vae=sim0", "--split-mode", "diffusion=sequence")
    done("compile", *asked, "-o", str(tmp_path))
    kept = Plans(tmp_path).completed({})
    assert kept["split_mode"] == {"transformer": "sequence"}


@pytest.mark.slow
def test_plans_keep_that_partial_sums_cross_in_fewer_bytes(tmp_path: Path) -> None:
    size = ("--dtype", "float32", "--height", "256", "--width", "256", "--steps", "1")
    asked = ("--backend", "diffusion=sim0&sim1,te=sim1,vae=sim0", "--split-mode", "diffusion=tensor", "--bf16-partials")
    done("compile", *asked, *size, "-o", str(tmp_path))
    plans = Plans(tmp_path)
    assert plans.completed({})["bf16_partials"]
    assert "bf16_partials" not in plans.completed({"backend": "sim0"})


class Drawn(nn.Module):
    """Attention of which some weights are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return self.out(found.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("mode", ["tensor", "sequence", "batch"])
def test_what_is_dropped_is_drawn_once_for_all_devices(mode: str) -> None:
    torch.manual_seed(0)
    module = Drawn().eval()
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", split_mode=mode)
    torch.manual_seed(1)
    expected = module(X)
    torch.manual_seed(1)
    assert torch.allclose(compiled(X).cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["sequence", "batch", "spatial"])
def test_patches_without_padding_said_in_a_word(mode: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(64, 64, 2, stride=2, padding="valid"), nn.SiLU()).eval()
    compiled = dovetail.compile(module, (PICTURES,), backend="sim0&sim1", split_mode=mode)
    assert torch.allclose(compiled(PICTURES).cpu(), module(PICTURES), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", FLAT)
@pytest.mark.parametrize(("shares", "working"), [("1,0", 1), ("1,0,1", 2), ("1,1,0", 2), ("0,1,0", 2)])
def test_a_share_of_nothing_is_nothing(mode: str, shares: str, working: int) -> None:
    backend = "&".join(f"sim{index}" for index in range(shares.count(",") + 1))
    compiled = split(mode, backend, tensor_split=shares)
    idle = [f"sim{index}" for index, share in enumerate(shares.split(",")) if index and share == "0"]
    assert not any(name in str(compiled.schedule) for name in idle)
    assert len(compiled.program.devices) == working
    assert is_close(compiled, mode)


@pytest.mark.parametrize("shares", ["1:1:1", "0:0"])
def test_shares_of_a_pass_are_those_of_the_devices(shares: str) -> None:
    steps = ",".join(map(str, default_passes(split_mode="sequence"))).replace(
        "mode=sequence", f"mode=sequence,shares={shares}"
    )
    with pytest.raises(UsageError, match=f"shares {shares} are not those of sim0, sim1"):
        dovetail.compile(stack("sequence"), (X,), backend="sim0&sim1", passes=steps)


class Permuted(nn.Module):
    """What attention yields, channels last, then normalized pictures, which PyTorch's kernel lays out plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(64, 64), nn.GroupNorm(8, 64)
        self.convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape) + x
        for conv in self.convs:
            x = conv(self.norm(x))
        return x


class Layouts(Watching):
    """Notes which axes of convolved pictures lie together."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[bool] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.conv2d.default or func is torch.ops.aten.convolution.default:
            self.seen.add(args[0].is_contiguous(memory_format=torch.channels_last))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_last", [False, True])
def test_parts_land_in_memory_that_is_laid_out_as_they_are(is_last: bool) -> None:
    torch.manual_seed(0)
    module, x = Permuted().eval(), PICTURES[:1]
    if is_last:
        module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode="spatial")
    with Layouts() as here:
        found = compiled(x).cpu()
    with Layouts() as there, torch.no_grad():
        expected = module(x)
    assert here.seen == there.seen == {is_last}
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", TOGETHER)
def test_weights_come_within_a_budget_where_inputs_are_shared_out_at_once(mode: str) -> None:
    whole = split(mode, params_backend="cpu")
    least = max(usage.total for usage in simulate(whole.program).values())
    compiled = split(mode, params_backend="cpu", max_vram=f"sim0={least}B,sim1={least}B")
    assert is_close(compiled, mode)
    assert split_mode_of(compiled.program) == mode
    assert max(usage.total for usage in simulate(compiled.program).values()) <= least
