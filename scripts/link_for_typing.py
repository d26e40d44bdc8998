"""Makes `.links/dovetail/`, a folder of symlinks that looks like the installed package.

Setuptools maps `compiler/` to `dovetail.compiler`, and static tools do not know that. mypy and pyright are pointed at
`.links` instead. Run it again after a file was added to `dovetail/`.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / ".links" / "dovetail"


def main() -> None:
    """Builds the folder anew."""
    shutil.rmtree(LINKS, ignore_errors=True)
    LINKS.mkdir(parents=True)
    face = [path for path in (ROOT / "dovetail").iterdir() if path.name != "__pycache__"]
    for path in [ROOT / "compiler", ROOT / "passes", ROOT / "runtime", *face]:
        (LINKS / path.name).symlink_to(path, target_is_directory=path.is_dir())


if __name__ == "__main__":
    main()
