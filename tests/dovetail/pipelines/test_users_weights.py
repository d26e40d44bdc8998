"""What a user does to weights that have no data in their modules is what is painted with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime.store.stand_in import StandIn
from testbed.pipelines.tiny_pipelines import paint, sd
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
WORD = "<mine>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline whose vocabulary has no room for another word, as published ones."""
    pipe, _ = sd()
    pipe.text_encoder.resize_token_embeddings(len(pipe.tokenizer))
    pipe.save_pretrained(found := tmp_path_factory.mktemp("sd"))
    return found


def _inversion(pipe: Any) -> None:
    pipe.load_textual_inversion({WORD: torch.full((1, pipe.text_encoder.config.hidden_size), 0.7)}, token=WORD)


def _weights(pipe: Any) -> None:
    unet = pipe.unet
    unet.conv_in.weight.data += 0.01
    nn.init.constant_(unet.conv_out.bias, 0.3)
    unet.conv_norm_out.load_state_dict({"weight": torch.full((8,), 0.9), "bias": torch.zeros(8)})
    torch._foreach_mul_([one.data for one in unet.mid_block.parameters()], 0.9)
    unet.time_embedding.linear_1.weight.detach().copy_(unet.time_embedding.linear_1.weight * 1.1)


def _replaced(pipe: Any) -> None:
    new = nn.Conv2d(pipe.unet.conv_out.in_channels, pipe.unet.conv_out.out_channels, 3, padding=1)
    nn.init.constant_(new.weight, 0.01)
    nn.init.constant_(new.bias, 0.3)
    pipe.unet.conv_out = new


def _rounded(pipe: Any) -> None:
    for one in (pipe.unet, pipe.text_encoder, pipe.vae):
        one.bfloat16()
        one.float()


def _fused(pipe: Any) -> None:
    pipe.fuse_qkv_projections()


CHANGES = [_inversion, _weights, _replaced, _rounded, _fused]


@pytest.mark.fifth
@pytest.mark.few(2, quick=1)
@pytest.mark.parametrize("change", slow_but((_inversion, _weights), CHANGES))
@pytest.mark.parametrize(("rests", "after"), [(None, False), ("disk", True)])
def test_what_a_user_does_to_weights_without_data_is_painted_as_in_eager(
    change: Callable[[Any], None], rests: str | None, after: bool, folder: Path
) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    call = {**sd()[1], "prompt": f"a {WORD}"}
    change(eager)
    wanted = paint(eager, call)
    pipe = dovetail.load_pipeline(folder, SPREAD, params_backend=rests)
    if after:
        paint(pipe, call)
    change(pipe)
    assert torch.equal(paint(pipe, call).cpu(), wanted)
    assert torch.equal(paint(pipe, call).cpu(), wanted)


def test_a_write_that_the_hosts_budget_has_no_room_for_names_the_weight_and_the_way_out(folder: Path) -> None:
    pipe = dovetail.load_pipeline(folder, "sim0", params_backend="disk", max_vram="cpu=1KiB")
    with pytest.raises(DoesNotFitError, match=r"conv_in.weight .*KiB of host memory.*max_vram cpu=") as refused:
        pipe.unet.conv_in.weight.data += 1
    assert "1.0 KiB" in str(refused.value)
    assert type(pipe.unet.conv_in.weight) is StandIn
    pipe.unet.conv_in.bias.data += 1
    assert type(pipe.unet.conv_in.bias) is nn.Parameter


def test_a_look_at_a_weight_that_was_put_in_as_a_parameter_is_written_with_it_within_the_hosts_budget(
    folder: Path,
) -> None:
    pipe = dovetail.load_pipeline(folder, "sim0", params_backend="disk")
    first, second = pipe.unet.mid_block.resnets
    kept, wanted = second.conv1.weight, second.conv1.weight.transpose(0, 1).detach() * 1.5
    first.conv1.weight = nn.Parameter(kept.detach().transpose(0, 1))
    kept.data.mul_(1.5)
    assert torch.equal(first.conv1.weight, wanted)
    kept.data.mul_(2)
    assert torch.equal(first.conv1.weight, wanted * 2)


def test_a_loaded_pipeline_is_read_without_making_data(folder: Path) -> None:
    pipe = dovetail.load_pipeline(folder, "sim0", params_backend="disk")
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    for name in ("unet", "vae", "text_encoder"):
        mine, theirs = getattr(pipe, name), getattr(eager, name).state_dict()
        assert {key: float(one.norm()) for key, one in mine.state_dict().items()} == {
            key: float(one.norm()) for key, one in theirs.items()
        }
        assert {type(one) for one in mine.parameters()} == {StandIn}
    assert pipe.unet.device == torch.device("cpu")


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("devices", "rests", "kind"),
    [("cpu", None, torch.optim.SGD), (SPREAD, None, torch.optim.AdamW), (SPREAD, "disk", torch.optim.AdamW)],
)
def test_an_optimizer_that_was_made_before_the_first_picture_trains_what_is_painted(
    devices: str, rests: str | None, kind: Any, folder: Path
) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = dovetail.load_pipeline(folder, devices, params_backend=rests)
    call, found = sd()[1], []
    for one in (eager, pipe):
        optimizer = kind(one.unet.parameters(), 0.1)
        before = paint(one, call)
        for parameter in one.unet.parameters():
            parameter.grad = torch.full_like(parameter, 0.05)
        optimizer.step()
        found += [before, paint(one, call)]
    assert not torch.equal(found[0], found[1])
    assert all(torch.equal(one, other.cpu()) for one, other in zip(found[:2], found[2:], strict=True))


@pytest.mark.fifth
def test_weights_that_are_given_other_strides_or_numbers_all_at_once_are_the_same_objects(folder: Path) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = dovetail.load_pipeline(folder, "sim0")
    pictures = []
    for one in (eager, pipe):
        before = list(one.unet.parameters())
        one.unet.to(memory_format=torch.channels_last)._apply(lambda weight: weight * 0.8)
        assert all(weight is known for weight, known in zip(one.unet.parameters(), before, strict=True))
        assert one.unet.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
        pictures.append(paint(one, sd()[1]).cpu())
    assert torch.equal(*pictures)


@pytest.mark.fifth
def test_a_weight_that_was_given_other_data_and_saved_is_painted_with(folder: Path, tmp_path: Path) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = dovetail.load_pipeline(folder, "sim0")
    paint(pipe, sd()[1])
    for one in (eager, pipe):
        one.unet.conv_in.weight.data = one.unet.conv_in.weight.data * -3
        one.save_pretrained(tmp_path)
    assert torch.equal(paint(pipe, sd()[1]).cpu(), paint(eager, sd()[1]))


@pytest.mark.fifth
def test_a_component_that_rests_on_disk_and_was_called_is_converted_from_the_next_call_on(folder: Path) -> None:
    """Its inputs are numbers of words, in which nothing shows that it computes in another dtype now."""
    eager: Any = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipe: Any = dovetail.load_pipeline(folder, SPREAD, params_backend="te=disk")
    ids = torch.arange(8)[None]
    with torch.no_grad():
        for dtype in (None, torch.bfloat16, torch.float32):
            for one in (eager, pipe):
                one.text_encoder.to(dtype or torch.float32)
            assert torch.equal(pipe.text_encoder(ids)[0].cpu(), eager.text_encoder(ids)[0])


@pytest.mark.fifth
@pytest.mark.parametrize(("devices", "rests", "split"), slow_but(
    (("sim0&sim1", None, "layer"),),
    [("sim0&sim1", None, "layer"), ("sim0&sim1", None, "row"), ("sim0", "cpu", "layer"), ("cpu", None, "layer")],
))  # fmt: skip
def test_an_optimizer_that_was_made_before_compiling_trains_the_module_after_undo(
    devices: str, rests: str | None, split: str, folder: Path
) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    before = [(one, one.unet.conv_in.weight, torch.optim.SGD(one.unet.parameters(), 0.1)) for one in (eager, pipe)]
    dovetail.compile_pipeline(pipe, devices, params_backend=rests, split_mode=split)
    paint(pipe, sd()[1])
    for one, weight, _ in before:
        weight.tag = 1
        one.unet.conv_in.weight.data.mul_(1.5)
        one.unet.conv_out.weight.requires_grad_(False)
    pipe.dovetail.undo()
    for one, weight, optimizer in before:
        assert one.unet.conv_in.weight is weight
        for parameter in one.unet.parameters():
            parameter.grad = torch.full_like(parameter, 0.05) if parameter.requires_grad else None
        optimizer.step()
    assert pipe.unet.conv_in.weight.tag == 1
    mine, theirs = pipe.unet.state_dict(), eager.unet.state_dict()
    assert all(torch.equal(mine[key], one) for key, one in theirs.items())
    assert [id(one) for one in pipe.unet.parameters()] == [id(one) for one in before[1][2].param_groups[0]["params"]]


@pytest.mark.fifth
def test_a_weight_of_one_loaded_pipeline_that_is_put_into_another_is_one_of_both_after_undo(folder: Path) -> None:
    eager = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipes = [dovetail.load_pipeline(folder, "sim0"), dovetail.load_pipeline(folder, "sim1", params_backend="disk")]
    first, second = (pipe.unet for pipe in pipes)
    second.conv_in.weight = first.conv_in.weight
    for pipe in pipes:
        paint(pipe, sd()[1])
    for unet in (first, eager.unet):
        with torch.no_grad():
            unet.conv_in.weight.mul_(1.1)
    for pipe in pipes:
        pipe.dovetail.undo()
    assert second.conv_in.weight is first.conv_in.weight
    for unet in (first, second):
        assert unet.conv_in.weight.device == torch.device("cpu")
        assert torch.equal(unet.conv_in.weight, eager.unet.conv_in.weight)
