"""The chains of traced programs: as they are, and with their wide parts in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..compiler.ir.program import Program
from ..passes.fit.chain import Chain, chain_of
from ..passes.fit.workload import joined
from ..passes.infra.manager import PassManager
from ..passes.placement.blocks import FindBlocks
from ..passes.rewrites.chunk import Chunk
from ..passes.rewrites.lower_packed import Quantize
from ..passes.rewrites.simplify import Simplify

COUNTS = (2, 4, 8)
"""The numbers of chunks that are tried where the number is to be found."""


def chain_of_trace(traced: Program, chunks: int = 1) -> Chain:
    """The chain of a program as it was traced, which stays as it is, with its wide parts in so many chunks."""
    steps = (Simplify(), Quantize(), FindBlocks(), *((Chunk(chunks),) if chunks > 1 else ()))
    return chain_of(PassManager(steps).run(traced.copy()))


def joined_chain(calls: Sequence[tuple[Program, float]], chunks: int = 1) -> tuple[Chain, float]:
    """The chain of a component and how often it is called, as `joined` has them.

    Args:
        calls: its programs as they were traced, each with how often it is called.
        chunks: in so many of them wide parts are computed.
    """
    return joined([(chain_of_trace(program, chunks), times) for program, times in calls])


def chains_in_chunks(
    whole: Chain, calls: Sequence[tuple[Program, float]], counts: Sequence[int]
) -> Iterator[tuple[int, Chain]]:
    """The chain of a component by number of chunks, where less is alive in some part than with fewer.

    Args:
        whole: its chain without chunks.
        calls: its programs, each with how often it is called.
        counts: the numbers of chunks, the fewest first.
    """
    before = _alive(whole)
    for count in counts if calls else ():
        chain, _ = joined_chain(calls, count)
        alive = _alive(chain)
        if any(now < then for now, then in zip(alive, before, strict=False)):
            before = alive
            yield count, chain


def _alive(chain: Chain) -> list[int]:
    return [part.live for part in (chain.rest, *chain.parts)]
