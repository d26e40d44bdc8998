"""The GraphML of a program, read back by networkx, says what the program says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.ir.eligibility import marks_by_name
from dovetail.compiler.ir.program import Program, origin_of, placement_of, tensors_of, weight_name
from dovetail.compiler.ir.split import source_of
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import format_bytes
from dovetail.draw import as_networkx, graphml
from tests.dovetail.draw.models import stack

ONE: dict[str, str] = {}
MODES: list[dict[str, str]] = [ONE, {"split_mode": "row"}, {"params_backend": "cpu"}, {"passes": "simplify"}]


def read(text: str) -> Any:
    return nx.read_graphml(io.BytesIO(text.encode()))


def check(program: Program, graph: Any, name: str) -> None:
    """Compares every node and every arrow with the program."""
    marks = marks_by_name(program)
    nodes = {f"{name}/{node.name}": node for node in program.graph.nodes}
    own = [node for node, of in graph.nodes(data="component") if of == name]
    assert own == list(nodes)
    for key, node in nodes.items():
        said, weight, placement = graph.nodes[key], weight_name(node), placement_of(node)
        device = program.home.get(weight) if weight else placement.device
        assert said.get("device") == (device.name if device else None)
        assert said.get("segment") == placement.segment
        assert said.get("weight") == weight
        if weight:
            assert said["mark"] == (marks[weight] or "eligible")
            assert said["bytes"] == program.weights[weight].nbytes
            assert said["rests"] == program.residency.get(weight, Residency.DEVICE).value
            assert said.get("block") == program.block_of().get(weight)
        elif node.op == "call_function":
            assert (said["op"], said["module"]) == (str(node.target), origin_of(node).module)
            assert said["bytes"] == sum(tensor.nbytes for tensor in tensors_of(node))
    arrows = {(f"{name}/{one.name}", f"{name}/{node.name}") for node in nodes.values() for one in node.all_input_nodes}
    assert {pair for pair in graph.edges if pair[1] in nodes} == arrows
    assert nx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("options", MODES)
def test_networkx_reads_back_what_the_program_says(options: dict[str, str]) -> None:
    program = stack(2, **options).program
    graph = read(graphml({"model": program}))
    check(program, graph, "model")
    crossing = {source for source, _, crosses in graph.edges(data="crosses") if crosses}
    if not program.is_sliced:
        assert crossing == {f"model/{source_of(one).name}" for one in program.transfers()}


def test_several_components_are_one_document() -> None:
    first, second = stack(2).program, stack(1).program
    graph = read(graphml({"a b": first, "é": second}))
    check(first, graph, "a b")
    check(second, graph, "é")
    assert nx.number_weakly_connected_components(graph) == 2


def test_the_command_line_writes_it(tmp_path: Path) -> None:
    one = stack(2)
    one.save(tmp_path / "plan.json", "transformer")
    words = ["show", str(tmp_path / "plan.json"), "--as", "graphml", "-o", str(tmp_path / "graph.graphml")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0
    size = format_bytes((tmp_path / "graph.graphml").stat().st_size)
    assert told.stdout == f"{tmp_path / 'graph.graphml'}: graphml, {size}\n"
    check(one.program, nx.read_graphml(tmp_path / "graph.graphml"), "transformer")


def test_names_that_xml_cannot_have_are_written_out() -> None:
    module = nn.Module()
    module.parts = nn.ModuleDict({"a\x1b\x00<&\ud800": nn.Linear(4, 4)})
    module.forward = lambda x: next(iter(module.parts.values()))(x)  # type: ignore[union-attr, assignment]
    program = dovetail.compile(module.eval(), (torch.ones(1, 4),), backend="cpu").program
    graph = read(graphml({"m\x07": program}))
    assert {said.get("weight") for _, said in graph.nodes(data=True)} >= {"parts.a\\x1b\\x00<&\\ud800.weight"}


def test_a_program_of_one_node_and_one_without_weights_are_graphs_too() -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    program = dovetail.compile(Same(), (torch.ones(2, 3),), backend="cpu").program
    graph = as_networkx({"same": program})
    assert list(graph.edges) == [("same/x", "same/output")]
    check(program, read(graphml({"same": program})), "same")
