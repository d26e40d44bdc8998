"""A program answers for the module it was traced from: whatever is changed on the module, the picture is eager's."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from torch import nn

import dovetail
from dovetail.compiler.errors import CallError, UsageError
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


def paint(pipe: Any, *_: Any) -> torch.Tensor:
    """What the denoiser of a pipeline says, which most tests here are about."""
    generator = torch.Generator().manual_seed(0)
    latents, text = torch.randn(1, 4, 8, 8, generator=generator), torch.randn(1, 4, 32, generator=generator)
    with torch.no_grad():
        answer: torch.Tensor = pipe.unet(latents, torch.tensor(3), text, return_dict=False)[0]
    return answer


class Loud(AttnProcessor):
    """An attention processor of a user."""

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.factor = factor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * self.factor


def _freeu(pipe: Any) -> None:
    pipe.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)


def _scaled_data(pipe: Any) -> None:
    for weight in pipe.unet.parameters():
        weight.data = weight.data * 0.9


def _written(pipe: Any) -> None:
    with torch.no_grad():
        for weight in pipe.unet.parameters():
            weight.mul_(0.9)


def _assigned(pipe: Any) -> None:
    pipe.unet.load_state_dict({name: value.cpu() * 0.8 for name, value in pipe.unet.state_dict().items()}, assign=True)


def _loaded(pipe: Any) -> None:
    pipe.unet.load_state_dict({name: value.cpu() * 0.8 for name, value in pipe.unet.state_dict().items()})


def _conv_out(pipe: Any) -> None:
    torch.manual_seed(3)
    pipe.unet.conv_out = nn.Conv2d(8, 4, 3, padding=1).eval()


def _hook(pipe: Any) -> None:
    pipe.unet.mid_block.register_forward_hook(lambda module, args, out: out * 1.5)


def _pre_hook(pipe: Any) -> None:
    pipe.unet.mid_block.register_forward_pre_hook(lambda module, args: (args[0] * 1.1, *args[1:]))


def _root_hook(pipe: Any) -> None:
    pipe.unet.register_forward_hook(lambda module, args, out: (out[0] * 1.5,))


def _patched(pipe: Any) -> None:
    original = pipe.unet.mid_block.forward
    pipe.unet.mid_block.forward = lambda *args, **kwargs: original(*args, **kwargs) * 1.5


def _classed(pipe: Any) -> None:
    base = type(pipe.unet.mid_block)

    class Patched(base):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs) * 1.5

    pipe.unet.mid_block.__class__ = Patched


def _circular(pipe: Any) -> None:
    for module in pipe.unet.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.padding_mode = "circular"


def _attribute(pipe: Any) -> None:
    for module in pipe.unet.modules():
        if hasattr(module, "output_scale_factor"):
            module.output_scale_factor = 1.3


def _processors(pipe: Any) -> None:
    pipe.unet.set_attn_processor(Loud())


def _taken_out(pipe: Any) -> None:
    with torch.no_grad():
        pipe.unet.conv_out.bias.add_(0.5)
    pipe.unet.conv_out.bias = None


def _half(pipe: Any) -> None:
    pipe.vae.to(torch.bfloat16)


CHANGES = [
    _freeu, _scaled_data, _written, _assigned, _loaded, _conv_out, _hook, _pre_hook, _root_hook, _patched, _classed,
    _circular, _attribute, _processors, _taken_out,
]  # fmt: skip
FIRST = (_freeu, _hook, _patched)


@pytest.fixture(scope="module")
def sd() -> Any:
    """A pipeline that is compiled and has painted, to be copied, and its picture."""
    pipe, call = tiny_pipelines.sd()
    return pipe, call, paint(pipe, call)


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize(
    "change",
    slow_but({_assigned, _patched, _processors, _taken_out}, CHANGES),
    ids=lambda change: change.__name__,
)
def test_what_is_changed_after_the_first_picture_changes_the_next_as_it_changes_eager(
    change: Callable[[Any], None], sd: Any
) -> None:
    pipe, call, plain = copy.deepcopy(sd[0]), sd[1], sd[2]
    eager = copy.deepcopy(pipe)
    change(eager)
    expected = paint(eager, call)
    assert not torch.equal(expected, plain)
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail:
        assert torch.equal(paint(pipe, call).cpu(), plain)
        change(pipe)
        assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.fifth
def test_an_equal_state_finds_the_program_that_was_compiled_before(sd: Any) -> None:
    pipe, call, plain = copy.deepcopy(sd[0]), sd[1], sd[2]
    dovetail.compile_pipeline(pipe, "sim0")
    paint(pipe, call)
    _freeu(pipe)
    changed = paint(pipe, call)
    pipe.disable_freeu()
    paint(pipe, call)
    count = len(pipe.dovetail.programs["unet"])
    _freeu(pipe)
    assert torch.equal(paint(pipe, call), changed)
    pipe.disable_freeu()
    assert torch.equal(paint(pipe, call).cpu(), plain)
    assert len(pipe.dovetail.programs["unet"]) == count


@pytest.mark.fifth
def test_equal_fresh_processors_of_a_library_compile_nothing_anew(sd: Any) -> None:
    pipe, call, _ = copy.deepcopy(sd[0]), sd[1], sd[2]
    dovetail.compile_pipeline(pipe, "sim0")
    for _ in range(3):
        pipe.unet.set_attn_processor(AttnProcessor())
        paint(pipe, call)
    assert len(pipe.dovetail.programs["unet"]) == 1


@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_a_component_run_once_with_real_tensors_and_can_be_removed(before: bool, sd: Any) -> None:
    pipe, call, plain = copy.deepcopy(sd[0]), sd[1], sd[2]
    kinds: list[str] = []

    def hook(_: Any, __: Any, out: Any) -> Any:
        kinds.append(type(out[0]).__name__)
        return (out[0] * 1.5,)

    eager = copy.deepcopy(pipe)
    eager.unet.register_forward_hook(hook)
    expected = paint(eager, call)
    kinds.clear()
    registered = pipe.unet.register_forward_hook(hook) if before else None
    dovetail.compile_pipeline(pipe, SPREAD)
    if registered is None:
        paint(pipe, call)
        registered = pipe.unet.register_forward_hook(hook)
    assert torch.equal(paint(pipe, call).cpu(), expected)
    assert kinds == ["Tensor"]
    registered.remove()
    assert torch.equal(paint(pipe, call).cpu(), plain)


@pytest.mark.fifth
def test_parts_with_hooks_run_as_they_are_and_one_warning_says_so(sd: Any, caplog: pytest.LogCaptureFixture) -> None:
    pipe, call, plain = copy.deepcopy(sd[0]), sd[1], sd[2]
    seen: list[str] = []
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    registered = pipe.unet.mid_block.register_forward_hook(lambda _, __, out: seen.append(type(out).__name__))
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert torch.equal(paint(pipe, call).cpu(), plain)
        paint(pipe, call)
    assert seen == ["SimTensor"] * 2
    assert caplog.text.count("run as they are") == 1
    assert "these parts of unet (UNet2DConditionModel).forward run as they are" in caplog.text
    assert "cannot trace them: mid_block (hooks); the rest" in caplog.text
    registered.remove()
    count = len(pipe.dovetail.programs["unet"])
    assert torch.equal(paint(pipe, call).cpu(), plain)
    assert len(pipe.dovetail.programs["unet"]) == count


def test_a_component_cannot_be_moved_and_can_be_converted(sd: Any) -> None:
    pipe = copy.deepcopy(sd[0])
    dovetail.compile_pipeline(pipe, SPREAD)
    with pytest.raises(UsageError, match=r"unet\.to\(\) cannot move this component"):
        pipe.unet.to("sim:2")
    with pytest.raises(UsageError, match=r"unet\.enable_group_offload\(\) cannot move"):
        pipe.unet.enable_group_offload(torch.device("cpu"))
    assert pipe.unet.to(torch.bfloat16) is pipe.unet
    assert pipe.to(torch.float16) is pipe
    assert {one.dtype for one in pipe.unet.parameters()} == {torch.float16}


@pytest.mark.fifth
def test_copies_and_pickles_of_compiled_modules_are_as_if_they_were_not_compiled(sd: Any) -> None:
    pipe, call, plain = copy.deepcopy(sd[0]), sd[1], sd[2]
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    for made in (copy.deepcopy(pipe.unet), pickle.loads(pickle.dumps(pipe.unet))):
        assert not any("forward" in vars(part) for part in made.modules())
        assert {weight.device.type for weight in made.parameters()} == {"cpu"}
        with torch.no_grad():
            for weight in made.parameters():
                weight.zero_()
            assert not made(torch.randn(1, 4, 8, 8), torch.tensor(3), torch.randn(1, 4, 32)).sample.any()
    again = copy.deepcopy(pipe)
    assert type(again) is diffusers.StableDiffusionPipeline
    assert torch.equal(paint(again, call), plain)
    assert torch.equal(paint(pipe, call).cpu(), plain)
    with pytest.raises(UsageError, match=r"pipe\.dovetail cannot be copied"):
        copy.deepcopy(pipe.dovetail)
    torch.save(pipe.unet.state_dict(), io.BytesIO())


@pytest.mark.fifth
def test_gradients_are_refused(sd: Any) -> None:
    pipe = copy.deepcopy(sd[0])
    latents, text = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 32)
    dovetail.compile_pipeline(pipe, SPREAD)
    with pytest.raises(CallError, match="computes no gradients, and an input requires one"):
        pipe.unet(latents.requires_grad_(), torch.tensor(3), text)
    with torch.no_grad():
        pipe.unet(latents, torch.tensor(3), text)
    pipe.unet.train()
    with pytest.raises(CallError, match="the module is in training mode"):
        pipe.unet(latents.detach(), torch.tensor(3), text)
