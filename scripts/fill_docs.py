"""Runs the examples of the documentation and writes what they print below them: `python scripts/fill_docs.py`."""

import contextlib
import gc
import io
import os
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = "# on a machine with "
"""How a block begins that is not run here, for it needs what is not here; it is compiled."""

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def filled(text: str, page: str) -> str:
    """The page, with what each Python block prints in the `text` block directly below it, if there is one."""
    blocks = list(FENCE.finditer(text))
    names: dict[str, object] = {"__name__": "__main__"}
    parts: list[str] = []
    position = 0
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        if block[1] != "python":
            continue
        out = _printed(block[2], names, page)
        if after and after[1] == "text" and not text[block.end() : after.start()].strip():
            parts += [text[position : after.start()], f"```text\n{out.strip()}\n```"]
            position = after.end()
    names.clear()
    gc.collect()  # pipelines hold themselves, and memory on simulated devices
    return "".join(parts) + text[position:]


def _printed(code: str, names: dict[str, object], page: str) -> str:
    out = io.StringIO()
    made = compile(code, page, "exec")
    if not code.startswith(ELSEWHERE):
        with contextlib.redirect_stdout(out):
            exec(made, names)
    return out.getvalue()


def main() -> None:
    """Fills every page that has examples with output."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in PAGES:
            before = page.read_text()
            after = filled(before, page.name)
            if after != before:
                page.write_text(after)
                print(f"filled {page.name}")


if __name__ == "__main__":
    main()
