"""A placement on one screen, and as data of a published schema."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.draw import document
from dovetail.draw.outline.outline import outline
from dovetail.draw.schema import Shown
from dovetail.draw.text.reproduce import command_for
from dovetail.draw.text.summary import rows_of, rows_of_devices
from tests.dovetail.draw.models import stack


def shown(*words: str) -> str:
    result = CliRunner().invoke(app, ["show", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_blocks_that_are_alike_are_one_row() -> None:
    rows = rows_of({"model": stack(split_mode="row").program})
    assert [row[2] for row in rows] == ["first", "6 × blocks.0–5", "last"]
    assert rows[1][1] == "sim0 & sim1"
    assert rows[1][-1].endswith(" inside")


def test_the_number_of_rows_does_not_grow_with_the_number_of_blocks() -> None:
    few, many = (rows_of({"model": stack(count, split_mode="row").program}) for count in (4, 12))
    assert len(few) == len(many)


def test_no_byte_of_weights_and_no_operation_is_lost_in_folding() -> None:
    program = stack(split_mode="row").program
    for depth in ("segments", "blocks", "devices"):
        parts = outline(program, depth=depth).parts
        assert sum(part.ops for part in parts) == sum(len(segment.nodes) for segment in program.segments)
        assert sum(part.nbytes for part in parts) == sum(weight.nbytes for weight in program.weights.values())


def test_what_crosses_stands_in_the_outline_of_a_row_split_too() -> None:
    program = stack(split_mode="row").program
    drawn = outline(program)
    told = sum(part.inside for part in drawn.parts) + sum(edge.nbytes for edge in drawn.edges if edge.crosses)
    assert told == sum(crossing["bytes"] for crossing in document(program)["crossings"])


def test_devices_have_the_fullest_call_of_all_components() -> None:
    program = stack().program
    rows = rows_of_devices({"a": program, "b": program})
    assert [row[0] for row in rows] == ["sim0", "sim1"]
    assert rows[0][3] in "ab"


@pytest.mark.parametrize("options", [{}, {"split_mode": "row"}], ids=["layer", "row"])
def test_the_schema_describes_what_is_printed(options: dict[str, str]) -> None:
    printed = json.loads(json.dumps([document(stack(**options).program, "model")]))
    assert Shown.model_validate(printed).model_dump(mode="json", by_alias=True) == printed


def test_the_schema_is_printed() -> None:
    assert json.loads(shown("--as", "json-schema")) == Shown.model_json_schema()


def test_a_plan_file_is_shown_on_one_screen_with_the_line_that_makes_it_again(tmp_path: Path) -> None:
    stack(split_mode="row").save(tmp_path / "plan.json", "transformer")
    out = shown(str(tmp_path / "plan.json"))
    assert len(out.splitlines()) < 25
    last = out.splitlines()[-1]
    line = (
        "dovetail generate 'a cat' --model MODEL_FOLDER --backend 'transformer=sim0&sim1' --split-mode transformer=row"
    )
    assert last.startswith(line)


@pytest.mark.fifth
def test_a_component_has_the_name_that_its_plan_was_written_with(tmp_path: Path) -> None:
    stack().save(tmp_path / "plan.json", "vae.decode")
    stack().save(tmp_path / "other.json")
    named, unnamed = (json.loads(shown(str(tmp_path / file), "--as", "json")) for file in ("plan.json", "other.json"))
    assert named[0]["component"] == "vae.decode"
    assert unnamed[0]["component"] == "other"


def test_json_has_an_operation_a_line(tmp_path: Path) -> None:
    stack().save(tmp_path / "plan.json")
    out = shown(str(tmp_path / "plan.json"), "--format", "json")
    nodes = json.loads(out)[0]["nodes"]
    lines = [line.strip().removesuffix(",") for line in out.splitlines()]
    assert all(json.dumps(node) in lines for node in nodes)


def test_full_is_of_the_text_alone(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["show", str(tmp_path), "--as", "json", "--full"])
    assert result.exit_code == 2
    assert "leave out one of them" in result.stderr


def test_a_picture_is_written_to_a_file_or_refused(tmp_path: Path) -> None:
    stack().save(tmp_path / "plan.json")
    assert shown(str(tmp_path / "plan.json"), "--as", "mermaid", "-o", str(tmp_path / "out.mmd")).startswith(
        f"{tmp_path / 'out.mmd'}: mermaid, "
    )
    assert (tmp_path / "out.mmd").read_text().startswith("flowchart LR\n")
    result = CliRunner().invoke(app, ["show", str(tmp_path / "plan.json"), "-o", str(tmp_path / "no" / "out.mmd")])
    assert result.exit_code == 2


def test_the_line_names_devices_once_and_what_rests_elsewhere() -> None:
    program = stack(params_backend="cpu").program
    line = command_for({"transformer": program, "vae.decode": program}, "my folder")
    assert line.startswith("dovetail generate 'a cat' --model 'my folder' --backend")
    assert "--params-backend transformer=cpu,vae=cpu" in line
    assert line.count("sim0=") == 1


class Wired(nn.Module):
    """The same operations in each block, wired in one way or the other, and as wide as is asked for."""

    def __init__(self, ways: str, inner: tuple[int, ...]) -> None:
        super().__init__()
        self.ways = ways
        self.ups = nn.ModuleList(nn.Sequential(nn.Linear(256, one), nn.Linear(one, 256)) for one in inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for way, layers in zip(self.ways, self.ups, strict=True):
            up, down = layers
            y = down(up(x))
            x = torch.sub(x, y) if way == "a" else torch.sub(y, x)
        return x


@pytest.mark.parametrize(
    ("ways", "inner", "boxes"),
    [("aaaa", (512,) * 4, [4]), ("aabb", (512,) * 4, [2, 2]), ("aaaa", (512, 512, 768, 768), [2, 2])],
)
def test_blocks_of_other_wiring_or_shapes_are_boxes_of_their_own(
    ways: str, inner: tuple[int, ...], boxes: list[int]
) -> None:
    one = dovetail.compile(Wired(ways, inner).eval(), (torch.ones(3, 256),), backend="sim0", rig="sim0=1GiB")
    assert [part.count for part in outline(one.program, depth="blocks").parts] == boxes
