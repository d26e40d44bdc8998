"""Backends of attention that diffusion models are to take: equal to eager's, given back, refused before loading."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from typer.testing import CliRunner

import dovetail
from dovetail import demo
from dovetail.cli.app import app
from dovetail.compiler.errors import UsageError
from dovetail.components.own_work import OwnWork
from dovetail.conventions import libraries
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.runtime.sim import flex as simulated
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
NAMES = ("native", "_native_math", "flex")
LACKING = [name for name in libraries.attention_backends() if libraries.lacks_attention(name)]


def chosen(pipe: Any) -> list[Any]:
    return [one._attention_backend for one in libraries.attention_processors(pipe.transformer)]


@pytest.mark.fifth
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    ("maker", "name"),
    slow_but(
        [(tiny_pipelines.flux, "native")],
        [(maker, name) for maker in (tiny_pipelines.flux, tiny_pipelines.ltx) for name in NAMES],
    ),
)
def test_attention_is_computed_as_eager_computes_it_with_that_backend(maker: Callable[[], Any], name: str) -> None:
    pipe, call = maker()
    eager = copy.deepcopy(pipe)
    plain, before = paint(eager, call), libraries.default_attention()
    libraries.set_attention(eager.transformer, name)
    expected = paint(eager, call)
    dovetail.compile_pipeline(pipe, SPREAD, attention=name)
    assert torch.equal(paint(pipe, call).cpu(), expected)
    assert {one.value for one in chosen(pipe)} == {name}
    assert libraries.default_attention() == before
    pipe.dovetail.undo()
    assert set(chosen(pipe)) == {None}
    assert torch.equal(paint(pipe, call), plain)


def test_undo_gives_back_what_was_there_and_keeps_what_was_set_meanwhile() -> None:
    pipe, _ = tiny_pipelines.ltx()
    libraries.set_attention(pipe.transformer, "_native_math")
    before = chosen(pipe)
    dovetail.compile_pipeline(pipe, "sim0", attention="flex")
    assert chosen(pipe) != before
    pipe.dovetail.undo()
    assert chosen(pipe) == before
    dovetail.compile_pipeline(pipe, "sim0", attention="flex")
    libraries.set_attention(pipe.transformer, "native")
    pipe.dovetail.undo()
    assert {one.value for one in chosen(pipe)} == {"native"}


@pytest.mark.parametrize("name", LACKING)
def test_a_backend_whose_package_is_not_here_is_refused_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"attention: {name} needs the package \S+, .* take one .*: flex, native, "):
        dovetail.load_pipeline(tmp_path / "nothing is here", attention=name)
    pipe, _ = tiny_pipelines.ltx()
    with pytest.raises(UsageError, match=f"{name} needs the package"):
        dovetail.compile_pipeline(pipe, "sim0", attention=name)
    assert not hasattr(pipe, "dovetail")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("flx", "did you mean flex. These are usable here"),
        ("", "'': these are usable here: flex"),
        ("\0", "diffusers has no backend"),
        (3, "and no int"),
    ],
)
def test_what_is_no_backend_is_refused(given: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        dovetail.load_pipeline("/nowhere", attention=given)


def test_models_that_cannot_choose_are_told() -> None:
    pipe, _ = tiny_pipelines.sd()
    with pytest.raises(UsageError, match=r"no diffusion model .* takes a backend .* unet \(UNet2DConditionModel\)"):
        dovetail.compile_pipeline(pipe, "sim0", attention="flex")
    assert not hasattr(pipe, "dovetail")


@pytest.mark.slow
def test_a_plan_says_that_another_kernel_changes_bits_and_keeps_the_split() -> None:
    pipe, call = tiny_pipelines.ltx()
    rig = "sim0=1GiB,sim1=1GiB,cpu=8GiB"
    accounts = {}
    for name in (None, "native", "_native_math"):
        dry = DryPipeline(copy.deepcopy(pipe), {"backend": SPREAD, "rig": rig}, attention=name)
        accounts[name] = dry.account(dry(**call))
    told = {name: "\n".join(account.remarks()) for name, account in accounts.items()}
    assert "bits" not in told[None] + told["native"]
    assert "_native_math), which rounds otherwise: last bits of the picture may change" in told["_native_math"]
    assert accounts["native"].settings["--attention"] == "native"
    kept = {name: [part.rows[0].device for part in account.shown] for name, account in accounts.items()}
    assert kept[None] == kept["native"] == kept["_native_math"]


def test_flex_attention_is_answered_in_a_dry_run_and_in_no_other_thread() -> None:
    simulated.install()
    query = torch.rand(1, 2, 3, 4)
    own, costs, others = flex.flex_attention, Counter[Any](), []
    with OwnWork(costs):
        assert torch.equal(flex.flex_attention(query, key=query, value=query), torch.zeros_like(query))
        thread = threading.Thread(target=lambda: others.append(flex.flex_attention(query, query, query)))
        thread.start()
        thread.join()
        assert torch.equal(torch.vmap(torch.sin)(query), query.sin())
    assert flex.flex_attention is own
    assert others[0].count_nonzero()
    assert [cost for cost in costs if cost.attention]


class Attends(torch.nn.Module):
    def forward(self, query: torch.Tensor) -> Any:
        return flex.flex_attention(query, query, query)


def test_a_trace_refuses_flex_attention_before_pytorch_compiles_for_its_device() -> None:
    simulated.install()
    with pytest.raises(Exception, match="the higher-order op flex_attention cannot be compiled"):
        torch.export.export(Attends(), (torch.rand(1, 2, 3, 4),), strict=False)


@pytest.mark.slow
def test_a_plan_with_flex_says_the_same_on_every_rig(caplog: pytest.LogCaptureFixture) -> None:
    told = []
    for kind in ("sim", "cuda"):
        pipe, call = tiny_pipelines.ltx()
        caplog.clear()
        DryPipeline(pipe, {"backend": f"{kind}0", "rig": f"{kind}0=1GiB,cpu=8GiB"}, attention="flex")(**call)
        told.append([one.getMessage().replace(kind, "sim") for one in caplog.records if one.levelname == "WARNING"])
    assert told[0] == told[1]
    assert "runtime/" not in str(told)


@pytest.mark.parametrize(
    "command", slow_but(["explain"], ["generate", "plan", "explain", "compile", "verify", "serve"])
)
def test_commands_refuse_what_is_not_here_by_its_package(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "lacks_attention", lambda name: "not here" if name.startswith("sage") else "")
    monkeypatch.setattr("dovetail.cli.opening.loading.Loading.plan", lambda *_, **__: pytest.fail("it was opened"))
    monkeypatch.setattr("dovetail.cli.opening.loading.Loading.load", lambda *_, **__: pytest.fail("it was loaded"))
    typed = [command, *(["a red circle"] if command == "generate" else []), "--attention", "sage"]
    result = CliRunner().invoke(app, typed)
    assert result.exit_code == 2, result.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("typed", [["--attention", name] for name in NAMES] + [["--cache", "first_block:0.12"]])
def test_the_demo_paints_with_both_options(typed: list[str], tmp_path: Path) -> None:
    from diffusers import FirstBlockCacheConfig, FluxPipeline
    from PIL import Image

    where = ["--backend", SPREAD, "--rig", "sim0=64MiB,sim1=64MiB,cpu=4GiB"]
    result = CliRunner().invoke(
        app, ["generate", "a red circle", "--seed", "3", "-o", str(tmp_path / "out.png"), *where, *typed]
    )
    assert result.exit_code == 0, result.output
    eager = FluxPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    if typed[0] == "--cache":
        eager.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.12))
    else:
        libraries.set_attention(eager.transformer, typed[1])
    call: Any = {**demo.CALL_DEFAULTS, "generator": torch.Generator().manual_seed(3)}
    expected = eager("a red circle", **call).images[0]
    assert Image.open(tmp_path / "out.png").tobytes() == expected.tobytes()
