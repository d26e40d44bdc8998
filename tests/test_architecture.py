"""How the code is laid out: which folder uses which, and that the page about it says what is there."""

import ast
import re

import networkx as nx

from scripts.draw_folders import PAGE, ROOT, filled, uses

MAY_USE = {
    "compiler": {"compiler"},
    "passes": {"passes", "compiler"},
    "runtime": {"runtime", "compiler"},
    "dovetail": {"dovetail", "passes", "runtime", "compiler"},
}


def test_no_folder_uses_one_that_uses_it() -> None:
    graph = uses()
    circles = [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    between = {
        f"{user} → {used}": sorted(files)
        for circle in circles
        for user, used, files in graph.subgraph(circle).edges(data="modules")
    }
    assert between == {}


def test_folders_are_used_in_one_direction() -> None:
    wrong = {
        f"{user} → {used}": sorted(files)
        for user, used, files in uses().edges(data="modules")
        if used.split("/")[0] not in MAY_USE[user.split("/")[0]]
    }
    assert wrong == {}


def test_tests_and_benchmarks_do_not_know_each_other() -> None:
    apart = {"tests": {"benchmarks"}, "benchmarks": {"tests"}, "testbed": {"tests", "benchmarks"}, "scripts": {"tests"}}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder, others in apart.items()
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        if name in others
    ]
    assert wrong == []


def test_the_page_says_what_is_there() -> None:
    assert filled(PAGE.read_text()) == PAGE.read_text(), "run python scripts/draw_folders.py"


def test_the_ways_on_the_page_are_short_and_name_functions_that_are_there() -> None:
    ways = [part for part in PAGE.read_text().split("\n## ") if part.startswith("One ")]
    stops = [re.findall(r"^\d+\. `([\w.]+)` \(`([\w/.]+)`\)", way, re.MULTILINE) for way in ways]
    assert len(ways) == 2
    assert [len(re.findall(r"^\d+\. ", way, re.MULTILINE)) for way in ways] == [len(found) for found in stops]
    assert all(1 < len(found) <= 8 for found in stops)
    missing = [(name, path) for found in stops for name, path in found if name not in functions(path)]
    assert missing == []


def functions(path: str) -> set[str]:
    """The functions of a file, and the methods of its classes behind the classes' names."""
    body = ast.parse((ROOT / path).read_text()).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = {f"{cls.name}.{node.name}" for cls in classes for node in cls.body if isinstance(node, ast.FunctionDef)}
    return methods | {node.name for node in body if isinstance(node, ast.FunctionDef)}
