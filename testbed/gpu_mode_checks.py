"""What must hold where two real devices or more compute together, as functions of the devices' names.

`testbed.gpu` and tests/gpu run them on cards, and the tests on simulated devices. A program over several devices needs
several: with one card alone a check raises NotAsked, which says so, but for `parts_of_kernels`, which runs on that card
the parts that several devices would have.
"""

from __future__ import annotations

import copy
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.spec.modes import TOGETHER, inner_mode
from dovetail.compiler.states.parts import bytes_held
from dovetail.convert import plan_conversion
from dovetail.passes.batches.divide import micro_batches_of
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.states.states import split_mode_of
from dovetail.runtime import norm_statistics as norm_statistics  # registers its kernels
from dovetail.runtime import sum_terms as sum_terms  # registers its kernel
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.devices.transfers import copies_arrive, start_copy

from .gpu_checks import (
    WORKSPACE,
    Call,
    allocated,
    expect_the_same_delayed,
    hidden_waits_are_errors,
    on,
    peaks_of_calls,
    subject,
    torch_device,
)
from .pipelines.tiny_pipelines import flux, paint

WORSE = 1.5
"""So many times as far from float64 as eager on one card may results be."""


FULL_FLOATS = functools.partial(torch.backends.cudnn.flags, enabled=True, deterministic=True, allow_tf32=False)
"""Has no convolution round its operands to TF32, for which the whole might choose and a part not."""


class NotAsked(Exception):
    """A check takes more devices than there are."""


class _Decoder(nn.Module):
    """A decoder of pictures, with attention in its middle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.vae = AutoencoderKL(
            block_out_channels=(32, 256), layers_per_block=1, latent_channels=4, norm_num_groups=8,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip

    def forward(self, hidden_states: Tensor) -> tuple[Tensor]:
        decoded: tuple[Tensor] = self.vae.decode(hidden_states, return_dict=False)
        return decoded


def of_mode(mode: str) -> tuple[nn.Module, Call]:
    """A module that a mode is for, and a call of it: of 256 tokens, two pictures, or a large one."""
    if mode == "spatial":
        return _Decoder().eval(), {"hidden_states": torch.randn(1, 4, 16, 12, generator=_seeded())}
    module, _ = subject()
    count = 2 if mode.startswith("batch") else 1
    draw = functools.partial(torch.randn, generator=_seeded())
    return module, {
        "hidden_states": draw(count, 256, 16),
        "encoder_hidden_states": draw(count, 64, 32),
        "pooled_projections": draw(count, 32),
        "timestep": torch.full((count,), 0.5),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(16.0), torch.arange(16.0)),
        "txt_ids": torch.zeros(64, 3),
        "return_dict": False,
    }


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def in_eager(mode: str, card: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the module itself yields on a card, on the CPU; a simulated card computes as the CPU does."""
    module, call = of_mode(mode)
    device = torch_device("cpu" if Device.named(card).is_simulated else card)
    call = {name: _in(value, dtype) for name, value in on(device, call).items()}
    with torch.inference_mode():
        found: Tensor = copy.deepcopy(module).to(device, dtype)(**call)[0]
    return found.cpu()


def _in(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def off(found: Tensor, exact: Tensor) -> float:
    """The root of the mean square of what is off, as a part of that of what is exact."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def together(mode: str, cards: Sequence[str], **more: Any) -> tuple[dovetail.CompiledModule, Call]:
    """A module compiled for a mode over cards, and its call; raises NotAsked where there is one card."""
    if len(cards) < 2:
        raise NotAsked(f"a program over two devices takes two, and {cards[0]} is alone")
    module, call = of_mode(mode)
    program = dovetail.compile(module, kwargs=call, backend="&".join(cards), split_mode=mode, **more)
    assert split_mode_of(program.program) == mode, f"{mode} is not possible here"
    return program, call


def result(program: dovetail.CompiledModule, call: Call) -> Tensor:
    """What a call yields, on the CPU."""
    found: Tensor = program(**call)[0]
    return found.cpu()


def near_float64(mode: str, cards: Sequence[str]) -> str:
    """The devices together are as near float64 as one card, repeat their bits, and hold their weights."""
    before = allocated(cards)
    program, call = together(mode, cards)
    first, alone = result(program, call), in_eager(mode, cards[0])
    assert all(torch.equal(result(program, call), first) for _ in range(3)), "other bits in another call"
    exact = in_eager(mode, "cpu", torch.float64)
    error, eager = off(first, exact), off(alone, exact)
    assert error <= max(WORSE * eager, torch.finfo(torch.float32).eps), f"error {error:.1e}, one card's {eager:.1e}"
    held = bytes_held(program.program)
    for card, here, had in zip(cards, allocated(cards), before, strict=True):
        nbytes = next(nbytes for device, nbytes in held.items() if device.name == card)
        assert here - had >= nbytes, f"{card} holds {here - had} bytes, {nbytes} of weights planned"
    program.unload()
    same = "equal bits" if torch.equal(first, alone) else f"{off(first, alone):.1e} off"
    return f"{mode}: error {error:.1e}, one card's {eager:.1e}; {same}"


def predicted_peaks(mode: str, cards: Sequence[str]) -> str:
    """What calls take of each device is what was predicted, weights resident and coming; see `predicted_memory`."""
    seen = []
    for rests in (None, "cpu"):
        program, call = together(mode, cards, params_backend=rests)
        usage = {device.name: one.total for device, one in simulate(program.program).items()}
        for card, peak in zip(cards, peaks_of_calls(cards, program, call), strict=True):
            expected, is_real = usage[card], not Device.named(card).is_simulated
            assert peak <= 1.05 * expected + is_real * WORKSPACE, f"{card}: {peak} bytes, predicted {expected}"
            assert is_real or peak == expected, f"{card}: {peak}, predicted {expected}"
            seen.append(f"{peak / expected:.3f}")
    return f"{mode}: measured of predicted, resident and staged {' '.join(seen)}"


def streamed(mode: str, cards: Sequence[str]) -> str:
    """Weights that come within a budget give the bits of weights that stay, and the budget is kept."""
    program, call = together(mode, cards)
    expected, needs = result(program, call), simulate(program.program)
    program.unload()
    budget = {device.name: one.total - (one.weights + one.staged) // 3 for device, one in needs.items()}
    line = ",".join(f"{name}={nbytes}B" for name, nbytes in budget.items())
    program, call = together(mode, cards, params_backend="cpu", max_vram=line)
    error = off(result(program, call), expected)
    assert error < 1e-5, f"{error:.1e} off where weights come"  # states may be others within less room
    program.unload()
    for card, peak in zip(cards, peaks_of_calls(cards, program, call), strict=True):
        extra = 0 if Device.named(card).is_simulated else WORKSPACE
        assert peak <= budget[card] + extra, f"{card}: {peak} bytes of {budget[card]}"
    return f"{mode}: within {line}, {error:.1e} off"


def unpacked(mode: str, cards: Sequence[str]) -> str:
    """Packed weights, read from a file, are as near their numbers in float64 as one card is with them."""
    module, call = of_mode(mode)
    with tempfile.TemporaryDirectory() as made:
        plain, file = Path(made, "plain.safetensors"), Path(made, "packed.gguf")
        save_file(module.state_dict(), plain)
        plan_conversion(plain, file, "q8_0").run()
        program, call = together(mode, cards, weights=file)
        assert any(weight.quant for weight in program.program.weights.values())
        alone = dovetail.compile(module, kwargs=call, backend=cards[0], weights=file)
        found, one = result(program, call), result(alone, call)
        assert torch.equal(result(program, call), found), "other bits in another call"
        error = off(found, one)
        assert error < 1e-5, f"{error:.1e} off one card"
        for each in (program, alone):
            each.unload()
    return f"{mode}: Q8_0, {error:.1e} off one card with the same weights"


def delayed(mode: str, cards: Sequence[str], calls: int = 50) -> str:
    """Random delays before copies and operations change no bit: a missing wait of an exchange would."""
    for rests in (None, "cpu"):
        where = f"{mode}, weights resting on {rests or 'their devices'}"
        expect_the_same_delayed(*together(mode, cards, params_backend=rests), calls, where)
    return f"{mode}: {calls} calls with delays, resident and staged: the same bits"


def waiting(mode: str, cards: Sequence[str]) -> str:
    """The second call never has the host wait for a card."""
    program, call = together(mode, cards)
    inputs = on(torch_device(cards[0]), call)
    first = program(**inputs)[0]
    with hidden_waits_are_errors(cards[0]) as watched:
        second = program(**inputs)[0]
    assert torch.equal(first.cpu(), second.cpu())
    program.unload()
    return f"{mode}: no hidden wait" if watched else f"{mode}: nobody looks for hidden waits on {cards[0]}"


def modes_for(cards: Sequence[str]) -> list[str]:
    """The modes for which there are devices enough: those in groups are for two groups of two or more."""
    in_groups = len(cards) >= 4 and len(cards) % 2 == 0
    return [mode for mode in TOGETHER if in_groups or not inner_mode(mode)]


def in_each_mode(check: Callable[..., str]) -> Callable[[Sequence[str]], str]:
    """A check of all modes after each other, by the name of that of one mode."""

    @functools.wraps(check)
    def asked(cards: Sequence[str], **more: Any) -> str:
        with FULL_FLOATS():
            return "; ".join(check(mode, cards, **more) for mode in modes_for(cards))

    return asked


def micro_batches(cards: Sequence[str], calls: int = 50) -> str:
    """Two pictures that go through a layer split in turn have the bits that each has alone, whatever is delayed."""
    if len(cards) < 2:
        raise NotAsked(f"a layer split takes two, and {cards[0]} is alone")
    module, call = of_mode("batch")
    backend = "&".join(cards)
    ones = [
        {name: one[at : at + 1] if isinstance(one, Tensor) and len(one) == 2 else one for name, one in call.items()}
        for at in (0, 1)
    ]
    with FULL_FLOATS():
        alone = dovetail.compile(module, kwargs=ones[0], backend=backend)
        expected = torch.cat([result(alone, one) for one in ones])
        alone.unload()
        program = dovetail.compile(module, kwargs=call, backend=backend, micro_batches=2)
        assert micro_batches_of(program.program) == 2, "the pictures are computed at once"
        assert torch.equal(result(program, call), expected), "other bits than one picture after the other"
        expect_the_same_delayed(program, call, calls, "in micro-batches")
    return f"two pictures, each with the bits that it has alone, {calls} calls with delays"


def peer_copies(cards: Sequence[str]) -> str:
    """Values arrive intact from each card on each other one, whatever their layout, also in memory that lies there."""
    if len(cards) < 2:
        raise NotAsked(f"copies between cards take two, and {cards[0]} is alone")
    ways = []
    for source, target in itertools.permutations(map(torch_device, cards), 2):
        for made, view in _values():
            value, sent = view(made), view(made.to(source))
            arrived = start_copy(sent, target).wait()
            assert torch.equal(arrived.cpu(), value), f"from {source} to {target}"
            assert arrived.stride() == sent.stride(), f"other strides from {source} to {target}"
            place = torch.zeros(2, *value.shape, dtype=value.dtype, device=target)
            start_copy(sent.contiguous(), target, into=place[1]).wait()
            assert torch.equal(place[1].cpu(), value), f"into memory on {target} from {source}"
            assert not place[0].cpu().any(), f"beside memory on {target}"
        ways.append(
            "direct" if copies_arrive(accelerator_of(source), accelerator_of(target)) else "through host memory"
        )
    return f"{len(ways)} pairs, {len(list(_values()))} values each: {' '.join(sorted(set(ways)))}"


def _values() -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Tensors, and the views of them on a device that are sent; a copy to the device would have other strides."""
    made = torch.arange(3 * 40 * 32, dtype=torch.float32).reshape(3, 40, 32)
    large = torch.arange(2**20, dtype=torch.float32).reshape(1, 16, 256, 256)
    yield made, lambda one: one
    yield made, lambda one: one.transpose(1, 2)
    yield made, lambda one: one[:, ::2]
    yield made[:1], lambda one: one.expand(3, 40, 32)
    yield made.to(torch.bfloat16), lambda one: one
    yield made > 7, lambda one: one
    yield large.to(memory_format=torch.channels_last), lambda one: one


def parts_of_kernels(cards: Sequence[str]) -> str:
    """What a card computes of parts, as several devices would have them, is as near float64 as of the whole."""
    device, found = torch_device(cards[0]), []
    for name, whole, parts, given in _kernels():
        there = [one.to(device) for one in given]
        exact = whole(*(one.double() for one in given))
        with torch.inference_mode(), FULL_FLOATS():
            at_once, joined = whole(*there).cpu(), parts(*there).cpu()
        error, eager = off(joined, exact), off(at_once, exact)
        least = torch.finfo(torch.float32).eps
        assert error <= max(WORSE * eager, least), f"{name} by parts: error {error:.1e}, of the whole {eager:.1e}"
        found.append(f"{name} {'equal bits' if torch.equal(joined, at_once) else f'{off(joined, at_once):.1e} off'}")
    return f"on {cards[0]} alone: {', '.join(found)}"


_Kernel = Callable[..., Tensor]


def _kernels() -> Iterator[tuple[str, _Kernel, _Kernel, list[Tensor]]]:
    """An operation, the same by the parts of two devices, and what it is given."""
    draw = functools.partial(torch.randn, generator=_seeded())
    x, w = draw(2, 256, 256), draw(512, 256) / 16
    yield "rows of tokens", functional.linear, _by(functional.linear, 1), [x, w]
    yield "pictures", functional.linear, _by(functional.linear, 0), [x, w]
    yield "columns of weights", functional.linear, _columns, [x, w]
    yield "terms of a sum", functional.linear, _terms, [x, w]
    q, k, v = (draw(1, 4, 256, 64) for _ in range(3))
    attention = functional.scaled_dot_product_attention
    yield "queries", attention, _by(attention, 2), [q, k, v]
    yield "heads", attention, _heads, [q, k, v]
    picture, kernel = draw(1, 32, 48, 40), draw(32, 32, 3, 3) / 17
    yield "a convolution's areas", functools.partial(functional.conv2d, padding=1), _areas, [picture, kernel]
    yield "a group norm's areas", lambda one: functional.group_norm(one, 8), _norm, [picture]


def _by(function: _Kernel, axis: int) -> _Kernel:
    def by_parts(x: Tensor, *others: Tensor) -> Tensor:
        at = x.shape[axis] * 3 // 8
        pieces = x.split([at, x.shape[axis] - at], axis)
        return torch.cat([function(piece.contiguous(), *others) for piece in pieces], axis)

    return by_parts


def _columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([functional.linear(x, part.contiguous()) for part in w.split([192, 320])], -1)


def _terms(x: Tensor, w: Tensor) -> Tensor:
    pairs = zip(x.split([96, 160], -1), w.split([96, 160], -1), strict=True)
    terms = torch.stack([functional.linear(one.contiguous(), part.contiguous()) for one, part in pairs])
    return torch.ops.dovetail.sum_terms(terms)  # type: ignore[no-any-return]


def _heads(*given: Tensor) -> Tensor:
    parts = zip(*(one.split([1, 3], 1) for one in given), strict=True)
    return torch.cat([functional.scaled_dot_product_attention(*each) for each in parts], 1)


def _areas(x: Tensor, kernel: Tensor) -> Tensor:
    around = functional.pad(x, (0, 0, 1, 1))
    pieces = around[:, :, :20].contiguous(), around[:, :, 18:].contiguous()
    return torch.cat([functional.conv2d(piece, kernel, padding=(0, 1)) for piece in pieces], 2)


def _norm(x: Tensor) -> Tensor:
    ops, pieces = torch.ops.dovetail, [piece.contiguous() for piece in x.split([18, 30], 2)]
    statistics = ops.combined_statistics(torch.cat([ops.group_statistics(one, 8, 1) for one in pieces]))
    return torch.cat([ops.group_norm_by(one, statistics, None, None, 8, 1e-5) for one in pieces], 2)


def guidance_in_turns(cards: Sequence[str]) -> str:
    """Guidance parts that are calls of their own go on at the same time on two cards, with the bits of one."""
    if len(cards) < 2:
        raise NotAsked(f"guidance parts on two cards take two, and {cards[0]} is alone")
    found = []
    for devices in (cards[0], "&".join(cards[:2])):
        pipe, call = flux()
        call |= {"negative_prompt": "grey", "true_cfg_scale": 2.0}
        made = dovetail.compile_pipeline(pipe, f"{cards[0]},diffusion={devices}", split_mode="diffusion=batch")
        with made.dovetail as handle:
            found.append([paint(made, call).cpu() for _ in range(3)])
            plan = handle.plan(**call)
            assert plan is not None
            parts = [one.program.main for one in plan.calls if one.component == "transformer"]
    assert len(set(parts)) == 2, f"all parts are on {parts[0]}"
    assert all(torch.equal(one, found[0][0]) for some in found for one in some), "other bits than on one card"
    return f"parts on {' and '.join(map(str, parts))}: the same bits as on {cards[0]}, 3 times"


DELAYED = in_each_mode(delayed)
"""The check that takes a number of calls."""

MODE_CHECKS: tuple[Callable[[Sequence[str]], str], ...] = (
    parts_of_kernels,
    peer_copies,
    *map(in_each_mode, (near_float64, predicted_peaks, streamed, unpacked)),
    DELAYED,
    in_each_mode(waiting),
    micro_batches,
    guidance_in_turns,
)
"""The checks of devices that compute together."""
