from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.errors import UsageError
from dovetail.jobs.bulk.prompts import read_prompts
from dovetail.jobs.job import Job
from dovetail.lora.requested import taken_from


def written(folder: Path, text: str | bytes, name: str = "prompts.txt") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_line_is_a_prompt_with_its_number_and_the_next_seed(tmp_path: Path) -> None:
    lines = read_prompts(written(tmp_path, "\ufeffa cat\n\n  a dog <lora:blue:0.5>\r\n"), Job("", steps=4, seed=10))
    assert [line.number for line in lines] == [1, 3]
    assert lines[0].job == Job("a cat", steps=4, seed=10)
    assert lines[1].job == Job("a dog", steps=4, seed=12, loras=(("blue", 0.5),))


def test_json_behind_a_line_of_text_is_refused_and_no_prompt(tmp_path: Path) -> None:
    file = written(tmp_path, 'a {cat}\n{so be it}\n\n{"prompt": "a dog"}\n')
    with pytest.raises(UsageError, match=r"^line 4 of .*prompts.txt is JSON, and its first line is a text"):
        read_prompts(file, Job(""))
    assert len(read_prompts(written(tmp_path, "a {cat}\n{so be it}\n"), Job(""))) == 2


def test_a_line_of_json_says_more_and_what_it_does_not_say_is_as_typed(tmp_path: Path) -> None:
    text = '{"prompt": "a cat", "steps": 2, "seed": 99, "loras": ["blue:0.5"], "width": 64, "guidance": 2}'
    lines = read_prompts(
        written(tmp_path, text + '\n{"prompt": "b"}'), Job("", steps=4, width=32, loras=(("red", 1.0),))
    )
    assert lines[0].job == Job("a cat", steps=2, seed=99, width=64, guidance=2.0, loras=(("red", 1.0), ("blue", 0.5)))
    assert lines[1].job == Job("b", steps=4, width=32, seed=1, loras=(("red", 1.0),))


@pytest.mark.parametrize(("line", "why"), [
    ("{", "this is no JSON"),
    ("[1]", "dictionary|object|Asked"),
    ('{"prompt": "a", "step": 3}', "no use for 'step'.*did you mean steps"),
    ('{"steps": 3}', "prompt is missing: give it"),
    ('{"prompt": "a", "steps": "3"}', "steps has to be a whole number, and is a text: write it without quotes"),
    ('{"prompt": "a", "guidance": NaN}', "guidance"),
    ('{"prompt": "a", "loras": ["blue:much"]}', "'much' is no scale"),
    (r'{"prompt": "a \ud83d circle"}', r"'\\ud83d' is half of a character: write it whole"),
    (r'{"prompt": "a", "negative_prompt": "\ud83d"}', "is half of a character"),
    (r'{"prompt": "a", "loras": ["\udc00:1"]}', "is half of a character"),
])  # fmt: skip
def test_a_bad_line_says_why_and_hinders_no_other(tmp_path: Path, line: str, why: str) -> None:
    import re

    lines = read_prompts(written(tmp_path, f"{line}\n" + '{"prompt": "good"}', "prompts.jsonl"), Job(""))
    assert re.search(why, lines[0].error), lines[0].error
    assert lines[0].job is None
    assert lines[1].job is not None


@pytest.mark.parametrize(("text", "why"), [(b"\xff\xfe\x00", "no text in UTF-8"), (b"\n \n", "has no prompt")])
def test_a_file_that_has_no_prompts_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_prompts(written(tmp_path, text), Job(""))
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "none.txt", Job(""))
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path, Job(""))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])), min_size=1))
def test_what_is_written_as_json_is_read_back(tmp_path_factory: pytest.TempPathFactory, prompts: list[str]) -> None:
    text = "\n".join(json.dumps({"prompt": one, "seed": index}) for index, one in enumerate(prompts))
    lines = read_prompts(written(tmp_path_factory.mktemp("x"), text, "prompts.jsonl"), Job(""))
    assert [line.job.seed for line in lines if line.job] == list(range(len(prompts)))
    read = [line.job.prompt for line in lines if line.job]
    assert read == [taken_from(one)[0] for one in prompts]  # as a prompt that is typed


def test_a_text_of_many_brackets_is_a_prompt(tmp_path: Path) -> None:
    brackets = "[" * 100_000
    lines = read_prompts(written(tmp_path, f"a cat\n{brackets}\n"), Job(""))
    assert [line.job.prompt for line in lines if line.job] == ["a cat", brackets]
