"""What is installed: every module, under one name."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "dovetail": "dovetail",
    "compiler": "dovetail/compiler",
    "passes": "dovetail/passes",
    "runtime": "dovetail/runtime",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODELS = {
    "flux", "sdxl", "sd", "qwen", "wan", "ltx", "pixart", "hunyuan", "cogvideo", "cogvideox", "cogview", "sana",
    "lumina", "kandinsky", "mochi", "allegro", "chroma", "auraflow", "llama", "gemma", "umt", "bria", "cosmos",
}  # fmt: skip


def modules(folder: str) -> list[Path]:
    """The Python files of one of the four folders."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


ALL_MODULES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in modules(folder)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((copy / "dist").glob("*.whl"))


def test_the_list_of_packages_is_complete() -> None:
    found = {
        ".".join([*FOLDERS[folder].split("/"), *path.parent.relative_to(ROOT / folder).parts])
        for folder in FOLDERS
        for path in modules(folder)
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_a_module_that_imports_names_when_they_are_asked_for_lists_them() -> None:
    defined = {
        path: {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}
        for path in ALL_MODULES
    }
    assert [path for path, names in defined.items() if "__getattr__" in names and "__dir__" not in names] == []


def test_networkx_is_imported_where_it_is_used_and_never_at_start() -> None:
    texts = {path: (ROOT / path).read_text() for path in ALL_MODULES}
    assert [path for path, text in texts.items() if re.search(r"^(import|from) networkx", text, re.MULTILINE)] == []
    users = {path for path, text in texts.items() if re.search(r"^ +import networkx as nx$", text, re.MULTILINE)}
    assert {path.split("/")[0] for path in users} == {"passes", "dovetail"}


def test_every_folder_of_modules_is_a_package() -> None:
    lonely = [path for path in ALL_MODULES if not (ROOT / path).with_name("__init__.py").exists()]
    assert lonely == []


@pytest.mark.fifth
def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dovetail"}
    assert any(name.startswith("dovetail_diffusion-") for name in names)


@pytest.mark.fifth
def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, target in FOLDERS.items():
        kept = (ROOT / folder / "demo" / name for name in ("pipeline", "lora"))
        data = [path for place in kept for path in place.rglob("*") if path.is_file()]
        expected = {f"{target}/{path.relative_to(ROOT / folder).as_posix()}" for path in modules(folder) + data}
        assert expected <= names
    assert "dovetail/py.typed" in names
    assets = {path.name for path in (ROOT / "dovetail" / "draw" / "page" / "assets").iterdir()}
    assert {f"dovetail/draw/page/assets/{name}" for name in assets} <= names
    assert "page.html" in assets


@pytest.mark.parametrize("installed", [False, True], ids=["bare clone", "wheel"])
def test_the_three_folders_are_found_under_dovetail(installed: bool, wheel: Path, tmp_path: Path) -> None:
    if installed:
        zipfile.ZipFile(wheel).extractall(tmp_path)
    where = tmp_path if installed else ROOT
    code = f"import sys; sys.path.insert(0, {str(where)!r}); import dovetail.compiler.errors as e; print(e.__file__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    expected = where / ("dovetail/compiler" if installed else "compiler") / "errors.py"
    assert done.stdout.strip() == str(expected), done.stderr


@pytest.mark.parametrize("name", [name for name in ALL_MODULES if not name.startswith("dovetail/")])
def test_no_model_is_named_in_the_code(name: str) -> None:
    found = {word: line for line, text in code_texts(ROOT / name) for word in words(text) if word in MODELS}
    assert found == {}


def words(text: str) -> set[str]:
    """The lower-case words of an identifier or text, digits and case changes taken as boundaries."""
    return set(re.findall("[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()))


def code_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every identifier and text of a module with its line; comments and docstrings are none."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "module", "value"):
            text = getattr(node, field, None)
            if isinstance(text, str):
                yield getattr(node, "lineno", 0), text


def test_the_readme_starts_with_two_commands_of_one_line() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [block.count("\n") for block in blocks[:2]] == [1, 1]
    assert ".venv/bin/dovetail generate" in blocks[0]
    assert blocks[1].rstrip().endswith(".venv/bin/python -m pytest -n auto")
