"""What plans send that are written by hand for a class: those of diffusers, applied to models without data.

A plan is applied as its users apply it, by a process that plays the first of a group: collectives are counted, and
nothing is sent. The tensors are fake, so that models have their published sizes; they are cut to three blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import diffusers as d
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.compiler.ir.program import Program
from dovetail.passes.states.modes import LITTLE, Limits

from .zoo.full_size import FULL_SIZE
from .zoo.meta import FullSize, meta

KINDS = ("tensor", "ulysses", "ring")
"""Weights by columns and rows; tokens apart, with heads exchanged for attention, or with keys and values gathered."""


def _cut(name: str, build: Callable[[], nn.Module], **other: Any) -> FullSize:
    """A published entry with another module, and some arguments of its call."""
    return FullSize(build, {**FULL_SIZE[name].call, **other})


WAN = {"hidden_states": meta(1, 16, 21, 60, 104), "encoder_hidden_states": meta(1, 512, 4096), "return_dict": False}
ENTRIES: Mapping[str, FullSize] = {
    "FluxTransformer2DModel": _cut(
        "flux-dev", lambda: d.FluxTransformer2DModel(guidance_embeds=True, num_layers=1, num_single_layers=2)
    ),
    "Flux2Transformer2DModel": _cut("flux2-dev", lambda: d.Flux2Transformer2DModel(num_layers=1, num_single_layers=2)),
    "QwenImageTransformer2DModel": _cut(
        "qwen-image", lambda: d.QwenImageTransformer2DModel(num_layers=3), encoder_hidden_states_mask=None
    ),
    "LTXVideoTransformer3DModel": _cut(
        "ltx-0.9.7-13b",
        lambda: d.LTXVideoTransformer3DModel(attention_head_dim=128, cross_attention_dim=4096, num_layers=3),
        hidden_states=meta(1, 4096, 128),
        encoder_attention_mask=None,
        num_frames=4,
        height=32,
        width=32,
    ),
    "LTX2VideoTransformer3DModel": _cut(
        "ltx2-19b",
        lambda: d.LTX2VideoTransformer3DModel(num_layers=3),
        hidden_states=meta(1, 4096, 128),
        encoder_attention_mask=None,
        num_frames=4,
        height=32,
        width=32,
        audio_hidden_states=meta(1, 128, 128),
        audio_num_frames=128,
        audio_encoder_attention_mask=None,
    ),
    "WanTransformer3DModel": FullSize(
        lambda: d.WanTransformer3DModel(num_layers=3),
        {**WAN, "hidden_states": meta(1, 16, 1, 128, 128), "timestep": meta(1, dtype=torch.int64)},
    ),
    "ChronoEditTransformer3DModel": FullSize(
        lambda: d.ChronoEditTransformer3DModel(num_layers=3),
        {**WAN, "hidden_states": meta(1, 16, 1, 128, 128), "timestep": meta(1, dtype=torch.int64)},
    ),
    "HeliosTransformer3DModel": FullSize(
        lambda: d.HeliosTransformer3DModel(num_layers=3),
        {**WAN, "hidden_states": meta(1, 16, 1, 128, 128), "timestep": meta(1, dtype=torch.int64)},
    ),
    "MiniMaxH3Transformer3DModel": FullSize(
        lambda: d.MiniMaxH3Transformer3DModel(num_layers=3),
        {
            "hidden_states": meta(1, 4096, 96),
            "audio_hidden_states": meta(1, 128, 32),
            "encoder_hidden_states": meta(1, 256, 5120),
            "timestep": meta(1, dtype=torch.float32),
            "timestep_indices": meta(4480, dtype=torch.int64),
            "token_tags": meta(4480, dtype=torch.int64),
            "position_ids": meta(4480, 3),
            "video_indices": meta(4096, dtype=torch.int64),
            "audio_indices": meta(128, dtype=torch.int64),
            "text_indices": meta(256, dtype=torch.int64),
            "return_dict": False,
        },
    ),
    "QwenImage21Transformer2DModel": FullSize(
        lambda: d.QwenImage21Transformer2DModel(num_layers=3),
        {
            "hidden_states": meta(1, 4096, 64),
            "encoder_hidden_states": meta(1, 128, 4096),
            "timestep": meta(1),
            "img_shapes": [[(1, 64, 64)]],
            "img_mask": meta(1, 128, dtype=torch.bool),
            "return_dict": False,
        },
    ),
}
"""Each class of diffusers that has a plan, with three blocks and a call at 1024², or of as many tokens."""


@dataclass(frozen=True)
class Sent:
    """The bytes that a device sends in a call, and the part of all weights that it has."""

    nbytes: int
    weights: float


def kinds_of(name: str) -> tuple[str, ...]:
    """The kinds of plans that a class has."""
    cls = getattr(d, name)
    has_tensor, has_context = (getattr(cls, one, None) is not None for one in ("_tp_plan", "_cp_plan"))
    return KINDS[: int(has_tensor)] + KINDS[1:] * int(has_context)


def most_weights(program: Program, mode: str, count: int) -> Limits:
    """The most bytes of weights of each of some devices beside a plan for tensors."""
    total = sum(weight.nbytes for weight in program.weights.values())
    return (int(total * (1 / count + LITTLE)),) * count if mode == "tensor" else ()


def sent_by_hand(name: str, kind: str, count: int) -> Sent:
    """What each of some devices sends in a call of a class under one of its plans."""
    module, call = ENTRIES[name].make()
    whole = sum(weight.nbytes for weight in module.parameters())
    with _group_of(count) as mesh:
        if kind != "tensor":
            _part_context(module, kind, count)
        with FakeTensorMode(allow_non_fake_inputs=True):
            _fake(module)
            if kind == "tensor":
                _part_weights(module, mesh)
            counting = _Counting(count)
            with torch.no_grad(), counting:
                module(**{key: _faked(value) for key, value in call.items()})
    local = (one.to_local() if isinstance(one, DTensor) else one for one in module.parameters())
    return Sent(sum(counting.sent), sum(one.nbytes for one in local) / whole)


@contextmanager
def _group_of(count: int) -> Iterator[DeviceMesh]:
    """A group of which this process is the first, and of which there are no others."""
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())  # type: ignore[no-untyped-call]
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def _part_weights(module: nn.Module, mesh: DeviceMesh) -> None:
    from diffusers.hooks.tensor_parallel import _resolve_tp_plan, _styles

    for block, plan in _resolve_tp_plan(module, module._tp_plan):
        parallelize_module(block, mesh, _styles(plan))


def _part_context(module: nn.Module, kind: str, count: int) -> None:
    """Applies a plan as far as it is for modules that are left of those of a model that is cut."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    if kind == "ring":
        with mock.patch.object(_AttentionBackendRegistry, "set_active_backend"):
            module.set_attention_backend("_native_flash")  # type: ignore[operator]
    known = {name for name, _ in module.named_modules()}
    plan = {name: one for name, one in module._cp_plan.items() if "*" in name or name in known}  # type: ignore[union-attr, operator]
    with mock.patch("torch.accelerator.device_count", return_value=1):
        config = d.ContextParallelConfig(**{f"{kind}_degree": count})
        module.enable_parallelism(config=config, cp_plan=plan)  # type: ignore[operator]


def _fake(module: nn.Module) -> None:
    for child in module.modules():
        for name, weight in child._parameters.items():
            child._parameters[name] = None if weight is None else nn.Parameter(_faked(weight))
        for name, buffer in child._buffers.items():
            child._buffers[name] = _faked(buffer)


def _faked(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value


@dataclass
class _Counting(TorchDispatchMode):
    """Counts the bytes that each collective has this process send, by the rings that they are made of."""

    count: int
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and func._opname != "wait_tensor":
            self.sent.append(self._bytes_of(func._opname, args))
        return func(*args, **(kwargs or {}))

    def _bytes_of(self, name: str, args: Any) -> int:
        given = args[1] if name == "allgather_" else args[:1]
        nbytes, others = sum(math.prod(one.shape) * one.itemsize for one in given), self.count - 1
        if name == "all_reduce":
            return 2 * others * nbytes // self.count
        if name in ("all_to_all_single", "reduce_scatter_tensor"):
            return others * nbytes // self.count
        assert name in ("all_gather_into_tensor", "allgather_"), f"no count for {name}"
        return others * nbytes
