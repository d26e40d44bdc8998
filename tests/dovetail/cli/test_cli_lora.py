"""LoRAs on the command line: `--lora NAME:SCALE`, and those that stand in the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import demo
from dovetail.cli.options.lora import Loras
from dovetail.cli.options.subject import find_pipeline
from dovetail.lora.requested import Lora, taken_from

from .test_cli import done, run

WORDS = ("generate", "--steps", "1", "--width", "16", "--height", "16", "--backend", "sim0")


def painted(prompt: str, path: Path, *words: str) -> bytes:
    done(*WORDS, prompt, "-o", str(path), *words)
    return path.read_bytes()


@pytest.mark.slow
def test_a_lora_changes_the_picture_however_it_is_named(tmp_path: Path) -> None:
    plain = painted("a red circle", tmp_path / "plain.png")
    named = painted("a red circle", tmp_path / "named.png", "--lora", f"{demo.adapter()}:0.8")
    inside = painted("a red circle <lora:blue:0.8>", tmp_path / "inside.png", "--lora-apply-mode", "auto")
    assert named == inside != plain


def test_names_are_looked_for_in_a_folder_and_the_demo_knows_its_own() -> None:
    expected = Lora(str(demo.adapter()), 0.5)
    asked = Loras(lora=["blue:0.5"], lora_model_dir=str(demo.adapter().parent))
    assert asked.arguments("x", find_pipeline(""))[1]["lora"] == (expected,)
    assert Loras(lora=["blue:0.5"]).arguments("x", find_pipeline(""))[1]["lora"] == (expected,)


def test_loras_are_taken_out_of_the_prompt() -> None:
    assert taken_from("a cat <lora:one:0.5> on a mat <lora:two>") == ("a cat on a mat", ["one:0.5", "two"])
    assert taken_from("a cat < on a mat") == ("a cat < on a mat", [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lora", "blue:much"), "'much' is no scale: write NAME:SCALE, as in style:0.8"),
        (("--lora", "purple:0.5"), "no LoRA is at"),
        (("--lora", "blue", "--lora-apply-mode", "later"), "later"),
    ],
)
def test_a_wrong_lora_is_one_clear_error(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = run(*WORDS, "a red circle", "-o", str(tmp_path / "out.png"), *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
