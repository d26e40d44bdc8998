"""The examples in docstrings are run."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    path for folder in ("compiler", "passes", "runtime", "dovetail") for path in sorted((ROOT / folder).rglob("*.py"))
]
WITH_EXAMPLES = [path.relative_to(ROOT) for path in FILES if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_the_examples_of_a_module_give_what_they_show(path: Path) -> None:
    parts = [part for part in path.with_suffix("").parts if part != "__init__"]
    name = ".".join(parts if parts[0] == "dovetail" else ["dovetail", *parts])
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
