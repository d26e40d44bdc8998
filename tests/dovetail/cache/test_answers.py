"""What was planned of named devices is said again without being planned again, as long as all is as it was."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail import demo
from dovetail.cache import answers, folder
from dovetail.cache.answers import Answer, CannotBeKeptError, key_of, plain
from dovetail.cache.sealed import _digest
from dovetail.cli.opening.loading import Loading
from dovetail.compiler.devices.rig import Rig
from dovetail.passes.states.solve import Solver
from tests.command_line import done

RIG = ("--rig", "sim0=64MiB,sim1=48MiB,cpu=2GiB", "--steps", "2")
KEPT = Answer({"a": [1, "b"]}, (("dovetail.x", "slow"),))


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder of the demo of one's own."""
    shutil.copytree(demo.folder(), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an item for each time that something is planned."""
    found: list[None] = []
    own = Loading.plan

    def counted(*args: object, **kwargs: object) -> object:
        found.append(None)
        return own(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Loading, "plan", counted)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an item for each time that something would be planned, which gives a plan of nothing."""
    found: list[None] = []

    class Nothing:
        def told(self) -> dict[str, object]:
            return {"document": {"number": len(found)}}

    def account(*_: object) -> Nothing:
        found.append(None)
        return Nothing()

    monkeypatch.setattr(Loading, "account", account)
    return found


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words", [("plan",), ("explain",), ("show",), ("show", "--as", "svg"), ("show", "--full")], ids=" ".join
)
def test_what_is_asked_again_is_not_planned_again(
    cache: Path, model: str, plans: list[None], words: tuple[str, ...]
) -> None:
    command, *form = words
    first = done(command, model, *RIG, *form)
    second = done(command, model, *RIG, *form)
    assert first.splitlines() == second.partition("This was planned on ")[0].rstrip().splitlines() + (
        second.splitlines()[-1:] if command == "plan" else []
    )
    assert len(plans) == 1
    assert ("and kept since nothing has changed" in second) == (command != "show")


@pytest.mark.fifth
def test_what_was_planned_for_a_table_is_kept_for_data(cache: Path, model: str, plans: list[None]) -> None:
    done("plan", model, *RIG)
    then, now = (json.loads(done("plan", model, *RIG, "--json")) for _ in range(2))
    assert then.pop("kept")  # when it was made for a table
    assert now.pop("kept")
    assert then == now
    assert len(plans) == 1


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["plan", "explain", "show"])
def test_states_are_not_solved_for_again(
    cache: Path, model: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ("--rig", "sim0=8GiB,sim1=8GiB,cpu=8GiB")
    words = (*rig, "--backend", "diffusion=sim0&sim1", "--split-mode", "diffusion=sequence")
    solved: list[None] = []
    own = Solver.solved

    def counted(*args: object) -> object:
        solved.append(None)
        return own(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Solver, "solved", counted)
    first = done(command, model, *words)
    assert solved
    solved.clear()
    second = done(command, model, *words)
    assert not solved
    assert second.startswith(first.rpartition("\ndovetail")[0] if command == "plan" else first.rstrip())
    done(command, model, *words, "--split-mode", "diffusion=tensor")
    assert solved


def _grow(model: str) -> None:
    with open(f"{model}/scheduler/scheduler_config.json", "a") as file:
        file.write("\n")


def _exchange(model: str) -> None:
    file = Path(model, "vae/config.json")
    found = file.read_text()
    file.unlink()
    file.write_text(found)


def _add(model: str) -> None:
    Path(model, "transformer/notes.txt").write_text("")


@pytest.mark.parametrize("change", [_grow, _exchange, _add])
def test_another_file_is_planned_anew(
    cache: Path, model: str, asked: list[None], change: Callable[[str], None]
) -> None:
    done("plan", model, *RIG, "--json")
    change(model)
    done("plan", model, *RIG, "--json")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "more",
    [("--steps", "3"), ("--rig", "sim0=64MiB,cpu=2GiB"), ("--width", "128"), ("--max-vram", "sim0=40MiB"),
     ("--dtype", "bfloat16"), ("--guidance", "2"), ("--vae-tiling", "off")],
    ids=lambda more: more[0],
)  # fmt: skip
def test_what_is_asked_otherwise_has_another_key(
    cache: Path, model: str, monkeypatch: pytest.MonkeyPatch, more: tuple[str, str]
) -> None:
    keys: list[str] = []

    def noted(key: str) -> Answer:
        keys.append(key)
        return Answer({"document": {}}, (), 1.0)

    monkeypatch.setattr(answers, "read", noted)
    for words in (RIG, (*RIG, *more), RIG):
        done("plan", model, *words, "--json")
    assert keys[0] == keys[2] != keys[1]


def test_a_variable_that_libraries_read_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of("asked", [])
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "flash")
    between = key_of("asked", [])
    monkeypatch.setenv("HF_HOME", "elsewhere")
    assert len({before, between, key_of("asked", [])}) == 3


def test_an_edited_source_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "library" / "model.py"
    source.parent.mkdir()
    source.write_text("one = 1\n")
    (source.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(answers, "_LIBRARIES", ("library",))
    before = key_of("asked", [])
    source.write_text("one = 2\n")
    assert key_of("asked", []) != before


def test_a_model_with_code_of_its_own_is_planned_each_time(cache: Path, model: str, asked: list[None]) -> None:
    Path(model, "transformer", "own.py").write_text("")
    done("plan", model, *RIG, "--json")
    done("plan", model, *RIG, "--json")
    assert len(asked) == 2
    assert not list(cache.glob("*.answer"))


@pytest.mark.parametrize(
    "words",
    [
        ("--backend", "cpu"),
        ("--rig", "cuda0=24GiB"),  # whose host is this machine's
        (*RIG, "--passes", "simplify,quantize,blocks,lora,place,pin,hoist,sink,cut,reuse,reorder,schedule,verify"),
    ],
    ids=" ".join,
)
def test_what_may_be_another_thing_at_the_next_moment_is_planned_each_time(
    cache: Path, asked: list[None], words: tuple[str, ...]
) -> None:
    for _ in range(2):
        done("plan", *words, "--json")
    assert len(asked) == 2
    assert not list(cache.glob("*.answer"))


def test_a_rig_with_links_is_kept_too(cache: Path, asked: list[None]) -> None:
    links = "2x RTX 3090,64GiB;cuda0-cuda1=NVLink"
    for rig in (links, links, f"{links};cuda0+cuda1@root0", links.replace("NVLink", "P2P")):
        done("plan", "--rig", rig, "--json")
    assert len(asked) == 3


def test_parts_beside_a_file_of_weights_are_part_of_the_key(cache: Path, tmp_path: Path) -> None:
    index, part = tmp_path / "x.safetensors.index.json", tmp_path / "b.safetensors"
    index.write_text("{}")
    part.write_text("")
    keys = [key_of("asked", [], [index])]
    (tmp_path / "notes.txt").write_text("")
    keys.append(key_of("asked", [], [index]))
    part.unlink()
    keys.append(key_of("asked", [], [index]))
    assert keys[0] == keys[1] != keys[2]


def test_a_card_that_is_here_is_planned_each_time(
    cache: Path, asked: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.compiler.devices.rig._are_here", lambda memory: True)
    for _ in range(2):
        done("plan", "--rig", "cuda0=24GiB,cpu=8GiB", "--json")
    assert len(asked) == 2
    assert not list(cache.glob("*.answer"))


def test_weights_beside_a_file_count_in_a_full_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_MOST_FILES", 3)
    monkeypatch.setattr(answers, "_sources", list)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("")
    (tmp_path / "a-00001-of-00002.gguf").write_text("")
    (tmp_path / "a-00002-of-00002.gguf").write_text("")
    before = key_of("asked", [], [tmp_path / "a-00001-of-00002.gguf"])
    (tmp_path / "a-00002-of-00002.gguf").write_text("more")
    assert key_of("asked", [], [tmp_path / "a-00001-of-00002.gguf"]) != before
    for number in range(4):
        (tmp_path / f"{number}.json").write_text("")
    with pytest.raises(CannotBeKeptError, match="more than 3 files"):
        key_of("asked", [], [tmp_path / "a-00001-of-00002.gguf"])


def test_a_style_sheet_of_the_page_is_part_of_the_key() -> None:
    endings = {Path(str(name)).suffix for files in answers._sources() for name, *_ in files}
    assert {".py", ".css"} <= endings


@pytest.mark.parametrize("name", ["quiz.answer", "notes.trace", ".my.answer"])
def test_files_of_somebody_else_are_neither_listed_nor_removed(cache: Path, name: str) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    (cache / name).write_text("mine")
    (cache / f"{'b' * 40}.answer").mkdir()
    assert "1 entry" in done("cache")
    assert "removed 1 entry" in done("cache", "clear")
    assert (cache / name).read_text() == "mine"


@pytest.mark.parametrize("level", ["-v", "--debug"])
def test_whoever_asks_for_a_log_has_it_planned(
    cache: Path, model: str, asked: list[None], level: str, restored_levels: None
) -> None:
    done("plan", model, *RIG, "--json")
    done("plan", model, *RIG, "--json", level)
    assert len(asked) == 2


@pytest.fixture
def restored_levels() -> object:
    """Gives the logger its level back."""
    logger = logging.getLogger("dovetail")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.fifth
def test_warnings_are_repeated(
    cache: Path, model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for weights in Path(model).glob("*/*.safetensors"):
        weights.unlink()
    for _ in range(2):
        caplog.clear()
        done("plan", model, *RIG, "--json")
        said.append([(one.name, one.getMessage()) for one in caplog.records if one.levelno == logging.WARNING])
    assert said[0] == said[1]
    assert any("planned as bfloat16" in text for _, text in said[0])


def test_an_answer_reads_back(cache: Path) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    found = answers.read("a" * 40)
    assert found is not None
    assert (found.told, found.warnings) == (KEPT.told, KEPT.warnings)
    assert found.kept.startswith("This was planned on 20")
    assert not KEPT.kept


@pytest.mark.parametrize("content", [b"", b"dovetail answer 2\nx\n", b"\xff" * 100, b"dovetail answer 2\nx\nno\n[]"])
def test_a_damaged_answer_is_made_anew(cache: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    folder.path_of("a" * 40, folder.ANSWER).write_bytes(content)
    assert answers.read("a" * 40) is None
    assert "is not used" in caplog.text


def test_an_answer_of_another_form_is_made_anew(cache: Path) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    path = folder.path_of("a" * 40, folder.ANSWER)
    *head, digest, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*head, _digest(b"[1]"), b"[1]"]))
    assert len(digest) == 40
    assert answers.read("a" * 40) is None


def test_an_answer_that_was_renamed_or_exchanged_is_made_anew(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    answers.keep("b" * 40, "plan of it", Answer({"another": 1}, ()))
    one, other = (folder.path_of(key * 40, folder.ANSWER) for key in "ab")
    one.replace(other)
    assert answers.read("b" * 40) is None
    assert "it is of something else" in caplog.text


def test_what_others_could_have_written_is_not_read(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    folder.path_of("a" * 40, folder.ANSWER).chmod(0o666)
    assert answers.read("a" * 40) is None
    assert "others may write it" in caplog.text


def test_nothing_is_kept_where_the_cache_is_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    answers.keep("a" * 40, "plan of it", KEPT)
    assert not cache.exists()
    assert answers.read("a" * 40) is None


def test_a_folder_without_room_costs_nothing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "file"))
    answers.keep("a" * 40, "plan of it", KEPT)
    assert answers.read("a" * 40) is None


def test_a_large_answer_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_SIZE", "8KiB")
    answers.keep("a" * 40, "plan of it", Answer("x" * 2000, ()))
    assert answers.read("a" * 40) is None


def test_answers_are_listed_and_cleared(cache: Path) -> None:
    answers.keep("a" * 40, "plan of it", KEPT)
    assert "plan of it" in done("cache")
    (entry,) = json.loads(done("cache", "--json"))["entries"]
    assert entry["answer"] == "plan of it"
    assert "removed 1 entry" in done("cache", "clear")
    assert answers.read("a" * 40) is None


def test_a_value_without_content_has_no_key() -> None:
    with pytest.raises(CannotBeKeptError, match="object"):
        plain({"a": object()})


def test_every_field_of_a_value_is_in_its_key() -> None:
    assert plain(Rig.parse("sim0=1GiB")) != plain(Rig.parse("sim0=1GiB/2GiB"))
    assert plain(Path("a")) == ("path", os.path.abspath("a"))
    assert plain(1) != plain(True) or repr(plain(1)) != repr(plain(True))


def test_a_folder_of_very_many_files_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_MOST_FILES", 2)
    monkeypatch.setattr(answers, "_sources", list)
    for name in "abc":
        (tmp_path / name).write_text("")
    with pytest.raises(CannotBeKeptError, match="more than 2 files"):
        key_of("asked", [tmp_path])


def test_the_library_of_a_model_is_not_imported_for_a_kept_answer(
    cache: Path, model: str, asked: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = done("plan", model, *RIG, "--json")

    def refuse(*args: object) -> None:
        raise AssertionError("nothing of it is needed")

    monkeypatch.setattr("dovetail.cli.opening.answered.called", refuse)
    monkeypatch.setattr("dovetail.cli.options.subject.quiet_libraries", refuse)
    assert json.loads(done("plan", model, *RIG, "--json")) == {**json.loads(first), "kept": True}
