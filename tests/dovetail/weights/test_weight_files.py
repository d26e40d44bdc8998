"""Files of weights that a person gives: published layouts, GGUF types, for a module or a pipeline's component."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.runtime import sim
from dovetail.weights.files import open_weights
from testbed import published
from testbed.pipelines import tiny_pipelines

from .weight_files import save_gguf

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "sim0&sim1"
SLOW = pytest.mark.slow
Inverse = Callable[[published.State], dict[str, torch.Tensor]]


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _flux_call() -> dict[str, Any]:
    return {
        "hidden_states": _numbers(1, 16, 16),
        "encoder_hidden_states": _numbers(1, 8, 32),
        "pooled_projections": _numbers(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
    }


def _sd3_call() -> dict[str, Any]:
    return {
        "hidden_states": _numbers(1, 4, 16, 16),
        "encoder_hidden_states": _numbers(1, 8, 64),
        "pooled_projections": _numbers(1, 64),
        "timestep": torch.tensor([500]),
    }


def _unet_call() -> dict[str, Any]:
    return {"sample": _numbers(1, 4, 16, 16), "timestep": torch.tensor(7), "encoder_hidden_states": _numbers(1, 8, 32)}


MODELS: dict[str, tuple[Callable[[], Any], Inverse, Callable[[], dict[str, Any]]]] = {
    "flux": (lambda: tiny_pipelines.flux()[0].transformer, published.flux, _flux_call),
    "sd3": (lambda: tiny_pipelines.sd3()[0].transformer, published.sd3, _sd3_call),
    "unet": (lambda: tiny_pipelines.sd()[0].unet, functools.partial(published.unet, layers=1), _unet_call),
    "vae": (
        lambda: tiny_pipelines.sd()[0].vae,
        functools.partial(published.vae, levels=2),
        lambda: {"sample": _numbers(1, 3, 16, 16)},
    ),
}


def empty(module: Any) -> Any:
    """A module of the same configuration without weights."""
    with accelerate.init_empty_weights(include_buffers=False):
        return type(module).from_config(module.config).eval()


def with_state(module: Any, state: published.State) -> Any:
    """A module of the same configuration, with weights that were copied from others."""
    made = type(module).from_config(module.config).eval()
    made.load_state_dict(state)
    return made


def answer(module: Any, call: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(**call, return_dict=False)[0]
    return result


def spoken_back(held: published.State, module: Any, publish: Inverse) -> dict[str, torch.Tensor]:
    """The numbers that a published file holds, under the module's names: found by numbering each of them."""
    start, numbered = 0, {}
    for name, tensor in module.state_dict().items():
        numbered[name] = torch.arange(start, start + tensor.numel()).reshape(tensor.shape)
        start += tensor.numel()
    flat = torch.empty(start)
    for name, places in publish(numbered).items():
        flat[places.reshape(-1)] = held[name].reshape(-1)
    return {name: flat[places] for name, places in numbered.items()}


@pytest.mark.fifth
@pytest.mark.parametrize("name", ["sd3", *(pytest.param(name, marks=SLOW) for name in ("flux", "unet", "vae"))])
def test_a_published_safetensors_file_computes_what_the_diffusers_model_does(name: str, tmp_path: Path) -> None:
    make, publish, call = MODELS[name]
    module = make()
    save_file(
        {key: value.contiguous() for key, value in publish(module.state_dict()).items()}, tmp_path / "m.safetensors"
    )
    kwargs = {**call(), "return_dict": False}
    compiled = dovetail.compile(empty(module), kwargs=kwargs, weights=tmp_path / "m.safetensors", backend=SPREAD)
    assert torch.equal(compiled(**kwargs)[0], answer(with_state(module, module.state_dict()), call()))


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("flux", "F16"),
        ("sd3", "Q8_0"),
        *(pytest.param("flux", kind, marks=SLOW) for kind in ("F32", "BF16", "Q8_0")),
        *(pytest.param("sd3", kind, marks=SLOW) for kind in ("F32", "F16", "BF16")),
    ],
)
def test_a_published_gguf_file_computes_what_the_diffusers_model_does_with_its_numbers(
    name: str, kind: str, tmp_path: Path
) -> None:
    make, publish, call = MODELS[name]
    module = make()
    held = save_gguf(publish(module.state_dict()), tmp_path / "m.gguf", kind)
    kwargs = {**call(), "return_dict": False}
    compiled = dovetail.compile(empty(module), kwargs=kwargs, weights=tmp_path / "m.gguf", backend=SPREAD)
    expected = answer(with_state(module, spoken_back(held, module, publish)), call())
    assert torch.equal(compiled(**kwargs)[0], expected)
    types = {weight.quant for weight in compiled.program.weights.values() if len(weight.shape) == 2}
    assert types - {"F16"} == {"F32": {""}, "F16": set()}.get(kind, {kind})
    compiled.save(tmp_path / "plan.json")
    again = dovetail.load(tmp_path / "plan.json", weights=tmp_path / "m.gguf")
    assert torch.equal(again(**kwargs)[0], expected)


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline whose transformer has no weights of its own."""
    folder = tmp_path_factory.mktemp("flux")
    tiny_pipelines.flux()[0].save_pretrained(folder)
    for file in (folder / "transformer").glob("*.safetensors"):
        file.unlink()
    return folder


@pytest.mark.fifth
@pytest.mark.parametrize(("kind", "key"), [("safetensors", "transformer"), ("Q8_0", "diffusion")])
def test_a_component_is_loaded_from_a_published_file_in_place_of_its_own(
    kind: str, key: str, flux: Path, tmp_path: Path
) -> None:
    module = tiny_pipelines.flux()[0].transformer
    file = published.flux(module.state_dict())
    if kind == "safetensors":
        save_file(file, tmp_path / "m.safetensors")
    else:
        held = save_gguf(file, tmp_path / "m.gguf", kind)
        module.load_state_dict(spoken_back(held, module, published.flux))
    (path,) = tmp_path.glob("m.*")
    pipe = dovetail.load_pipeline(flux, "diffusion=sim0&sim1,te=sim1,vae=sim0", weights={key: path})
    assert torch.equal(answer(pipe.transformer, _flux_call()), answer(module, _flux_call()))


@pytest.mark.fifth
@pytest.mark.parametrize("rests", [pytest.param("cpu", marks=SLOW), "disk"])
def test_packed_weights_that_rest_elsewhere_compute_the_same_and_come_back_as_the_files_numbers(
    rests: str, flux: Path, tmp_path: Path
) -> None:
    module = tiny_pipelines.flux()[0].transformer
    held = save_gguf(published.flux(module.state_dict()), tmp_path / "m.gguf", "Q8_0")
    numbers = spoken_back(held, module, published.flux)
    module.load_state_dict(numbers)
    pipe = dovetail.load_pipeline(
        flux, "diffusion=sim0&sim1", params_backend=rests, weights={"transformer": tmp_path / "m.gguf"}
    )
    assert torch.equal(answer(pipe.transformer, _flux_call()), answer(module, _flux_call()))
    pipe.transformer.save_pretrained(tmp_path / "saved")
    pipe.dovetail.undo()
    for state in (
        load_file(tmp_path / "saved" / "diffusion_pytorch_model.safetensors"),
        pipe.transformer.state_dict(),
    ):
        assert state.keys() == numbers.keys()
        assert all(torch.equal(state[name], number) for name, number in numbers.items())


@pytest.mark.fifth
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_text_encoder_is_loaded_from_a_file_of_llama_cpps(kind: str, flux: Path, tmp_path: Path) -> None:
    encoder = tiny_pipelines.flux()[0].text_encoder_2
    held = save_gguf(published.t5(encoder.state_dict()), tmp_path / "t5.gguf", kind, "t5encoder")
    numbers = spoken_back(held, encoder, published.t5)
    encoder.load_state_dict({**numbers, "encoder.embed_tokens.weight": numbers["shared.weight"]})
    given = {"text_encoder_2": tmp_path / "t5.gguf"}
    pipe = dovetail.load_pipeline(flux, SPREAD, weights=given, components={"transformer": None})
    ids = torch.tensor([[3, 5, 4, 1]])
    with torch.no_grad():
        wanted = encoder(ids)[0]
    assert torch.equal(pipe.text_encoder_2(ids)[0].cpu(), wanted)


def _reinitialized(module: nn.Module, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return module


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Stable Diffusion XL with two text encoders of one configuration and other weights, saved and as it was."""
    pipe, _ = tiny_pipelines.sdxl()
    config = pipe.text_encoder_2.config
    for name, seed in (("text_encoder", 1), ("text_encoder_2", 2)):
        setattr(pipe, name, _reinitialized(type(pipe.text_encoder_2)(config).eval(), seed))
    folder = tmp_path_factory.mktemp("twins")
    pipe.save_pretrained(folder)
    return folder, pipe


@pytest.mark.fifth
@pytest.mark.parametrize("backend", [pytest.param("sim0", marks=SLOW), SPREAD])
@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=SLOW) for kind in ("own", "safetensors")), "Q8_0"])
def test_of_two_components_with_the_same_names_and_shapes_each_gets_its_own(
    kind: str, backend: str, twins: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, pipe = twins
    names = ("text_encoder", "text_encoder_2")
    expected = {name: dict(getattr(pipe, name).state_dict()) for name in names}
    given = None
    if kind == "safetensors":
        for name in names:
            save_file(expected[name], tmp_path / f"{name}.safetensors")
        given = {name: tmp_path / f"{name}.safetensors" for name in names}
    elif kind != "own":
        expected = {name: save_gguf(expected[name], tmp_path / f"{name}.gguf", kind) for name in names}
        given = {name: tmp_path / f"{name}.gguf" for name in names}
    loaded = dovetail.load_pipeline(folder, backend, weights=given)
    ids = torch.tensor([[1, 5, 3, 2]])
    for name in names:
        eager = type(pipe.text_encoder_2)(pipe.text_encoder_2.config).eval()
        eager.load_state_dict(expected[name])
        with torch.no_grad():
            wanted = eager(ids).last_hidden_state
        assert torch.equal(getattr(loaded, name)(ids).last_hidden_state.cpu(), wanted), name


def test_of_two_files_with_the_same_weights_in_one_list_one_is_refused(tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        save_file({"weight": torch.ones(2, 2)}, file)
    with pytest.raises(WeightError, match=r"b.safetensors has weight, which a file before it has too: give one"):
        dovetail.compile(nn.Linear(2, 2, bias=False), (torch.ones(1, 2),), weights=files)


def test_parts_of_a_checkpoint_may_be_listed_or_lie_in_a_folder(tmp_path: Path) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(1, 4)
    save_file({"weight": layer.weight.detach()}, tmp_path / "a.safetensors")
    save_file({"bias": layer.bias.detach()}, tmp_path / "b.safetensors")
    for given in (tmp_path, sorted(tmp_path.iterdir())):
        compiled = dovetail.compile(nn.Linear(4, 4).to("meta"), (x,), weights=given, backend="sim0")
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            {"controlnet": "f"},
            "weights: this pipeline has no 'controlnet': name one of its components, each once: text_encoder,",
        ),
        ({"te": "f"}, "weights: 'te' means text_encoder and text_encoder_2: name one of its components"),
        (
            {"transformer": "f", "diffusion": "f"},
            "'diffusion' means transformer: name one of its components, each once",
        ),
    ],
)
def test_weights_for_no_component_or_for_several_are_refused(weights: dict[str, str], message: str, flux: Path) -> None:
    with pytest.raises(UsageError, match=message):
        dovetail.load_pipeline(flux, "cpu", weights=weights)


def test_a_file_that_was_named_and_is_not_there_is_not_to_be_downloaded_again(tmp_path: Path) -> None:
    for name in ("nowhere.safetensors", "nowhere.gguf", "nowhere.json"):
        with pytest.raises(WeightError, match=f"{name} is missing: name a safetensors or GGUF file that is there"):
            open_weights(tmp_path / name)


def test_weights_that_cannot_be_read_or_belong_elsewhere_load_nothing(flux: Path, tmp_path: Path) -> None:
    state = {f"encoder.block.{i}.weight": torch.ones(2) for i in range(4)}
    save_file(state, tmp_path / "other.safetensors")
    (tmp_path / "model.ckpt").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "other.safetensors": "is not for FluxTransformer2DModel: its weights are called encoder.block.0.weight, ",
        "model.ckpt": "is a pickle, which can run code and is not read: convert it to safetensors first",
        "nowhere.gguf": "there is no file .*nowhere.gguf for 'transformer'",
        "empty": "should hold one checkpoint and has no safetensors or GGUF file: name the file",
    }.items():
        with pytest.raises(WeightError, match=message):
            dovetail.load_pipeline(flux, SPREAD, weights={"transformer": tmp_path / name})
    gc.collect()
    assert [sim.stats(index).in_use for index in range(2)] == [0, 0]
