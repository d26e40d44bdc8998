"""Checks a program and its schedule against small named rules.

It runs at the end of every compile and may run after every pass: a rule is checked as soon as the fact that it speaks
of is established. It changes nothing, computes nothing, and takes time linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from ...compiler.errors import DovetailError, VerificationError
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Schedule
from ...compiler.text.printer import lines_of
from . import part_rules, pin_rules, reuse_rules, rules, transfer_rules
from . import row_split_rules as slice_rules
from .replay import replay
from .snapshot import Snapshot, Violation

CHECKS: tuple[tuple[str, Callable[[Snapshot], Iterator[Violation]]], ...] = (
    ("", rules.targets),
    ("", rules.order),
    ("", rules.weights),
    ("", rules.signature),
    ("", rules.alias),
    ("", rules.outside),
    ("", part_rules.parts),
    ("placed", rules.home),
    ("placed", slice_rules.slices),
    ("placed", slice_rules.split),
    ("placed", slice_rules.states),
    ("pinned", rules.device),
    ("pinned", rules.dtypes),
    ("pinned", rules.view),
    ("pinned", pin_rules.pin),
    ("pinned", rules.storage),
    ("", transfer_rules.moving),
    ("cut", rules.segments),
    ("cut", transfer_rules.transfers),
    ("", reuse_rules.reuse),
    ("scheduled", transfer_rules.numbers),
    ("scheduled", replay),
)
"""Each check with the fact that must be established before it applies."""

SCHEDULE_RULES = {
    "input": "A schedule begins with the inputs, on the main device.",
    "load": "A weight is loaded to each device that reads it, before it is read, and nowhere else.",
    "slot": "A slot holds the weights of one load, from its start to its release; nothing else lies in their memory.",
    "rest": "A weight that rests elsewhere comes for a stage or a phase, not for good.",
    "run": "Every node runs once, in order, on the device of its segment.",
    "live": "What is read is there: made or sent before, and not yet freed.",
    "copy": "A copy carries out a transfer, from where its value lives, in the content that it has there, once.",
    "land": "A copy lands in memory that is there, in the place where its readers gather it.",
    "wait": "What was sent or loaded is awaited on the device that reads it, once, before it is read.",
    "fence": "Memory is written only after its device has waited for the copies that read it.",
    "free": "Only what is there is freed.",
    "idle": "Nothing is sent that is not read.",
    "left": "At the end nothing is left but the results.",
    "return": "The results are handed out in order, from the main device, as the last step.",
}
"""The rules that a schedule keeps."""

RULES: dict[str, str] = {
    **{check.__name__: (check.__doc__ or "").strip() for _, check in CHECKS if check is not replay},
    **SCHEDULE_RULES,
}
"""Every rule by its name, with what it says."""


def verify(program: Program) -> None:
    """Checks every rule that applies to a program as far as it has come.

    Raises VerificationError, which names the rule and shows the place with the lines around it.
    """
    try:
        found = next(violations(program), None)
        message = explain(program, found) if found else ""
    except DovetailError:
        raise
    except Exception as error:  # a program that was made by hand, or read, may lack what every rule takes for granted
        raise VerificationError(f"{program.name} is no whole program: {type(error).__name__}: {error}") from error
    if message:
        raise VerificationError(message)


def violations(program: Program) -> Iterator[Violation]:
    """All that breaks a rule, in the order of the checks; what follows the first may be its consequence."""
    snapshot = Snapshot.of(program)
    return chain.from_iterable(check(snapshot) for fact, check in CHECKS if not fact or fact in program.facts)


def explain(program: Program, violation: Violation, law: str = "") -> str:
    """The text of an error: the rule, what is wrong, and ten lines of the program or schedule around the place."""
    text = [f"rule {violation.rule}: {law or RULES[violation.rule]}", f"broken by {program.name}: {violation.problem}"]
    text += _surroundings(program, violation)
    history = " → ".join(program.history) or "no pass"
    text += [f"run so far: {history}: a pass that is not dovetail's own, or an edited plan, may be at fault"]
    return "\n".join([*text, "if neither is there, this is a mistake of dovetail: please report it with this text"])


def _surroundings(program: Program, violation: Violation) -> list[str]:
    if violation.instruction is not None and program.schedule is not None:
        return _window(*_schedule_lines(program.schedule, violation))
    nodes = list(program.graph.nodes)
    if violation.node not in nodes:
        return []
    try:
        lines = list(lines_of(program))[-len(nodes) :]
    except Exception:  # what breaks the rule cannot be printed either
        lines = [str(node.format_node() or f"return {node.args}") for node in nodes]
    return _window(lines, nodes.index(violation.node))


def _schedule_lines(schedule: Schedule, violation: Violation) -> tuple[list[str], int]:
    """The lines of a schedule, and which of them a violation is in: that of its node, where it has one."""
    lines: list[str] = []
    place = 0
    for index, one in enumerate(schedule):
        own = str(one).splitlines()
        if index == violation.instruction:
            begin = f"  %{violation.node.name}:" if violation.node else own[0]
            place = len(lines) + next((at for at, line in enumerate(own) if line.startswith(begin)), 0)
        lines += own
    return lines, place


def _window(lines: list[str], index: int, around: int = 5) -> list[str]:
    start = max(index - around, 0)
    window = enumerate(lines[start : index + around + 1], start)
    return [f"{'>' if number == index else ' '}{number:5} {line}" for number, line in window]
