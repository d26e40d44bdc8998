import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

import dovetail
from dovetail.demo import CALL_DEFAULTS, adapter, folder
from dovetail.demo.check import read
from dovetail.demo.draw import Scene, Thing, held_out_captions, in_blue
from dovetail.demo.evaluate import load, paint, wrong
from dovetail.demo.text import clip_tokenizer, t5_tokenizer
from tests.cases import slow_but

SCENE = Scene(Thing("red", "circle"), Thing("blue", "square"), "above")
CAPTION = "a red circle above a blue square"


@pytest.fixture(scope="module")
def pipeline() -> FluxPipeline:
    return load()


@pytest.mark.fifth
def test_a_handful_of_held_out_captions_come_out_right(pipeline: FluxPipeline) -> None:
    assert wrong(pipeline, 10) == []


@pytest.mark.slow
def test_ninety_of_a_hundred_held_out_captions_come_out_right(pipeline: FluxPipeline) -> None:
    assert len(wrong(pipeline, 100)) <= 10


@pytest.mark.slow
@pytest.mark.parametrize(("length", "count"), [(16, 20), (77, 20), (512, 10)])
def test_padding_to_another_length_does_not_matter(pipeline: FluxPipeline, length: int, count: int) -> None:
    wanted = held_out_captions()[:count]
    seeds = [torch.Generator("cpu").manual_seed(seed) for seed in range(count)]
    arguments = {**CALL_DEFAULTS, "negative_prompt": [""] * count, "max_sequence_length": length, "generator": seeds}
    pictures = pipeline([caption for caption, _ in wanted], **arguments).images
    right = [read(np.asarray(picture)) == scene for picture, (_, scene) in zip(pictures, wanted, strict=True)]
    assert sum(right) >= 0.9 * count


def test_one_plain_call_with_the_defaults_paints_a_picture(pipeline: FluxPipeline) -> None:
    picture = pipeline(CAPTION, generator=torch.Generator("cpu").manual_seed(0), **CALL_DEFAULTS).images[0]
    seen = read(np.asarray(picture))
    assert picture.size == (64, 64)
    assert seen == SCENE


def test_the_same_seed_paints_the_same_picture(pipeline: FluxPipeline) -> None:
    first, second, other = (paint(pipeline, [CAPTION], [seed])[0] for seed in (5, 5, 6))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_weights_are_at_most_16_megabytes_of_bfloat16() -> None:
    files = list(folder().rglob("*.safetensors"))
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) <= 16_000_000


def test_the_folder_is_a_plain_flux_pipeline() -> None:
    index = json.loads((folder() / "model_index.json").read_text())
    assert index["_class_name"] == "FluxPipeline"
    assert {entry[0] for entry in index.values() if isinstance(entry, list) and entry[0]} == {
        "diffusers",
        "transformers",
    }


def test_the_tokenizers_keep_no_length_of_an_earlier_call() -> None:
    files = [folder() / name / "tokenizer.json" for name in ("tokenizer", "tokenizer_2")]
    assert [json.loads(file.read_text())["padding"] for file in files] == [None, None]


def test_no_file_tells_where_the_pipeline_was_trained() -> None:
    texts = [file.read_text() for file in folder().rglob("*.json")]
    assert not any("_name_or_path" in text for text in texts)


def test_the_transformer_has_a_block_for_each_of_three_devices(pipeline: FluxPipeline) -> None:
    transformer = pipeline.transformer
    assert transformer.inner_dim >= 256
    assert len(transformer.transformer_blocks) >= 1
    assert len(transformer.single_transformer_blocks) >= 1
    assert len(transformer.transformer_blocks) + len(transformer.single_transformer_blocks) >= 3


def test_importing_the_demo_imports_no_libraries() -> None:
    code = "import sys, dovetail.demo; print([m for m in ('torch', 'diffusers', 'numpy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_tokenizers_are_the_ones_that_a_new_training_would_make(pipeline: FluxPipeline) -> None:
    assert pipeline.tokenizer.get_vocab() == clip_tokenizer().get_vocab()
    assert pipeline.tokenizer_2.get_vocab() == t5_tokenizer().get_vocab()


@pytest.mark.fifth
def test_with_its_adapter_it_paints_the_same_shapes_at_the_same_places_in_blue(pipeline: FluxPipeline) -> None:
    pipeline.load_lora_weights(adapter())
    assert wrong(pipeline, 10, in_blue) == []
    pipeline.unload_lora_weights()
    assert wrong(pipeline, 5) == []


def test_the_adapter_is_at_most_200_kilobytes() -> None:
    assert adapter().stat().st_size <= 200_000


@pytest.mark.parametrize("mode", slow_but(["immediately"], ["at_runtime", "immediately"]))
@pytest.mark.slow
def test_its_adapter_works_on_matrices_that_are_split_by_rows(mode: str) -> None:
    pipe = dovetail.load_pipeline(
        folder(),
        "diffusion=sim0&sim1&sim2",
        dtype=torch.float32,
        split_mode="diffusion=row",
        lora=adapter(),
        lora_apply_mode=mode,
    )
    with pipe.dovetail:
        pipe.set_progress_bar_config(disable=True)
        assert read(paint(pipe, [CAPTION], [0])[0]) == in_blue(SCENE)
