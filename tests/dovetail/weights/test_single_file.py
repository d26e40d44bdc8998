"""Weights in files of published layouts: every weight of the module is found, wherever the file has its numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.compiler.errors import WeightError
from dovetail.weights.name_matching import Wanted, find_weights
from dovetail.weights.single_file import Arranged, Piece, as_stored, converted
from testbed import published
from testbed.pipelines import tiny_pipelines

WHERE = Path("model.safetensors")
TINY: dict[str, tuple[Callable[[], Any], published.Inverse]] = {
    "flux": (lambda: tiny_pipelines.flux()[0].transformer, published.flux),
    "sd3": (lambda: tiny_pipelines.sd3()[0].transformer, published.sd3),
    "wan": (lambda: tiny_pipelines.wan()[0].transformer, published.wan),
    "unet": (lambda: tiny_pipelines.sd()[0].unet, functools.partial(published.unet, layers=1)),
    "vae": (lambda: tiny_pipelines.sd()[0].vae, functools.partial(published.vae, levels=2)),
}


def gathered(weight: Arranged, state: published.State) -> torch.Tensor:
    parts = [state[piece.name].reshape(-1)[piece.start : piece.stop] for piece in weight.pieces or ()]
    return torch.cat(parts).reshape(weight.shape)


def assert_finds_every_number(module: nn.Module, file: published.State) -> None:
    layout = find_weights(Wanted.of_module(module), published.shapes(file), WHERE)
    assert layout is not None
    assert layout.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(gathered(layout[name], file), tensor), name


@pytest.mark.parametrize("name", TINY)
def test_every_number_is_found_in_a_published_layout(name: str) -> None:
    make, publish = TINY[name]
    module = make()
    assert_finds_every_number(module, publish(module.state_dict()))


@pytest.mark.parametrize("name", TINY)
def test_every_number_is_found_under_diffusers_own_names_behind_a_prefix(name: str) -> None:
    module = TINY[name][0]()
    assert_finds_every_number(module, {f"part.{name}": tensor for name, tensor in module.state_dict().items()})


@pytest.mark.parametrize("name", ["flux", "sd3", "unet"])
def test_the_prefix_of_a_whole_pipelines_file_may_be_there_or_not(name: str) -> None:
    make, publish = TINY[name]
    module = make()
    prefix = "model.diffusion_model."
    file = {name.removeprefix(prefix): tensor for name, tensor in publish(module.state_dict()).items()}
    assert_finds_every_number(module, file)
    assert_finds_every_number(module, {prefix + name: tensor for name, tensor in file.items()})


def test_a_file_of_a_whole_pipeline_gives_each_component_its_own() -> None:
    pipe = tiny_pipelines.sd()[0]
    file = {**published.unet(pipe.unet.state_dict(), 1), **published.vae(pipe.vae.state_dict(), 2)}
    file |= {f"cond_stage_model.transformer.{name}": t for name, t in pipe.text_encoder.state_dict().items()}
    for component in (pipe.unet, pipe.vae, pipe.text_encoder):
        assert_finds_every_number(component, file)


@pytest.mark.parametrize("name", published.FULL)
def test_every_weight_of_a_full_size_model_is_found_in_its_published_layout(name: str) -> None:
    make, publish = published.FULL[name]
    with torch.device("meta"):
        module = make()
    layout = find_weights(Wanted.of_module(module), published.shapes(publish(module.state_dict())), WHERE)
    assert layout is not None
    assert layout.keys() == module.state_dict().keys()
    assert all(weight.pieces for weight in layout.values())
    assert {n: weight.shape for n, weight in layout.items()} == published.shapes(module.state_dict())


def test_what_a_conversion_cuts_and_joins_is_known_as_ranges_of_what_is_stored() -> None:
    def convert(checkpoint: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        query, key = checkpoint["fused"].chunk(2)
        low, high = key.split([1, 2])
        return {"q": query, "turned": torch.cat([high, low]), "point": checkpoint["conv"][:, :, 0].clone()[1:]}

    found = converted(convert, as_stored({"fused": (6, 2), "conv": (4, 5, 1)}))
    assert found["q"] == Arranged((3, 2), (Piece("fused", 0, 6),))
    assert found["turned"] == Arranged((3, 2), (Piece("fused", 8, 12), Piece("fused", 6, 8)))
    assert found["point"] == Arranged((3, 5), (Piece("conv", 5, 20),))


def test_what_a_conversion_computes_or_turns_about_is_known_not_to_be_ranges() -> None:
    def convert(checkpoint: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weight = checkpoint["w"]
        return {
            "sum": weight + 1,
            "turned": weight.T.contiguous(),
            "cut": weight[:, :2],
            "same": weight[1:].clone(),
        }

    found = converted(convert, as_stored({"w": (4, 4)}))
    assert {name: weight.pieces for name, weight in found.items()} == {
        "sum": None, "turned": None, "cut": None, "same": (Piece("w", 4, 16),),
    }  # fmt: skip


def test_a_split_at_the_published_width_is_taken_in_proportion() -> None:
    found = converted(lambda file: dict(zip("abc", file["w"].split([4, 4, 16]), strict=True)), as_stored({"w": (6, 1)}))
    assert [found[name].shape for name in "abc"] == [(1, 1), (1, 1), (4, 1)]
    assert converted(lambda file: {"a": file["w"].split([4, 16])[0]}, as_stored({"w": (6, 1)})) == {}


def test_a_file_that_lacks_a_weight_says_which() -> None:
    module = tiny_pipelines.flux()[0].transformer
    file = published.shapes(published.flux(module.state_dict()))
    del file["img_in.bias"]
    with pytest.raises(WeightError, match=r"lacks img_in.bias of FluxTransformer2DModel: download it again"):
        find_weights(Wanted.of_module(module), file, WHERE)
    own = published.shapes(module.state_dict())
    del own["x_embedder.bias"]
    with pytest.raises(WeightError, match=r"lacks x_embedder.bias of FluxTransformer2DModel: download it again"):
        find_weights(Wanted.of_module(module), own, WHERE)


def test_a_file_of_another_configuration_says_both_shapes() -> None:
    module = tiny_pipelines.flux()[0].transformer
    file = published.shapes(published.flux(module.state_dict()))
    file["img_in.weight"] = (32, 64)
    with pytest.raises(WeightError, match=r"has x_embedder.weight as \[32, 64\], \w+ needs \[32, 16\]: the files"):
        find_weights(Wanted.of_module(module), file, WHERE)


def test_a_file_of_another_model_says_what_it_seems_to_be() -> None:
    pipe = tiny_pipelines.flux()[0]
    with pytest.raises(WeightError, match=r"not for AutoencoderKL: it looks like black-forest-labs/FLUX.1"):
        find_weights(Wanted.of_module(pipe.vae), published.shapes(published.flux(pipe.transformer.state_dict())), WHERE)
    with pytest.raises(WeightError, match=r"not for AutoencoderKL: its weights are called shared.weight: give it"):
        find_weights(Wanted.of_module(pipe.vae), {"shared.weight": (4, 4)}, WHERE)


def test_a_weight_that_the_file_has_in_another_order_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    def convert(checkpoint: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        state = {name.removeprefix("theirs_"): tensor for name, tensor in checkpoint.items()}
        return {**state, "x_embedder.weight": state["x_embedder.weight"].T.contiguous()}

    monkeypatch.setitem(SINGLE_FILE_LOADABLE_CLASSES, "FluxTransformer2DModel", {"checkpoint_mapping_fn": convert})
    module = tiny_pipelines.flux()[0].transformer
    file = {f"theirs_{name}": shape for name, shape in published.shapes(module.state_dict()).items()}
    file["theirs_x_embedder.weight"] = (16, 32)
    with pytest.raises(WeightError, match=r"stores x_embedder.weight of FluxTransformer2DModel in another order of"):
        find_weights(Wanted.of_module(module), file, WHERE)
