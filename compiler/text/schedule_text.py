"""Reads the text form of a schedule, as ``str`` of one prints it; it runs nothing and imports nothing.

::

    input %x, %y on DEVICE
    load N to DEVICE for the program: "WEIGHT", …      load N to slot K of DEVICE for the phase|stage: "WEIGHT", …
    allocate %whole on DEVICE [like %v]
    copy %v from DEVICE to DEVICE                             %v is what a transfer makes
    copy %v[BOX] of [BOX] and … from DEVICE to DEVICE         boxes of it: AXIS: START:STOP, …; of what the sender has
    await %v from DEVICE to DEVICE on DEVICE                  await load N on DEVICE
    run segment N on DEVICE: %first to %last                  and below it, for nodes that do more than compute:
      %node: ACTION; ACTION; scratch BYTES                    awaits, copies and frees, written as they are here
    free %v on DEVICE
    release load N
    output %v, … from DEVICE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch.fx import Node

from ..devices.device import Device
from ..errors import DovetailError, ProgramTextError, TextError, in_our_words
from ..ir.boxes import Box, Landing
from ..ir.program import Program, Segment
from ..ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Lifetime,
    Load,
    Output,
    Release,
    Run,
    Schedule,
    Step,
    ValueRef,
)
from ..states.parts import pieces
from .tokens import Line, known


def parse_schedule(text: str, program: Program) -> Schedule:
    """The schedule that a text says, over the nodes and segments of a program.

    What it means is for the verifier to say: reading asks only for nodes, segments, weights and devices that are there.
    Raises ProgramTextError with the number of a line that cannot be read.
    """
    reader = _Reader(program)
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reader.read(line)
        except (DovetailError, ValueError, LookupError, RecursionError) as error:
            why = in_our_words(error)
            raise ProgramTextError(f"line {number} of the schedule of {program.name} cannot be read: {why}") from error
    reader.close_run()
    return Schedule(tuple(reader.instructions))


class _Reader:
    """What the lines read so far amount to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = {node.name: node for node in program.graph.nodes}
        self.devices = {device.name: device for device in program.devices}
        self.held = pieces(program)
        self.instructions: list[Instruction] = []
        self.loads: dict[int, Load] = {}
        self.copies: dict[tuple[ValueRef, Device, Device], Copy] = {}
        self.place = {node: place for segment in program.segments for place, node in enumerate(segment.nodes)}
        self.segment = {node: segment for segment in program.segments for node in segment.nodes}
        self.steps: dict[Node, Step] = {}  # of the run that is being read
        self.runs: set[tuple[Node, Device]] = set()  # in no two runs of a device, so that reading takes linear time

    def read(self, text: str) -> None:
        line = Line(text)
        word = line.take()
        if word.startswith("%"):
            self._step(known(self.nodes, word[1:], f"there is no {word}"), line)
        else:
            self.close_run()
            self.instructions.append(known(_ACTIONS, word, f"{word[:40]} is no instruction")(self, line))
        if line.rest():
            raise TextError(f"expected the end of the line, found {line.rest()[:40]}")

    def close_run(self) -> None:
        """Gives the run that was read last its steps."""
        run = self.instructions[-1] if self.instructions else None
        if isinstance(run, Run):
            self.instructions[-1] = replace(run, steps=tuple(self.steps.values()))
        self.steps = {}

    def _step(self, node: Node, line: Line) -> None:
        """What one node of the last run does besides computing."""
        if self.steps.get(node) != Step(node):
            raise TextError(f"%{node.name} is not in the run above, or stands there already")
        line.take(":")
        while True:
            self.steps[node] = self._noted(self.steps[node], line)
            if not line.accept(";"):
                break

    def _noted(self, step: Step, line: Line) -> Step:
        word = line.take()
        if word == "scratch":
            return replace(step, scratch=line.count())
        match _ACTIONS[word](self, line):
            case Await() as one:
                return replace(step, awaits=(*step.awaits, one))
            case Copy() as one:
                return replace(step, sends=(*step.sends, one))
            case Free() as one:
                return replace(step, frees=(*step.frees, one))
        raise TextError(f"no node does this: {word}")

    def _input(self, line: Line) -> Input:
        return Input(self._values(line, "on"), self._device(line))

    def _output(self, line: Line) -> Output:
        return Output(self._values(line, "from"), self._device(line))

    def _load(self, line: Line) -> Load:
        number, slot = line.count(), -1
        line.take("to")
        if line.accept("slot"):
            slot = line.count()
            line.take("of")
        device = self._device(line)
        line.take("for")
        line.take("the")
        lifetime = Lifetime(line.take())
        line.take(":")
        names = [line.text_in_quotes()]
        while line.accept(","):
            names.append(line.text_in_quotes())
        if number in self.loads or not self.held.keys() >= set(names):
            raise TextError(f"load {number} stands there already, or names a weight that is not there")
        self.loads[number] = Load(number, tuple(names), device, lifetime, slot)
        return self.loads[number]

    def _copy(self, line: Line) -> Copy:
        value = self._value(line)
        landings = tuple(self._landings(line)) if line.accept("[") else ()
        copy = Copy(value, *self._link(line), landings)
        self.copies[value, copy.source, copy.target] = copy
        return copy

    def _await(self, line: Line) -> Await:
        if line.accept("load"):
            started: Copy | Load = self._load_above(line)
        else:
            value = self._value(line)
            started = known(self.copies, (value, *self._link(line)), f"no such copy of {value} stands on a line above")
        line.take("on")
        return Await(started, self._device(line))

    def _release(self, line: Line) -> Release:
        line.take("load")
        return Release(self._load_above(line))

    def _load_above(self, line: Line) -> Load:
        number = line.count()
        return known(self.loads, number, f"load {number} stands on no line above")

    def _free(self, line: Line) -> Free:
        value = self._value(line)
        line.take("on")
        return Free(value, self._device(line))

    def _run(self, line: Line) -> Run:
        line.take("segment")
        number = line.count()
        if number >= len(self.program.segments):
            raise TextError(f"there is no segment {number}")
        segment = self.program.segments[number]
        line.take("on")
        device = self._device(line)
        line.take(":")
        self.steps = {node: Step(node) for node in self._span(line, segment, device)}
        self.runs |= {(node, device) for node in self.steps}
        return Run(segment, device, ())

    def _span(self, line: Line, segment: Segment, device: Device) -> Iterator[Node]:
        """The nodes of a segment from one to another, in none of the runs on the device before."""
        first = self._value(line).node
        line.take("to")
        last = self._value(line).node
        if self.segment.get(first) is not segment or self.segment.get(last) is not segment:
            raise TextError(f"%{first.name} and %{last.name} are not both in segment {segment.index}")
        for place in range(self.place[first], self.place[last] + 1):
            if (segment.nodes[place], device) in self.runs:
                raise TextError(f"%{segment.nodes[place].name} is in a run above")
            yield segment.nodes[place]

    def _allocate(self, line: Line) -> Allocate:
        value = self._value(line)
        line.take("on")
        device = self._device(line)
        return Allocate(value, device, self._value(line) if line.accept("like") else None)

    def _link(self, line: Line) -> tuple[Device, Device]:
        line.take("from")
        source = self._device(line)
        line.take("to")
        return source, self._device(line)

    def _landings(self, line: Line) -> Iterator[Landing]:
        """The boxes of a copy, whose first bracket was read."""
        while True:
            into = self._box(line)
            taken = Box()
            if line.accept("of"):
                line.take("[")
                taken = self._box(line)
            yield Landing(taken, into)
            if not line.accept("and"):
                return
            line.take("[")

    def _box(self, line: Line) -> Box:
        return Box(tuple(line.items("]", lambda: self._stretch(line))))

    def _stretch(self, line: Line) -> tuple[int, int, int]:
        axis = line.count()
        line.take(":")
        start = line.count()
        line.take(":")
        return axis, start, line.count() - start

    def _values(self, line: Line, word: str) -> tuple[ValueRef, ...]:
        """Values up to a word; ``nothing`` stands for none."""
        found: list[ValueRef] = []
        if not line.accept("nothing"):
            found.append(self._value(line))
            while line.accept(","):
                found.append(self._value(line))
        line.take(word)
        return tuple(found)

    def _value(self, line: Line) -> ValueRef:
        token = line.take()
        if not token.startswith("%"):
            raise TextError(f"expected a value, found {token}")
        return ValueRef(known(self.nodes, token[1:], f"there is no {token}"))

    def _device(self, line: Line) -> Device:
        name = line.device_name()
        return known(self.devices, name, f"the program has no device {name}")


_ACTIONS: dict[str, Callable[[_Reader, Line], Instruction]] = {
    "input": _Reader._input,
    "allocate": _Reader._allocate,
    "load": _Reader._load,
    "copy": _Reader._copy,
    "await": _Reader._await,
    "run": _Reader._run,
    "release": _Reader._release,
    "free": _Reader._free,
    "output": _Reader._output,
}
