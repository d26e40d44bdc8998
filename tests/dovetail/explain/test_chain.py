"""An explanation says which lanes a call's time is made of, where they are several."""

from __future__ import annotations

from dovetail.compiler.ir.program import Program
from dovetail.explain.facts import sentences_of
from tests.passes.simulate.test_timeline import program, speeds


def told(one: Program) -> str:
    return " ".join(sentences_of("transformer", one, 4, speeds(one)))


def test_the_longest_chain_of_work_is_named_by_lanes_where_they_are_several() -> None:
    chain = "Its longest chain of work, which alone decides that, is "
    assert chain not in told(program("cuda0=1GiB"))
    streamed = told(program("cuda0=1GiB", "cpu")).split(chain)[1]
    assert streamed.index("loads to cuda0") < streamed.index("cuda0.")
    assert "cuda0 to cuda1" in told(program("cuda0=1GiB,cuda1=1GiB")).split(chain)[1]
