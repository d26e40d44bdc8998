"""State dicts of diffusers models under the names, and in the arrangement, in which their authors publish them.

Written from the published checkpoints' names, not from diffusers' converters. Tensors may be on meta.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import diffusers
import torch

from .zoo.full_size_diffusion import SD35

State = Mapping[str, torch.Tensor]
Inverse = Callable[[State], dict[str, torch.Tensor]]
QKV, ADDED = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")


class _Writer:
    """Moves weights and biases from one state dict to another."""

    def __init__(self, state: State) -> None:
        self.left = dict(state)
        self.out: dict[str, torch.Tensor] = {}

    def move(self, new: str, *olds: str, swapped: bool = False) -> None:
        """The matrices, and biases where there are any, of some layers, fused into one; halves swapped if wished."""
        for kind in ("weight", "bias"):
            parts = [self.left.pop(f"{old}.{kind}") for old in olds if f"{old}.{kind}" in self.left]
            for part in parts:
                parts = part.chunk(2)[::-1] if swapped else parts
            if parts:
                self.out[f"{new}.{kind}"] = torch.cat(list(parts)) if len(parts) > 1 else parts[0]

    def one(self, new: str, old: str) -> None:
        if old in self.left:
            self.out[new] = self.left.pop(old)

    def done(self) -> dict[str, torch.Tensor]:
        assert not self.left, f"no published name for {sorted(self.left)}"
        return self.out


def _count(state: State, prefix: str) -> int:
    return 1 + max((int(name.split(".")[1]) for name in state if name.startswith(prefix + ".")), default=-1)


def flux(state: State) -> dict[str, torch.Tensor]:
    """FLUX as Black Forest Labs publishes it."""
    writer = _Writer(state)
    embedders = {"time_in": "timestep", "vector_in": "text", "guidance_in": "guidance"}
    for new, old in embedders.items():
        writer.move(f"{new}.in_layer", f"time_text_embed.{old}_embedder.linear_1")
        writer.move(f"{new}.out_layer", f"time_text_embed.{old}_embedder.linear_2")
    writer.move("img_in", "x_embedder")
    writer.move("txt_in", "context_embedder")
    for index in range(_count(state, "transformer_blocks")):
        block, old = f"double_blocks.{index}", f"transformer_blocks.{index}"
        _flux_stream(writer, f"{block}.img", old, QKV, ("norm1", "attn.to_out.0", "ff", ""))
        _flux_stream(writer, f"{block}.txt", old, ADDED, ("norm1_context", "attn.to_add_out", "ff_context", "added_"))
    for index in range(_count(state, "single_transformer_blocks")):
        block, old = f"single_blocks.{index}", f"single_transformer_blocks.{index}"
        writer.move(f"{block}.modulation.lin", f"{old}.norm.linear")
        writer.move(f"{block}.linear1", *(f"{old}.attn.{one}" for one in QKV), f"{old}.proj_mlp")
        writer.move(f"{block}.linear2", f"{old}.proj_out")
        writer.one(f"{block}.norm.query_norm.scale", f"{old}.attn.norm_q.weight")
        writer.one(f"{block}.norm.key_norm.scale", f"{old}.attn.norm_k.weight")
    writer.move("final_layer.linear", "proj_out")
    writer.move("final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True)
    return writer.done()


def _flux_stream(writer: _Writer, new: str, old: str, fused: tuple[str, ...], names: tuple[str, str, str, str]) -> None:
    norm, out, ff, added = names
    writer.move(f"{new}_mod.lin", f"{old}.{norm}.linear")
    writer.move(f"{new}_attn.qkv", *(f"{old}.attn.{one}" for one in fused))
    writer.one(f"{new}_attn.norm.query_norm.scale", f"{old}.attn.norm_{added}q.weight")
    writer.one(f"{new}_attn.norm.key_norm.scale", f"{old}.attn.norm_{added}k.weight")
    writer.move(f"{new}_attn.proj", f"{old}.{out}")
    writer.move(f"{new}_mlp.0", f"{old}.{ff}.net.0.proj")
    writer.move(f"{new}_mlp.2", f"{old}.{ff}.net.2")


def sd3(state: State) -> dict[str, torch.Tensor]:
    """Stable Diffusion 3 and 3.5 as Stability publishes them, with their prefix."""
    writer = _Writer(state)
    writer.one("pos_embed", "pos_embed.pos_embed")
    writer.move("x_embedder.proj", "pos_embed.proj")
    for new, old in {"t_embedder": "timestep", "y_embedder": "text"}.items():
        writer.move(f"{new}.mlp.0", f"time_text_embed.{old}_embedder.linear_1")
        writer.move(f"{new}.mlp.2", f"time_text_embed.{old}_embedder.linear_2")
    writer.move("context_embedder", "context_embedder")
    last = _count(state, "transformer_blocks") - 1
    for index in range(last + 1):
        _sd3_block(writer, f"joint_blocks.{index}", f"transformer_blocks.{index}", index == last)
    writer.move("final_layer.linear", "proj_out")
    writer.move("final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True)
    return {f"model.diffusion_model.{name}": tensor for name, tensor in writer.done().items()}


def _sd3_block(writer: _Writer, new: str, old: str, is_last: bool) -> None:
    for attention in ("attn", "attn2"):
        writer.move(f"{new}.x_block.{attention}.qkv", *(f"{old}.{attention}.{one}" for one in QKV))
        writer.move(f"{new}.x_block.{attention}.proj", f"{old}.{attention}.to_out.0")
        for part in "qk":
            writer.move(f"{new}.x_block.{attention}.ln_{part}", f"{old}.{attention}.norm_{part}")
    for part in "qk":
        writer.move(f"{new}.context_block.attn.ln_{part}", f"{old}.attn.norm_added_{part}")
    writer.move(f"{new}.context_block.attn.qkv", *(f"{old}.attn.{one}" for one in ADDED))
    writer.move(f"{new}.context_block.attn.proj", f"{old}.attn.to_add_out")
    writer.move(f"{new}.x_block.adaLN_modulation.1", f"{old}.norm1.linear")
    writer.move(f"{new}.context_block.adaLN_modulation.1", f"{old}.norm1_context.linear", swapped=is_last)
    for stream, ff in {"x_block": "ff", "context_block": "ff_context"}.items():
        writer.move(f"{new}.{stream}.mlp.fc1", f"{old}.{ff}.net.0.proj")
        writer.move(f"{new}.{stream}.mlp.fc2", f"{old}.{ff}.net.2")


_RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "norm2": "out_layers.0", "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1", "conv_shortcut": "skip_connection",
}  # fmt: skip
_UNET = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2",
}  # fmt: skip


def unet(state: State, layers: int) -> dict[str, torch.Tensor]:
    """The UNet of Stable Diffusion 1.5 as published; `layers` in each block."""
    return {f"model.diffusion_model.{new}": state[old] for old, new in _unet_names(state, layers)}


def _unet_names(state: State, layers: int) -> Iterator[tuple[str, str]]:
    for old in state:
        layer, kind = old.rsplit(".", 1)
        if layer in _UNET:
            yield old, f"{_UNET[layer]}.{kind}"
            continue
        parts = old.split(".")
        where, rest = _unet_place(parts, layers, state)
        module = rest.rsplit(".", 1)[0]
        yield old, f"{where}.{rest.replace(module, _RESNET[module]) if module in _RESNET else rest}"


def _unet_place(parts: list[str], layers: int, state: State) -> tuple[str, str]:
    """Where the original keeps a part, and the rest of its name."""
    if parts[0] == "mid_block":
        return f"middle_block.{1 if parts[1] == 'attentions' else 2 * int(parts[2])}", ".".join(parts[3:])
    side, block, kind, index, *rest = parts[0], int(parts[1]), parts[2], int(parts[3]), *parts[4:]
    if side == "down_blocks":
        if kind == "downsamplers":
            return f"input_blocks.{(layers + 1) * (block + 1)}.0", ".".join(["op", *rest[1:]])
        return f"input_blocks.{(layers + 1) * block + index + 1}.{int(kind == 'attentions')}", ".".join(rest)
    if kind == "upsamplers":
        attends = any(name.startswith(f"up_blocks.{block}.attentions.") for name in state)
        return f"output_blocks.{(layers + 1) * block + layers}.{1 + attends}", ".".join(rest)
    return f"output_blocks.{(layers + 1) * block + index}.{int(kind == 'attentions')}", ".".join(rest)


_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def vae(state: State, levels: int) -> dict[str, torch.Tensor]:
    """A KL autoencoder as published, whose attention is made of convolutions; `levels` of them."""
    found = {}
    for old, tensor in state.items():
        new = old.replace("conv_shortcut", "nin_shortcut").replace("conv_norm_out", "norm_out")
        new = new.replace("mid_block.resnets.0.", "mid.block_1.").replace("mid_block.resnets.1.", "mid.block_2.")
        for level in range(levels):
            up = levels - 1 - level
            new = new.replace(f"down_blocks.{level}.resnets.", f"down.{level}.block.")
            new = new.replace(f"down_blocks.{level}.downsamplers.0.", f"down.{level}.downsample.")
            new = new.replace(f"up_blocks.{level}.resnets.", f"up.{up}.block.")
            new = new.replace(f"up_blocks.{level}.upsamplers.0.", f"up.{up}.upsample.")
        if "mid_block.attentions.0." in new:
            for theirs, original in _VAE_ATTENTION.items():
                new = new.replace(f"mid_block.attentions.0.{theirs}.", f"mid.attn_1.{original}.")
            tensor = tensor[..., None, None] if tensor.ndim == 2 else tensor
        found[f"first_stage_model.{new}"] = tensor
    return found


_T5 = {
    "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b", "layer.0.layer_norm": "attn_norm",
    "layer.0.SelfAttention.q": "attn_q", "layer.0.SelfAttention.k": "attn_k", "layer.0.SelfAttention.v": "attn_v",
    "layer.0.SelfAttention.o": "attn_o", "layer.1.layer_norm": "ffn_norm", "layer.1.DenseReluDense.wi_0": "ffn_gate",
    "layer.1.DenseReluDense.wi_1": "ffn_up", "layer.1.DenseReluDense.wo": "ffn_down",
}  # fmt: skip


def t5(state: State) -> dict[str, torch.Tensor]:
    """A T5 encoder as llama.cpp names it."""
    found = {
        "token_embd.weight": state["shared.weight"],
        "enc.output_norm.weight": state["encoder.final_layer_norm.weight"],
    }
    for name, tensor in state.items():
        if name.startswith("encoder.block."):
            _, _, block, layer = name.removesuffix(".weight").split(".", 3)
            found[f"enc.blk.{block}.{_T5[layer]}.weight"] = tensor
    return found


_WAN = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "proj_out": "head.head",
}  # fmt: skip
_WAN_BLOCK = {
    "attn1": "self_attn", "attn2": "cross_attn", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o",
    "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2", "norm2": "norm3",
}  # fmt: skip


def wan(state: State) -> dict[str, torch.Tensor]:
    """Wan as published, text to video."""
    found = {}
    for name, tensor in state.items():
        layer, _, kind = name.rpartition(".")
        if name.startswith("blocks."):
            for own, theirs in _WAN_BLOCK.items():
                layer = f"{layer}.".replace(f".{own}.", f".{theirs}.").removesuffix(".")
        new = f"{_WAN.get(layer, layer)}.{kind}"
        found[new.replace("scale_shift_table", "modulation" if "blocks." in name else "head.modulation").strip(".")] = (
            tensor
        )
    return found


FULL: dict[str, tuple[Callable[[], Any], Inverse]] = {
    "FLUX.1-dev": (lambda: diffusers.FluxTransformer2DModel(guidance_embeds=True), flux),
    "SD3.5-large": (lambda: diffusers.SD3Transformer2DModel(**SD35, num_layers=38), sd3),
    "SD1.5": (
        lambda: diffusers.UNet2DConditionModel(cross_attention_dim=768),
        functools.partial(unet, layers=2),
    ),
    "SD1.5-vae": (
        lambda: diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
        ),
        functools.partial(vae, levels=4),
    ),
    "Wan2.1-14B": (lambda: diffusers.WanTransformer3DModel(), wan),
}
"""Models as they are published: how to build one, and its state dict in its authors' file."""


def shapes(state: State) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a file."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
