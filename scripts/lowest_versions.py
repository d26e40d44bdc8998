"""Prints pip constraints that pin every dependency to the lower bound which pyproject.toml declares for it.

    python scripts/lowest_versions.py > lowest.txt && pip install -c lowest.txt ".[diffusers]" pytest

PyTorch is pinned to the tested version instead: its older CPU builds are not on the package index.
"""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BOUND = re.compile(r"^([\w.-]+)>=([\w.]+)$")


def lowest(project: dict, tested: str) -> list[str]:
    """One ``name==version`` for each run-time dependency, those of the extra ``diffusers`` included."""
    declared = [*project["dependencies"], *project["optional-dependencies"]["diffusers"]]
    bounds = [BOUND.match(one) for one in declared]
    unbounded = [one for one, bound in zip(declared, bounds, strict=True) if bound is None]
    if unbounded:
        raise SystemExit(f"no lower bound in: {', '.join(unbounded)}")
    pinned = [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"]
    return [*pinned, next(line for line in tested.splitlines() if line.startswith("torch=="))]


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print("\n".join(lowest(project, (ROOT / "constraints.txt").read_text())))
