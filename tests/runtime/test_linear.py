"""The cost of compiling in operations of the interpreter: in proportion to the number of blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from dovetail.compiler.ir.program import Program
from testbed.scaling import make_executor, split, told_of_unknown, traced


def operations(call: Callable[[], Any]) -> int:
    """How many bytecodes of Python a call executes, loops in comprehensions included."""
    count = 0

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(scope="module")
def programs() -> dict[int, Program]:
    return {blocks: traced(blocks) for blocks in (3, 6, 12)}


def assert_linear(counts: list[int]) -> None:
    """Of counts at n, 2n and 4n blocks the growth doubles as well; a quadratic part would quadruple it."""
    few, some, many = counts
    assert (many - some) / (some - few) < 2.1, counts


@pytest.mark.fifth
@pytest.mark.parametrize("mode", ["layer", "row"])
def test_the_operations_of_making_an_executor_grow_in_proportion_to_the_blocks(
    programs: dict[int, Program], mode: str
) -> None:
    lowered = [split(program, mode) for program in programs.values()]
    assert_linear([operations(lambda program=program: make_executor(program)) for program in lowered])  # type: ignore[misc]


@pytest.mark.fifth
@pytest.mark.parametrize("mode", [pytest.param("layer", marks=pytest.mark.slow), "row"])
def test_the_operations_of_the_passes_grow_in_proportion_to_the_blocks(programs: dict[int, Program], mode: str) -> None:
    assert_linear([operations(lambda program=program: split(program, mode)) for program in programs.values()])  # type: ignore[misc]


def test_what_is_neither_a_number_of_blocks_nor_a_known_model_is_told_with_the_names() -> None:
    assert told_of_unknown(["15", "flux"], ["flux", "wan"]) == ""
    for wrong in ("flx", "0", "-3", "²"):
        said = f"there is no {wrong!r}: give a number of blocks, or one of flux, wan"
        assert told_of_unknown(["15", wrong], ["flux", "wan"]) == said
