"""Weights that rest partly in host memory and partly on disk: what was said is what happens, and no bit changes."""

from __future__ import annotations

import gc
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail import demo, load_pipeline
from dovetail.compiler.errors import DoesNotFitError, SpecError
from dovetail.compiler.spec import parse_params_backend
from dovetail.compiler.spec.residency import Residency, evenly
from dovetail.compiler.units import MIB
from dovetail.passes.simulate.memory import simulate
from dovetail.runtime import sim
from testbed.zoo.everything import TINY
from tests.cases import slow_but

CALL = {**demo.CALL_DEFAULTS, "num_inference_steps": 1, "output_type": "pt"}


def paint(**request: Any) -> tuple[torch.Tensor, Any]:
    pipe = load_pipeline(demo.folder(), dtype=torch.float32, **request)
    pipe.set_progress_bar_config(disable=True)
    return pipe("a red circle", generator=torch.Generator("cpu").manual_seed(0), **CALL).images.cpu(), pipe


@pytest.mark.fifth
def test_a_part_of_the_weights_rests_in_host_memory_and_the_picture_is_the_same() -> None:
    expected, _ = paint(backend="cpu")
    picture, pipe = paint(backend="sim0", params_backend="cpu,diffusion=cpu:5MiB&disk", rig="sim0=14MiB,cpu=4GiB")
    assert torch.equal(picture, expected)
    weights = [
        one for one in pipe.dovetail.components["transformer"].view.weights() if isinstance(one.tensor, nn.Parameter)
    ]
    nbytes = {rests: sum(one.nbytes for one in weights if one.residency is rests) for rests in Residency}
    assert 4 * MIB < nbytes[Residency.HOST] <= 5 * MIB
    assert nbytes[Residency.DISK] > 4 * MIB
    assert nbytes[Residency.DEVICE] == 0


def test_a_module_takes_it_too(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).eval()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    x = torch.randn(2, 64)
    compiled = dovetail.compile(
        module, (x,), backend="sim0", params_backend="cpu:50KiB&disk", weights=tmp_path / "weights.safetensors"
    )
    assert set(compiled.program.residency.values()) == {Residency.HOST, Residency.DISK}
    assert torch.equal(compiled(x), module(x))


MIXES = ["device:2MiB&cpu", "device:2MiB&disk", "device:2MiB&cpu:3MiB&disk"]


@pytest.mark.fifth
@pytest.mark.parametrize("mix", slow_but(MIXES[-1:], MIXES))
def test_a_part_of_the_weights_stays_on_the_card_and_the_rest_comes(mix: str) -> None:
    expected, _ = paint(backend="cpu")
    picture, pipe = paint(backend="sim0", params_backend=f"cpu,diffusion={mix}", rig="sim0=14MiB,cpu=4GiB")
    assert torch.equal(picture, expected)
    held = pipe.dovetail.components["transformer"].view.weights()
    stays = [one for one in held if one.residency is Residency.DEVICE and isinstance(one.tensor, nn.Parameter)]
    assert 1 * MIB < sum(one.nbytes for one in stays) <= 2 * MIB
    assert all(one.is_on(torch.device("sim:0")) for one in stays)
    assert {one.residency.value for one in held} == {"device", *re.findall("cpu|disk", mix)}


@pytest.mark.slow
def test_weights_that_are_to_stay_on_the_card_are_nowhere_else_if_they_do_not_fit() -> None:
    """Where nothing is said they are."""
    layers, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).eval(), torch.randn(2, 64)
    for said, wanted in {"device": Residency.DEVICE, "cpu": Residency.HOST}.items():
        compiled = dovetail.compile(layers, (x,), backend="sim0", params_backend=said, rig="sim0=1MiB,cpu=1GiB")
        assert {compiled.program.residency.get(name, Residency.DEVICE) for name in compiled.program.weights} == {wanted}
    pipe = load_pipeline(
        demo.folder(), dtype=torch.float32, backend="sim0", params_backend="diffusion=device", rig="sim0=14MiB,cpu=4GiB"
    )
    with pytest.raises(DoesNotFitError, match="transformer"):
        pipe("a red circle", **CALL)
    load_pipeline(demo.folder(), dtype=torch.float32, backend="sim0", rig="sim0=14MiB,cpu=4GiB")("a red circle", **CALL)


@pytest.mark.fifth
def test_what_stays_on_the_card_counts_there_and_not_on_the_host() -> None:
    pipes = {
        mix: load_pipeline(
            demo.folder(), dtype=torch.float32, backend="sim0", params_backend=f"diffusion={mix}", rig="sim0=40MiB"
        )
        for mix in ("cpu", "device:2MiB&cpu")
    }
    on = {mix: pipe.dovetail.plan("a red circle", **CALL).resident for mix, pipe in pipes.items()}
    (card, host) = (next(device for device in on["cpu"] if device.is_host is there) for there in (False, True))
    more = on["device:2MiB&cpu"][card]["transformer"] - on["cpu"][card]["transformer"]
    assert 1 * MIB < more <= 2 * MIB
    assert on["cpu"][host]["transformer"] - on["device:2MiB&cpu"][host]["transformer"] == more


@pytest.mark.fifth
def test_cards_that_have_all_weights_each_keep_a_part_of_them_for_all_pictures() -> None:
    expected, _ = paint(backend="cpu")
    gc.collect()
    for at in (0, 1):
        sim.reset_peak(at)
    rig = {"rig": "sim0=16MiB,sim1=16MiB,cpu=4GiB", "split_mode": "diffusion=sequence"}
    picture, pipe = paint(**rig)
    view = pipe.dovetail.components["transformer"].view
    amounts = view.amounts
    assert view.residency is Residency.HOST
    assert amounts.on_device > 4 * MIB
    assert (picture - expected).abs().max() < 1e-4
    for at in (0, 1):
        there = sim.stats(at)
        assert there.peak <= 16 * MIB
        assert there.in_use > amounts.on_device * 0.9
    del pipe, view
    gc.collect()
    again, other = paint(**rig, params_backend=f"diffusion=device:{amounts.on_device // MIB}MiB&cpu")
    assert other.dovetail.components["transformer"].view.amounts == amounts
    assert torch.equal(again, picture)


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
def test_a_module_that_is_split_keeps_what_was_asked_for_on_its_cards(mode: str) -> None:
    module, call = TINY["FluxTransformer2DModel"].make(torch.float32)
    expected, typed = module(**call)[0], "device:200KiB&cpu"
    compiled = dovetail.compile(module, (), call, backend="sim0&sim1", split_mode=mode, params_backend=typed)
    needed = {str(device): usage.total for device, usage in simulate(compiled.program).items()}
    compiled(**call)
    for at in (0, 1):
        sim.reset_peak(at)
    assert (compiled(**call)[0] - expected).abs().max() < 1e-5
    assert {f"sim{at}": sim.stats(at).peak for at in (0, 1)} == needed
    stays = [one.nbytes for name, one in compiled.program.weights.items() if name not in compiled.program.residency]
    assert 100 * 1024 < sum(stays) <= 200 * 1024


def test_a_module_keeps_a_part_of_its_weights_on_the_card() -> None:
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).eval()
    x = torch.randn(2, 64)
    compiled = dovetail.compile(module, (x,), backend="sim0", params_backend="device:50KiB&cpu")
    weights = compiled.program.weights.values()
    stays = [weight.nbytes for weight in weights if weight.name not in compiled.program.residency]
    assert 0 < sum(stays) <= 50 * 1024
    assert torch.equal(compiled(x), module(x))


def test_weights_are_taken_evenly_and_never_more_than_granted() -> None:
    taken = evenly([10] * 100, 330)
    assert sum(taken) == 33
    gaps = [index for index, takes in enumerate(taken) if takes]
    assert max(b - a for a, b in pairwise(gaps)) <= 4
    assert sum(n for n, takes in zip([7, 100, 3, 50], evenly([7, 100, 3, 50], 60), strict=True) if takes) <= 60
    assert evenly([], 5) == []


@pytest.mark.parametrize(
    "text",
    [
        "cpu:5GiB&disk",
        "disk+cpu:5",
        "te=cpu:512MiB&disk,disk",
        "device:5GiB&cpu",
        "te=device:512MiB&disk",
        "te=device,cpu",
        "device:1GiB&cpu:2GiB&disk",
    ],
)
def test_its_text_is_read_back(text: str) -> None:
    assert parse_params_backend(str(parse_params_backend(text))) == parse_params_backend(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu&disk", "how much is kept in host memory"),
        ("cpu:5GiB", "where the other weights are kept"),
        ("sim0&disk", "one place, not in a list"),
        ("cpu:5XB&disk", "is not a size"),
        ("cpu:5GiB&disk&disk", "one place"),
        ("device&cpu", "how much is kept on its devices"),
        ("device:5GiB", "where the other weights are kept"),
        ("device:5GiB&cpu:4GiB", "where the other weights are kept"),
        ("device:5GiB&sim0", "one place, not in a list"),
    ],
)
def test_what_is_missing_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_params_backend(text)
