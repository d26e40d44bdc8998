"""Names from files reach neither a terminal, nor a drawing, nor another folder as more than names."""

from __future__ import annotations

import ast
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.cli.options.subject import _read_index, _stored_dtypes
from dovetail.cli.output.results import print_json, print_table
from dovetail.compiler.atomic_write import drafts_of, written_beside
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.names import is_plain
from dovetail.compiler.errors import SpecError, UsageError, WeightError
from dovetail.compiler.printable import printable
from dovetail.draw import dot, mermaid
from dovetail.lora.requested import Lora, refuse_pickle
from dovetail.pipelines.loading.saved import open_pipeline

ESCAPES = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
HOSTILE_NAMES = (
    'a"]\n  click a href "javascript:x"\n  b["', "<img src=x onerror=y>", "a\\", 'x"; y [label="z',
    "end", "a;b%%", "`x`",
)  # fmt: skip


@pytest.fixture
def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()


def test_errors_tables_and_json_have_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "size"), [(ESCAPES, "1")])
    print_json({"name": ESCAPES})
    print(printable(ESCAPES))
    out = capsys.readouterr().out
    assert all(one.isprintable() or one == "\n" for one in out)
    assert json.loads(out[out.index("{") : out.rindex("}") + 1]) == {"name": ESCAPES}


def test_errors_say_names_of_files_without_escapes_in_python_too(tmp_path: Path, layers: nn.Module) -> None:
    save_file({ESCAPES: torch.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightError) as caught:
        dovetail.compile(layers, (torch.ones(1, 4),), backend="cpu", weights=tmp_path / "w.safetensors")
    assert all(one.isprintable() or one == "\n" for one in str(caught.value))
    assert all(one.isprintable() or one == "\n" for one in str(SpecError("no device", ESCAPES, 0, 1)))


def test_names_of_a_file_are_no_code_in_a_listing(tmp_path: Path, layers: nn.Module) -> None:
    path = tmp_path / "plan.json"
    dovetail.compile(layers, (torch.ones(1, 4),), backend="cpu").save(path)
    plan = json.loads(path.read_text())
    named = json.dumps('a\\"""; exit(); """')[1:-1]
    plan["program"] = [line.replace("// 0 : Linear", f"// {named} : Linear") for line in plan["program"]]
    path.write_text(json.dumps(plan))
    source = dovetail.load(path).source()
    assert "exit()" in source
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and node.id == "exit"]


def test_a_command_says_what_is_wrong_without_escapes(tmp_path: Path) -> None:
    plan = {"format": "dovetail plan", "version": 7, "torch": "2", "rig": "sim0=1GiB", "tensors": {}}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "program": [f"{ESCAPES} rubbish"]}))
    result = CliRunner().invoke(app, ["show", str(tmp_path / "plan.json")])
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_drawings_escape_the_name_of_a_program(layers: nn.Module, name: str) -> None:
    program = dovetail.compile(layers, (torch.ones(1, 4),), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB").program
    plain, drawn = mermaid({"model": program}), mermaid({name: program})
    assert len(drawn.splitlines()) == len(plain.splitlines())
    assert "<" not in drawn.replace("<br/>", "")
    assert not any(line.strip().startswith("click") for line in drawn.splitlines())
    assert drawn.count('"') == plain.count('"')
    graph = dot({name: program})
    assert len(graph.splitlines()) == len(dot({"model": program}).splitlines())
    assert graph.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0


@pytest.mark.parametrize("name", ["../other", "/etc", "..", ".", "a/b", "a\\b", "c:b", "", "a\0b"])
def test_components_of_a_pipeline_lie_in_its_folder(tmp_path: Path, name: str) -> None:
    assert not is_plain(name)
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "X", name: ["diffusers", "AutoencoderKL"]}))
    with pytest.raises(UsageError, match="not a folder beside it"):
        _read_index(tmp_path)
    with pytest.raises(UsageError, match="not a folder beside it"):
        open_pipeline(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "..", "a/b.safetensors"])
def test_shards_lie_beside_their_index(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(WeightError, match="not a file beside it"):
        WeightIndex.of_shards(tmp_path / "model.safetensors.index.json")


def test_a_pickled_lora_is_read_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "lora.bin").write_bytes(b"\x80\x02}q\x00.")
    for place in (tmp_path / "lora.bin", tmp_path):
        with pytest.raises(UsageError, match="--lora-pickles"):
            refuse_pickle(place)
    save_file({"a": torch.ones(1)}, tmp_path / "lora.safetensors")
    refuse_pickle(tmp_path)
    refuse_pickle(tmp_path / "lora.safetensors")
    assert not Lora("x").pickled


def test_a_gguf_file_is_no_lora_and_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "lora.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"read from \.safetensors files; weights .* --weights NAME=") as raised:
        refuse_pickle(tmp_path / "lora.gguf")
    assert "pickle" not in str(raised.value)


def test_the_dtypes_of_a_file_are_read_by_the_checked_reader(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    assert _stored_dtypes(tmp_path / "a.safetensors") == {torch.bfloat16}
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 16)
    assert _stored_dtypes(tmp_path / "b.safetensors") == set()


def test_many_threads_write_one_file_and_each_writes_it_whole(tmp_path: Path) -> None:
    def write(letter: str) -> None:
        for _ in range(30):
            with written_beside(tmp_path / "file") as draft:
                draft.write_text(letter * 10_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_text() in {letter * 10_000 for letter in "abcd"}
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "file").symlink_to(other)
    (tmp_path / f".file.{os.getpid()}").symlink_to(other)
    with written_beside(tmp_path / "file") as draft:
        draft.write_text("new")
    assert other.read_text() == "kept"
    assert (tmp_path / "file").read_text() == "new"


def test_what_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), written_beside(tmp_path / "file"):
        raise ValueError("stop")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["红" * 82 + ".png", "a" * 251 + ".png", "é" * 125 + ".jobs.json"[:5]])
def test_the_longest_name_of_a_file_is_written_and_its_drafts_are_found(tmp_path: Path, name: str) -> None:
    with written_beside(tmp_path / name) as draft:
        assert list(drafts_of(tmp_path / name)) == [draft]
        draft.write_text("new")
        assert not list(drafts_of(tmp_path / f"other {name}"))
    assert os.listdir(tmp_path) == [name]
    assert not list(drafts_of(tmp_path / name))
