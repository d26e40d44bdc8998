"""Numbers and words of options that cannot be are refused in words of our own, with what is possible."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app

FORMS = "text, html, svg, mermaid, dot, trace, json, json-schema, graphml"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--steps", "0"], "--steps 0 is out of range: give a whole number from 1 to 10000"),
        (["plan", "--steps", "-3"], "--steps -3 is out of range: give a whole number from 1 to 10000"),
        (["plan", "--steps", "x"], "--steps x is no whole number: give one from 1 to 10000"),
        (["plan", "--steps", "2.5"], "--steps 2.5 is no whole number: give one from 1 to 10000"),
        (["plan", "--steps", ""], "--steps '' is no whole number: give one from 1 to 10000"),
        (["plan", "--width", "0"], "--width 0 is out of range: give a whole number from 1 to 32768"),
        (["plan", "--frames", "0"], "--frames 0 is out of range: give a whole number of 1 or more"),
        (["plan", "--strength", "2"], "--strength 2 is out of range: give a number from 0 to 1"),
        (["plan", "--guidance", "x"], "--guidance x is no number: give one, such as 0.5"),
        (["generate", "x", "-b", "0"], "--num-images 0 is out of range: give a whole number of 1 or more"),
        (["generate", "x", "-s", "x"], "--seed x is no whole number: give one"),
        (["generate", "x", "--seed", "9" * 50], f"--seed {'9' * 50} is no seed: give one below {2**64}, or -1 for any"),
        (["generate", "x", "-t", "0"], "--threads 0 is out of range: give a whole number of 1 or more"),
        (["show", "--as", "svgg"], f"--as svgg is unknown: give {FORMS}; did you mean svg?"),
        (["show", "--as", "qqq"], f"--as qqq is unknown: give {FORMS}"),
        (["show", "--depth", "node"], "--depth node is unknown: give segments, blocks, nodes; did you mean nodes?"),
        (["cache", "lst"], "action lst is unknown: give list, clear, path; did you mean list?"),
        (["plan", "--dtype", "flot32"],
         "--dtype flot32 is no type to compute in: give float32, bfloat16, float16; did you mean float32?"),
    ],
)  # fmt: skip
def test_a_value_that_an_option_does_not_take_is_refused_with_what_it_takes(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stderr) == (2, f"error: {told}\n")
