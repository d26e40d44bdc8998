"""What `dovetail show` has to show, and each form that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...compiler.printable import printable
from .results import json_text, table_text

if TYPE_CHECKING:
    from ...compiler.ir.program import Program
    from ...planning.table import Account


@dataclass(frozen=True)
class Scene:
    """Programs by the names of their components, and of a pipeline the plan of its call, where that is known.

    ``subject`` and ``asked`` are what was typed besides the placement, for a machine where it can run, and ``depth`` is
    how deep pictures go.
    ``place`` is the folder of the pipeline where ``subject`` is that of a component, of which no plan is made.
    """

    programs: Mapping[str, Program]
    account: Account | None = None
    subject: str = ""
    asked: Sequence[str] = ()
    depth: str = "segments"
    place: str = ""

    @property
    def line(self) -> str:
        """The command that paints with the same placements."""
        from ...conventions.copied import generate_line
        from ...draw.text.reproduce import command_for

        if self.account is None:
            return command_for(self.programs)
        return generate_line(self.place or self.subject, self.account.settings, self.asked)


def summary(scene: Scene) -> str:
    """A row for each segment and each device, and the line that makes the same."""
    from ...draw.text import summary as rows
    from ...draw.text.marks import lines_of_marks
    from ...planning import table

    marks = printable("\n".join(lines_of_marks(scene.programs)))
    blocks = [table_text(rows.HEAD, rows.rows_of(scene.programs), rows.RIGHT)]
    if scene.account is None:
        blocks += [table_text(rows.HEAD_OF_DEVICES, rows.rows_of_devices(scene.programs), rows.RIGHT_OF_DEVICES)]
        return "\n\n".join([*blocks, marks, printable(scene.line)])
    blocks += [table_text(table.HEAD_OF_DEVICES, scene.account.rows_of_devices(), table.RIGHT_OF_DEVICES)]
    return "\n\n".join([*blocks, marks, printable("\n".join([*scene.account.remarks(), scene.line]))])


def full(scene: Scene) -> str:
    """Every operation, as it reads back."""
    from ...compiler.text.printer import print_program

    return printable("\n".join(map(print_program, scene.programs.values())))


def data(scene: Scene) -> str:
    """All facts as a JSON document, an operation a line."""
    from ...draw import document

    return json_text([document(program, name) for name, program in scene.programs.items()], depth=3)


def mermaid(scene: Scene) -> str:
    """A Mermaid flowchart."""
    from ...draw import mermaid

    return mermaid(scene.programs, scene.depth)


def dot(scene: Scene) -> str:
    """A DOT graph."""
    from ...draw import dot

    return dot(scene.programs, scene.depth)


def svg(scene: Scene) -> str:
    """A picture that Graphviz laid out."""
    from ...draw import svg

    return svg(scene.programs, scene.depth)


def html(scene: Scene) -> str:
    """A page of pictures."""
    from ...draw import page

    return page(
        scene.programs, scene.account, title=Path(scene.subject).name or scene.subject or "the demo", line=scene.line
    )


def graphml(scene: Scene) -> str:
    """The annotated graph, for tools that read GraphML."""
    from ...draw import graphml

    return graphml(scene.programs)


PICTURES = ("svg", "mermaid", "dot")
"""The forms that have a depth."""


def trace(scene: Scene) -> str:
    """The predicted time line of one call of each program, one after another, as Perfetto opens it."""
    from ...compiler.devices.rig import Rig, joined_links
    from ...compiler.devices.speeds import speeds_of
    from ...profile.chrome import trace_of
    from ...profile.sides import predicted_slices

    rigs = [one.rig for one in scene.programs.values()]
    rig = Rig({device: memory for one in rigs for device, memory in one.memory.items()}, links=joined_links(rigs))
    speeds = scene.account.speeds if scene.account else speeds_of(rig)
    return json_text(trace_of(predicted_slices(scene.programs, speeds)), 2)


FORMS: Mapping[str, Callable[[Scene], str]] = {
    "text": summary, "full": full, "html": html, "svg": svg, "mermaid": mermaid, "dot": dot, "json": data,
    "trace": trace, "graphml": graphml,
}  # fmt: skip
"""The forms by the words of `--as`, and the full text."""
