"""What must hold on real devices, as functions of the devices' names; `testbed.gpu` and tests/gpu run them there.

The tests run the same functions on simulated devices, so that it is known that they can pass and what they ask. Each
raises AssertionError where something does not hold, and returns a line that says what was seen. Names are those of a
backend: ``cuda0``, ``xpu1``, ``mps``, ``sim0``, ``cpu``.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gguf
import numpy as np
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel

import dovetail
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, packed_shape
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DovetailError
from dovetail.conventions.modes import Watching
from dovetail.passes.simulate.memory import simulate
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.quantized import fused
from testbed.pipelines.tiny_pipelines import flux, paint

Call = dict[str, Any]
TOLERANCE = 1e-3
"""How far two kinds of device may be apart, relative to the largest number, in float32."""


def torch_device(name: str) -> torch.device:
    """PyTorch's device of a name."""
    device = Device.named(name)
    if device.is_simulated:
        sim.enable()
    return device.torch


def subject() -> tuple[torch.nn.Module, Call]:
    """A small FLUX transformer, and a call of it."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=3, attention_head_dim=64, num_attention_heads=4,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(16, 24, 24),
    )  # fmt: skip
    call = {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }
    return model.eval(), call


def on(device: torch.device, call: Call) -> Call:
    """The call with its tensors on a device."""
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in call.items()}


def eager(card: str) -> torch.Tensor:
    """What the module itself returns on a card; a simulated one computes as the CPU does, which then stands for it."""
    module, call = subject()
    device = torch_device("cpu" if Device.named(card).is_simulated else card)
    with torch.inference_mode():
        found: torch.Tensor = copy.deepcopy(module).to(device)(**on(device, call))[0]
    return found.cpu()


def compiled(backend: str, **more: Any) -> tuple[dovetail.CompiledModule, Call]:
    """The module compiled for a backend, and the call."""
    module, call = subject()
    return dovetail.compile(module, kwargs=call, backend=backend, **more), call


def result(program: dovetail.CompiledModule, call: Call) -> torch.Tensor:
    """What a call of the program returns, on the CPU."""
    found: torch.Tensor = program(**call)[0]
    return found.cpu()


def allocated(cards: Sequence[str]) -> list[int]:
    """The bytes of tensors on each card."""
    found = []
    for card in cards:
        accelerator = accelerator_of(torch_device(card))
        accelerator.synchronize()
        found.append(accelerator.memory()[0])
    return found


def layers(cards: Sequence[str]) -> str:
    """A layer split over cards of one model equals eager on one of them; on a single card so does the whole program."""
    program, call = compiled("&".join(cards))
    expected = eager(cards[0])
    assert all(torch.equal(result(program, call), expected) for _ in range(3))
    program.unload()
    return f"over {', '.join(cards)} torch.equal to eager on {cards[0]}"


def layers_with_the_host(cards: Sequence[str]) -> str:
    """A split between a card and the CPU repeats its bits, and is near eager: two kinds of device round differently."""
    program, call = compiled(f"{cards[0]}&cpu", tensor_split="1,1")
    assert len(set(program.program.home.values())) == 2
    first, expected = result(program, call), eager(cards[0])
    assert torch.equal(result(program, call), first)
    error = float((first - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE
    program.unload()
    return f"over {cards[0]}, cpu: the same bits twice, {error:.1e} from eager"


def rows(cards: Sequence[str]) -> str:
    """A row split, the CPU as its last device, repeats its bits and is near eager."""
    shares = ",".join("1" for _ in (*cards, "cpu"))
    program, call = compiled("&".join((*cards, "cpu")), split_mode="row", tensor_split=shares)
    first, expected = result(program, call), eager(cards[0])
    assert all(torch.equal(result(program, call), first) for _ in range(3))
    error = float((first - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE
    program.unload()
    return f"by rows over {', '.join(cards)}, cpu: the same bits four times, {error:.1e} from eager"


def staging(cards: Sequence[str]) -> str:
    """Weights that rest in host memory give the bits of weights that stay, and leave the card after the call."""
    there, call = compiled("&".join(cards))
    expected = result(there, call)
    there.unload()
    del there
    program, call = compiled("&".join(cards), params_backend="cpu")
    assert torch.equal(result(program, call), expected)
    before = allocated(cards)
    assert all(torch.equal(result(program, call), expected) for _ in range(3))
    assert allocated(cards) == before
    program.unload()
    return "weights resting on cpu: the bits of weights that stay, nothing more held after each call"


def residency(cards: Sequence[str]) -> str:
    """A whole pipeline repeats its picture wherever its weights rest, and undo gives the cards back."""
    pipe, call = flux()
    before = allocated(cards)
    pictures = []
    for rests in (None, "cpu"):
        dovetail.compile_pipeline(pipe, "&".join(cards), params_backend=rests)
        pictures += [paint(pipe, call).cpu() for _ in range(2)]
        pipe.dovetail.undo()
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)  # it keeps tensors of its last run
        assert allocated(cards) == before, f"{allocated(cards)} bytes after undo, {before} before"
    assert all(torch.equal(one, pictures[0]) for one in pictures)
    return "a pipeline resident and staged: one picture, and undo leaves nothing"


def packed(cards: Sequence[str]) -> str:
    """Every type unpacks on the card to the bits of gguf-py in float32, and to those rounded in the halves."""
    device, fast = torch_device(cards[0]), []
    for quant in QUANT_TYPES:
        blocks = np.random.default_rng(0).integers(0, 256, packed_shape(quant, (64, 1024)), dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[quant]).copy())
        there = torch.from_numpy(blocks).to(device)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            found = torch.ops.dovetail.dequantize(there, quant, dtype).cpu()
            assert fused._same_bits(found, expected.to(dtype)), f"{quant} in {dtype} on {cards[0]}"
        if quant in fused.LAYOUTS and accelerator_of(device).runs_triton and fused._agrees(device, quant, dtype):
            fast.append(quant)
    return f"{len(QUANT_TYPES)} types in three dtypes as gguf-py on {cards[0]}; with Triton: {' '.join(fast) or 'none'}"


@contextlib.contextmanager
def hidden_waits_are_errors(card: str) -> Iterator[bool]:
    """Has PyTorch raise where the host waits for a card, on CUDA; yields whether anybody looks."""
    if Device.named(card).kind != "cuda":
        yield False
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield True
    finally:
        torch.cuda.set_sync_debug_mode(before)


def waits(cards: Sequence[str]) -> str:
    """The second call, its inputs on the card, never has the host wait."""
    program, call = compiled("&".join(cards))
    inputs = on(torch_device(cards[0]), call)
    first = program(**inputs)[0]
    with hidden_waits_are_errors(cards[0]) as watched:
        second = program(**inputs)[0]
    assert torch.equal(first.cpu(), second.cpu())
    program.unload()
    return "no hidden wait in the second call" if watched else f"nobody looks for hidden waits on {cards[0]}"


class Before(Watching):
    """Calls a function before each operation, with its number, its name and the devices of its tensors."""

    def __init__(self, function: Callable[[int, str, set[torch.device]], None]) -> None:
        super().__init__()
        self._function, self.count = function, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function, then the operation."""
        leaves = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        devices = {one.device for one in leaves if isinstance(one, torch.Tensor)}
        devices |= {one for one in leaves if isinstance(one, torch.device)}
        self._function(self.count, str(func), devices)
        self.count += 1
        return func(*args, **(kwargs or {}))


def sleeping(seed: int) -> Callable[[int, str, set[torch.device]], None]:
    """Puts random delays on the stream in use of each CUDA device before its operations, longer ones before copies."""
    chance = random.Random(seed)

    def sleep(_: int, name: str, devices: set[torch.device]) -> None:
        longest = 400_000 if "copy" in name else 40_000
        for device in devices:
            if device.type == "cuda" and chance.random() < 0.5:
                with torch.cuda.device(device):
                    torch.cuda._sleep(chance.randrange(longest))

    return sleep


def expect_the_same_delayed(program: dovetail.CompiledModule, call: Call, calls: int, what: object) -> None:
    """Random delays before copies and operations change no bit of a program, which is unloaded then."""
    expected = result(program, call)
    for seed in range(calls):
        with Before(sleeping(seed)):
            found = program(**call)[0]
        assert torch.equal(found.cpu(), expected), f"call {seed} of {what}"
    program.unload()


def delays(cards: Sequence[str], calls: int = 200) -> str:
    """Random delays before copies and operations change no bit: a missing wait between streams would."""
    for more in ({}, {"params_backend": "cpu"}, {"split_mode": "row"} if len(cards) > 1 else {}):
        expect_the_same_delayed(*compiled("&".join(cards), **more), calls, more)
    return f"{calls} calls with delays, resident, staged{' and by rows' if len(cards) > 1 else ''}: the same bits"


def memory(cards: Sequence[str]) -> str:
    """What is allocated is what it was: after each call, after an injected lack of memory, and after unload."""
    empty = allocated(cards)
    program, call = compiled("&".join(cards), params_backend="cpu")
    expected = result(program, call)
    before = allocated(cards)
    counter = Before(lambda number, name, devices: None)
    with counter:
        program(**call)
    for moment in range(0, counter.count, max(1, counter.count // 20)):
        with contextlib.suppress(torch.OutOfMemoryError, DovetailError), Before(_lack_at(moment)):
            program(**call)
        assert allocated(cards) == before, f"after a lack of memory at operation {moment} of {counter.count}"
    assert torch.equal(result(program, call), expected)
    program.unload()
    del program
    assert allocated(cards) == empty
    return f"allocated: {before} after each call and after 20 lacks of memory, {empty} after unload"


def _lack_at(moment: int) -> Callable[[int, str, set[torch.device]], None]:
    def lack(number: int, name: str, devices: set[torch.device]) -> None:
        if number == moment:
            raise torch.OutOfMemoryError(f"injected before {name}")

    return lack


WORKSPACE = 64 * 2**20
"""What a real card's libraries for matrices may take of the allocator beside what a schedule knows."""


def wide_subject(cards: Sequence[str]) -> tuple[torch.nn.Module, Call]:
    """Linear layers whose weights are much more than a workspace, on real cards; small ones on simulated cards."""
    width = 256 if all(Device.named(card).is_simulated for card in cards) else 4096
    torch.manual_seed(0)
    layers = [one for _ in range(12) for one in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers).eval(), {"input": torch.randn(64, width)}


def peaks_of_calls(cards: Sequence[str], program: dovetail.CompiledModule, call: Call) -> list[int]:
    """What two calls take of each card at most, from before the weights are there.

    A call before has libraries take their workspaces, which stay: those of each thread that issues too.
    """
    program(**call)
    program.unload()
    before = allocated(cards)
    for card in cards:
        accelerator_of(torch_device(card)).reset_peak()
    for _ in range(2):
        program(**call)
    peaks = [accelerator_of(torch_device(card)).memory()[1] for card in cards]
    program.unload()
    return [peak - had for peak, had in zip(peaks, before, strict=True)]


def predicted_memory(cards: Sequence[str]) -> str:
    """The peak that a schedule predicts is the measured one; on real cards within 5 %, beside a workspace."""
    seen = []
    for rests in (None, "cpu"):
        module, call = wide_subject(cards)
        program = dovetail.compile(module, kwargs=call, backend="&".join(cards), params_backend=rests)
        usage = {device.name: one.total for device, one in simulate(program.program).items()}
        for card, peak in zip(cards, peaks_of_calls(cards, program, call), strict=True):
            expected, is_real = usage[card], not Device.named(card).is_simulated
            assert 0.95 * expected <= peak if is_real else peak == expected, f"{card}: {peak}, predicted {expected}"
            assert peak <= 1.05 * expected + is_real * WORKSPACE, f"{card}: {peak} bytes, predicted {expected}"
            seen.append(f"{peak / expected:.3f}")
    return f"measured of predicted, resident and staged: {' '.join(seen)}"


def decoder_memory(cards: Sequence[str]) -> str:
    """The predicted peak of a decoder in bfloat16, whose convolutions copy on CUDA what they read and write."""
    side, wide = (8, 32) if all(Device.named(card).is_simulated for card in cards) else (64, 128)
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(wide, 2 * wide), layers_per_block=1, latent_channels=4, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        mid_block_add_attention=False,
    ).to(torch.bfloat16)  # fmt: skip
    decoder, call = vae.decoder.eval(), {"sample": torch.randn(1, 4, 4 * side, 4 * side, dtype=torch.bfloat16)}
    program = dovetail.compile(decoder, kwargs=call, backend=cards[0])
    expected = simulate(program.program)[Device.named(cards[0])].total
    (peak,) = peaks_of_calls(cards[:1], program, call)
    is_real = not Device.named(cards[0]).is_simulated
    assert 0.9 * expected <= peak if is_real else peak == expected, f"{peak}, predicted {expected}"
    assert peak <= 1.05 * expected + is_real * WORKSPACE, f"{peak} bytes, predicted {expected}"
    return f"measured of predicted, of a decoder on {cards[0]}: {peak / expected:.3f} of {expected} bytes"


def streaming(cards: Sequence[str]) -> str:
    """Within a budget for about half of the weights the bits are those of weights that stay, and it is kept."""
    module, call = wide_subject(cards)
    there = dovetail.compile(module, kwargs=call, backend="&".join(cards))
    expected, needs = there(**call).cpu(), simulate(there.program)
    there.unload()
    granted = {device.name: one.total * 6 // 10 for device, one in needs.items()}
    line = ",".join(f"{name}={nbytes}B" for name, nbytes in granted.items())
    program = dovetail.compile(module, kwargs=call, backend="&".join(cards), params_backend="cpu", max_vram=line)
    assert all(torch.equal(program(**call).cpu(), expected) for _ in range(3))
    program.unload()
    for card, peak in zip(cards, peaks_of_calls(cards, program, call), strict=True):
        extra = 0 if Device.named(card).is_simulated else WORKSPACE
        assert peak <= granted[card] + extra, f"{card}: {peak} bytes of {granted[card]}"
    return f"streamed within {line}: the same bits, no more than that"


BUDGET = 512 * 2**20


def reserved(cards: Sequence[str]) -> str:
    """While a pipeline with a budget is called, the allocator holds no more of a card than that and what others had."""
    pipe, call = flux()
    there = [accelerator_of(torch_device(card)) for card in cards]
    for one in there:
        one.empty_cache()
        one.reset_peak()
    before = [one.reserved_peak() for one in there]
    dovetail.compile_pipeline(pipe, "&".join(cards), max_vram=",".join(f"{card}={BUDGET}B" for card in cards))
    paint(pipe, call)
    held = [one.reserved_peak() for one in there]
    used = [one.memory()[1] for one in there]
    pipe.dovetail.undo()
    for card, most, had in zip(cards, held, before, strict=True):
        assert most <= BUDGET + had, f"{card}: {most} bytes held, {had} before, within {BUDGET}"
    return f"held {' '.join(map(str, held))}, in use {' '.join(map(str, used))} of {BUDGET} bytes"


CHECKS: tuple[Callable[[Sequence[str]], str], ...] = (
    layers, layers_with_the_host, rows, staging, residency, packed, waits, delays, memory, predicted_memory,
    decoder_memory, streaming, reserved,
)  # fmt: skip
"""All checks; each takes one card or several."""
