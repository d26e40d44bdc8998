"""What methods of modules and pipelines do to weights: state dicts, casts, fused projections, tables of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .change import add, change
from .in_weights import drawn, layer
from .models import FLUX, SD, modules

LOAD, CAST, SHAPE = "load_state_dict", "cast", "fused or resized"


def _new_state(module: Any) -> dict[str, torch.Tensor]:
    return {name: drawn(torch.empty(one.shape)) for name, one in module.state_dict().items()}


@change(LOAD, FLUX)
def load_a_part(pipe: Any) -> None:
    layer(pipe).load_state_dict(_new_state(layer(pipe)))


@change(LOAD, FLUX)
def assign_a_part(pipe: Any) -> None:
    layer(pipe).load_state_dict(_new_state(layer(pipe)), assign=True)


@change(LOAD, FLUX)
def load_a_block(pipe: Any) -> None:
    block = pipe.transformer.transformer_blocks[0]
    block.load_state_dict({name: one * 0.5 for name, one in block.state_dict().items()})


@change(LOAD, FLUX)
def assign_a_block(pipe: Any) -> None:
    block = pipe.transformer.transformer_blocks[0]
    block.load_state_dict({name: one * 0.5 for name, one in block.state_dict().items()}, assign=True)


@change(LOAD, FLUX)
def load_a_component(pipe: Any) -> None:
    pipe.transformer.load_state_dict(_new_state(pipe.transformer))


@change(LOAD, FLUX)
def assign_a_component(pipe: Any) -> None:
    pipe.transformer.load_state_dict(_new_state(pipe.transformer), assign=True)


@change(LOAD, FLUX)
def load_a_component_from_its_own_state(pipe: Any) -> None:
    pipe.transformer.load_state_dict({name: one * 0.5 for name, one in pipe.transformer.state_dict().items()})


@change(LOAD, FLUX)
def load_some_of_a_component(pipe: Any) -> None:
    name = "transformer_blocks.0.attn.to_q.weight"
    pipe.transformer.load_state_dict({name: drawn(torch.empty(256, 256))}, strict=False)


@change(LOAD, FLUX, is_seen=False)
def load_the_same(pipe: Any) -> None:
    pipe.transformer.load_state_dict(pipe.transformer.state_dict())


@change(LOAD, FLUX)
def load_the_vae(pipe: Any) -> None:
    pipe.vae.load_state_dict(_new_state(pipe.vae))


@change(LOAD, SD)
def load_the_text_encoder(pipe: Any) -> None:
    pipe.text_encoder.load_state_dict(_new_state(pipe.text_encoder))


@change(LOAD, FLUX)
def write_through_the_state(pipe: Any) -> None:
    pipe.transformer.state_dict()["transformer_blocks.0.attn.to_q.weight"].mul_(-3)


@change(LOAD, FLUX)
def write_through_the_state_of_a_part(pipe: Any) -> None:
    layer(pipe).state_dict()["weight"].copy_(drawn(torch.empty(256, 256)))


@change(LOAD, FLUX)
def write_through_all_of_the_state(pipe: Any) -> None:
    for one in pipe.transformer.state_dict().values():
        one.mul_(0.6)


# Casts. A pipeline paints in one dtype, so all its components are cast.

CASTS: dict[str, Callable[[Any], Any]] = {
    "half": lambda part: part.half(),
    "bfloat16": lambda part: part.bfloat16(),
    "float": lambda part: part.float(),
    "double": lambda part: part.double(),
    "to_bfloat16": lambda part: part.to(torch.bfloat16),
    "to_double": lambda part: part.to(dtype=torch.float64),
    "type_double": lambda part: part.type(torch.float64),
    "bfloat16_then_float": lambda part: part.bfloat16().float(),
    "half_then_float": lambda part: part.half().float(),
    "to_bfloat16_then_to_float": lambda part: part.to(torch.bfloat16).to(torch.float32),
    "bfloat16_then_half": lambda part: part.bfloat16().half(),
    "double_then_float": lambda part: part.double().float(),
    "applied": lambda part: part._apply(lambda one: one * 0.9 if one.is_floating_point() else one),
}


def _of_all(cast: Callable[[Any], Any]) -> Callable[[Any], None]:
    def apply(pipe: Any) -> None:
        for part in modules(pipe).values():
            cast(part)

    return apply


for _name, _cast in CASTS.items():
    add(f"cast_{_name}", CAST, FLUX, _of_all(_cast), is_seen=_name not in ("float", "double_then_float"))
add("cast_float_later", CAST, FLUX, _of_all(lambda part: part.bfloat16()), _of_all(lambda part: part.float()))
add("cast_sd_bfloat16_then_float", CAST, SD, _of_all(lambda part: part.bfloat16().float()))
add("cast_sd_half", CAST, SD, _of_all(lambda part: part.half()))


@change(CAST, FLUX)
def round_a_block(pipe: Any) -> None:
    pipe.transformer.transformer_blocks[0].bfloat16().float()


@change(CAST, FLUX)
def round_the_transformer(pipe: Any) -> None:
    pipe.transformer.bfloat16()
    pipe.transformer.float()


@change(CAST, FLUX)
def round_and_write(pipe: Any) -> None:
    pipe.transformer.bfloat16().float()
    layer(pipe).weight.data.mul_(-3)


@change(CAST, FLUX)
def write_and_round(pipe: Any) -> None:
    layer(pipe).weight.data.mul_(-3.3)
    pipe.transformer.bfloat16().float()


@change(CAST, FLUX)
def cast_the_pipeline(pipe: Any) -> None:
    pipe.to(torch.bfloat16)


@change(CAST, FLUX)
def apply_to_each_module(pipe: Any) -> None:
    pipe.transformer.apply(_double)


def _double(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.mul_(2)


# Projections and tables of tokens


@change(SHAPE, SD, is_seen=False)
def fuse_projections(pipe: Any) -> None:
    pipe.fuse_qkv_projections()


@change(SHAPE, FLUX, is_seen=False)
def fuse_projections_of_a_transformer(pipe: Any) -> None:
    pipe.transformer.fuse_qkv_projections()


@change(SHAPE, FLUX)
def write_and_fuse_projections(pipe: Any) -> None:
    layer(pipe).weight.data.mul_(-3)
    pipe.transformer.fuse_qkv_projections()


def _unfuse(pipe: Any) -> None:
    pipe.unfuse_qkv_projections()


add("unfuse_projections", SHAPE, SD, fuse_projections, _unfuse, is_seen=False)


def _grow(pipe: Any, more: int, **options: Any) -> Any:
    torch.manual_seed(5)
    pipe.text_encoder.resize_token_embeddings(len(pipe.tokenizer) + more, **options)
    return pipe.text_encoder.get_input_embeddings().weight


@change(SHAPE, SD, is_seen=False)
def grow_the_table_of_tokens(pipe: Any) -> None:
    _grow(pipe, 5)


@change(SHAPE, SD)
def grow_the_table_of_tokens_and_use_it(pipe: Any) -> None:
    table = _grow(pipe, 5, mean_resizing=False)
    row = pipe.tokenizer("a red circle").input_ids[1]
    table.data[row] = table.data[len(pipe.tokenizer) + 2]


@change(SHAPE, SD, call={"prompt": "a <mine>"})
def add_a_token(pipe: Any) -> None:
    pipe.tokenizer.add_tokens("<mine>")
    table = _grow(pipe, 0)
    table.data[pipe.tokenizer.convert_tokens_to_ids("<mine>")] = 0.7


@change(SHAPE, SD, is_seen=False)
def shrink_the_table_of_tokens(pipe: Any) -> None:
    _grow(pipe, -2)
