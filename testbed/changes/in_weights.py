"""Writes into the tensors that a pipeline's modules hold, and other tensors in their place."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from .change import add, change
from .models import FLUX, SD

REPLACE, WRITE, ALIAS, RAW = "replaced", "written in place", "written through an alias", "raw memory"


def layer(pipe: Any) -> Any:
    """A layer of a block, whose matrix is split by rows."""
    return pipe.transformer.transformer_blocks[0].attn.to_q


def weight(pipe: Any) -> Any:
    return layer(pipe).weight


def drawn(like: Any, seed: int = 1) -> torch.Tensor:
    """Numbers that are the same wherever they are asked for, large enough to be seen."""
    made = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)
    return 0.5 * made.to(like.device)


# What is replaced


@change(REPLACE, FLUX)
def replace_a_module(pipe: Any) -> None:
    torch.manual_seed(3)
    pipe.transformer.transformer_blocks[0].attn.to_q = nn.Linear(256, 256)


@change(REPLACE, FLUX)
def replace_a_module_outside_of_blocks(pipe: Any) -> None:
    torch.manual_seed(3)
    pipe.transformer.proj_out = nn.Linear(256, 16)


@change(REPLACE, SD)
def replace_a_convolution(pipe: Any) -> None:
    torch.manual_seed(3)
    pipe.unet.conv_out = nn.Conv2d(8, 4, 3, padding=1)


@change(REPLACE, FLUX)
def replace_a_module_by_its_changed_copy(pipe: Any) -> None:
    mine = copy.deepcopy(layer(pipe))
    with torch.no_grad():
        mine.weight.mul_(-3)
    pipe.transformer.transformer_blocks[0].attn.to_q = mine


@change(REPLACE, FLUX)
def replace_a_module_of_the_vae(pipe: Any) -> None:
    torch.manual_seed(3)
    pipe.vae.decoder.conv_out = nn.Conv2d(8, 3, 3, padding=1)


@change(REPLACE, FLUX)
def replace_a_module_of_the_text_encoder(pipe: Any) -> None:
    torch.manual_seed(3)
    width = pipe.text_encoder_2.config.d_model
    pipe.text_encoder_2.encoder.block[0].layer[0].SelfAttention.v = nn.Linear(width, width, bias=False)


@change(REPLACE, FLUX)
def replace_a_parameter(pipe: Any) -> None:
    layer(pipe).weight = nn.Parameter(drawn(torch.empty(256, 256)))


@change(REPLACE, FLUX)
def replace_a_parameter_by_what_comes_of_it(pipe: Any) -> None:
    layer(pipe).weight = nn.Parameter(weight(pipe).detach().clone() * -3)


@change(REPLACE, FLUX)
def replace_a_parameter_by_another_of_the_model(pipe: Any) -> None:
    layer(pipe).weight = pipe.transformer.transformer_blocks[0].attn.to_k.weight


@change(REPLACE, FLUX)
def register_a_parameter(pipe: Any) -> None:
    layer(pipe).register_parameter("weight", nn.Parameter(drawn(torch.empty(256, 256))))


@change(REPLACE, FLUX)
def take_a_bias_out(pipe: Any) -> None:
    pipe.transformer.proj_out.bias = None


@change(REPLACE, FLUX)
def swap_tensors(pipe: Any) -> None:
    torch.utils.swap_tensors(layer(pipe).weight, nn.Parameter(drawn(torch.empty(256, 256))))


@change(REPLACE, SD)
def replace_a_component(pipe: Any) -> None:
    pipe.unet = copy.deepcopy(pipe.unet)
    with torch.no_grad():
        pipe.unet.conv_out.weight.mul_(-2)


@change(REPLACE, FLUX)
def replace_the_table_of_tokens(pipe: Any) -> None:
    torch.manual_seed(3)
    table = pipe.text_encoder_2.get_input_embeddings()
    pipe.text_encoder_2.set_input_embeddings(nn.Embedding(table.num_embeddings, table.embedding_dim))


# What is written in place: each of these writes all of a weight, or rows of it

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "data_add": lambda w: w.data.__iadd__(drawn(w)),
    "data_mul": lambda w: w.data.mul_(-3),
    "data_item": lambda w: w.data.__setitem__((0, 0), 500),
    "data_row": lambda w: w.data.__setitem__(3, torch.full((w.shape[1],), 9.0)),
    "data_slice": lambda w: w.data[:, 2:9].fill_(4.0),
    "data_mask": lambda w: w.data.__setitem__(torch.arange(w.shape[0], device=w.device) % 2 == 0, 0.5),
    "data_copy": lambda w: w.data.copy_(drawn(w)),
    "data_zero": lambda w: w.data.zero_(),
    "data_set": lambda w: w.data.set_(drawn(w)),
    "data_is_new": lambda w: setattr(w, "data", drawn(w)),
    "data_is_of_itself": lambda w: setattr(w, "data", w.data * -3),
    "add": lambda w: w.add_(drawn(w)),
    "mul": lambda w: w.mul_(-3),
    "item": lambda w: w.__setitem__((0, 0), 500),
    "row": lambda w: w.__setitem__(3, 9.0),
    "zero": lambda w: w.zero_(),
    "set": lambda w: w.set_(drawn(w)),
    "set_storage": lambda w: w.set_(drawn(w).untyped_storage(), 0, w.shape, w.stride()),
    "copy": lambda w: w.copy_(drawn(w)),
    "fill": lambda w: w.fill_(0.01),
    "addcmul": lambda w: w.addcmul_(drawn(w), drawn(w, 2), value=5),
    "lerp": lambda w: w.lerp_(drawn(w), 0.7),
    "clamp": lambda w: w.clamp_(0, 0.01),
    "transposed": lambda w: w.t().copy_(drawn(w.t())),
    "flat": lambda w: w.view(-1)[:999].fill_(2.0),
    "row_of_rows": lambda w: w[5:9].mul_(40),
    "unbound": lambda w: [row.mul_(-4) for row in w.unbind()[:40]],
    "masked_fill": lambda w: w.masked_fill_(w > 0, 0.0),
    "index_copy": lambda w: w.index_copy_(0, torch.tensor([1, 4], device=w.device), drawn(w[:2]) * 20),
    "out": lambda w: torch.mul(w, -3, out=w),
    "init_zeros": lambda w: nn.init.zeros_(w),
    "init_orthogonal": lambda w: _in_turn(w, lambda one: torch.manual_seed(4), nn.init.orthogonal_),
    "init_eye": lambda w: nn.init.eye_(w),
    "foreach_mul": lambda w: torch._foreach_mul_([w], -3),
    "foreach_add": lambda w: torch._foreach_add_([w.data], [drawn(w)]),
    "foreach_copy": lambda w: torch._foreach_copy_([w], [drawn(w)]),
    "foreach_zero": lambda w: torch._foreach_zero_([w]),
    "foreach_lerp": lambda w: torch._foreach_lerp_([w], [drawn(w)], 0.7),
}
THROUGH: dict[str, Callable[[Any], Any]] = {
    "detach": lambda w: w.detach().mul_(-3),
    "detach_twice": lambda w: w.detach().detach()[2:90].fill_(0.3),
    "data_kept": lambda w: _in_turn(w.data, lambda kept: kept.mul_(2), lambda kept: kept.add_(0.3)),
    "written_twice": lambda w: (w.mul_(-2), w.data.add_(0.2)),
    "view_kept": lambda w: _in_turn(w[4:80], lambda kept: w.mul_(-2), lambda kept: kept.fill_(0.2)),
    "detach_kept_before": lambda w: _in_turn(w.detach(), lambda kept: w.mul_(-2), lambda kept: kept.mul_(-3)),
    "parameter_over_it": lambda w: nn.Parameter(w.data).data.mul_(-3),
    "requires_grad": lambda w: w.requires_grad_(False).mul_(-3),
}
MEMORY: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda w: w.detach().numpy().__setitem__((0, 0), 500),
    "data_numpy": lambda w: w.data.numpy().fill(0.02),
    "numpy_asarray": lambda w: np.asarray(w.detach()).__imul__(-3),
    "untyped_storage": lambda w: w.untyped_storage().copy_(drawn(w).untyped_storage()),
    "data_untyped_storage": lambda w: w.data.untyped_storage().fill_(0),
    "typed_storage": lambda w: w.detach().storage().__setitem__(0, 500.0),
    "dlpack": lambda w: torch.from_dlpack(w.detach()).mul_(-3),
    "dlpack_numpy": lambda w: np.from_dlpack(w.detach()),
    "share_memory": lambda w: w.data.share_memory_().mul_(-3),
    "data_ptr": lambda w: ctypes.memset(w.data_ptr(), 0, w.nbytes),
    "view_of_storage": lambda w: torch.empty(0).set_(w.untyped_storage()).fill_(0.02),
}


def _in_turn(kept: Any, *uses: Callable[[Any], Any]) -> None:
    for use in uses:
        use(kept)


def written(use: Callable[[Any], Any], to: Callable[[Any], Any] = weight) -> Callable[[Any], None]:
    def write(pipe: Any) -> None:
        with torch.no_grad():
            use(to(pipe))

    return write


for _kind, _uses in {WRITE: IN_PLACE, ALIAS: THROUGH, RAW: MEMORY}.items():
    for _name, _use in _uses.items():
        add(_name, _kind, FLUX, written(_use), is_seen=_name not in ("data_set", "dlpack_numpy"))

PLACES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "first_weight": (FLUX, lambda pipe: next(pipe.transformer.parameters())),
    "bias": (FLUX, lambda pipe: pipe.transformer.transformer_blocks[0].attn.to_v.bias),
    "outer": (FLUX, lambda pipe: pipe.transformer.proj_out.weight),
    "norm": (FLUX, lambda pipe: pipe.transformer.transformer_blocks[0].attn.norm_q.weight),
    "vae": (FLUX, lambda pipe: pipe.vae.decoder.conv_in.weight),
    "tokens": (FLUX, lambda pipe: pipe.text_encoder_2.get_input_embeddings().weight),
    "text": (SD, lambda pipe: pipe.text_encoder.text_model.encoder.layers[1].mlp.fc1.weight
             if hasattr(pipe.text_encoder, "text_model") else pipe.text_encoder.encoder.layers[1].mlp.fc1.weight),
    "convolution": (SD, lambda pipe: pipe.unet.conv_in.weight),
}  # fmt: skip
for _name, (_model, _place) in PLACES.items():
    add(f"data_add_to_{_name}", WRITE, _model, written(lambda w: w.data.__iadd__(drawn(w)), _place))
    add(f"zero_{_name}", WRITE, _model, written(lambda w: w.zero_(), _place))
