"""Writes what `docs/architecture.md` says of the folders: one line each, and a picture of which uses which.

Both are read off the code: `python scripts/draw_folders.py`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
TOPS = ("dovetail", "passes", "runtime", "compiler")
COMMAND_LINE = {"dovetail/__main__.py": "dovetail/cli"}
"""Where Python wants a file that belongs to another folder."""


def modules() -> dict[str, Path]:
    """Every module by its installed name; `compiler/` is `dovetail.compiler` then."""
    found = (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py")) if "__pycache__" not in path.parts)
    return {_installed(path.relative_to(ROOT).with_suffix("").parts): path for path in found}


def _installed(parts: tuple[str, ...]) -> str:
    outer = () if parts[0] == "dovetail" else ("dovetail",)
    return ".".join((*outer, *parts)).removesuffix(".__init__")


def folder_of(path: Path) -> str:
    """The folder that a module belongs to."""
    return COMMAND_LINE.get(path.relative_to(ROOT).as_posix(), path.parent.relative_to(ROOT).as_posix())


def uses() -> nx.DiGraph:
    """Every folder of modules, with an edge to each that it imports from, be it for annotations alone.

    ``modules`` of an edge are the files that do.
    """
    known, graph = modules(), nx.DiGraph()
    for name, path in known.items():
        graph.add_node(folder_of(path))
        for target in imported(name, path, known):
            edge = folder_of(path), folder_of(target)
            if edge[0] != edge[1]:
                graph.add_edge(*edge)
                graph.edges[edge].setdefault("modules", set()).add(path.relative_to(ROOT).as_posix())
    return graph


def imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[Path]:
    """The modules of the project that a module imports, anywhere in it."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            inside = (f"{base}.{alias.name}" for alias in node.names)
            names = [one if one in known else base for one in inside]
        yield from (known[one] for one in names if one in known)


def listed() -> str:
    """The folders, each with the first sentence of its docstring."""
    found = sorted({folder_of(path) for path in modules().values()})
    folders = [folder for top in TOPS for folder in found if _top(folder) == top]
    return "\n".join(f"- `{folder}/`: {_sentence(ROOT / folder / '__init__.py')}" for folder in folders)


def _sentence(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _top(folder: str) -> str:
    return folder.partition("/")[0]


def drawn() -> str:
    """The folders as a Mermaid flow chart, without the arrows that follow from others."""
    reduced = nx.transitive_reduction(uses())
    lines = ["flowchart TD"]
    for top in TOPS:
        inside = sorted(folder for folder in reduced if _top(folder) == top)
        boxes = [f'    {_key(folder)}["{folder}/"]' for folder in inside]
        lines += [f'  subgraph {top}_all["{top}"]', *boxes, "  end"]
    arrows = [f"  {_key(user)} --> {_key(used)}" for user, used in sorted(reduced.edges)]
    return "\n".join([*lines, *arrows])


def _key(folder: str) -> str:
    return folder.replace("/", "_")


def filled(page: str) -> str:
    """The page with the list and the picture as they are now."""
    page = re.sub(r"(?<=\n\n)(- `\w+/.*\n)+", lambda _: f"{listed()}\n", page, count=1)
    return re.sub(r"(?<=^```mermaid\n).*?(?=^```$)", lambda _: f"{drawn()}\n", page, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
