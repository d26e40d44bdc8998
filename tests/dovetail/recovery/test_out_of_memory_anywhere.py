"""Memory runs out at requests of a whole generation, one after the other: for once, and until the call ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.cases import numbers_drawn, slow_but

from .swept import TILE, Swept

STEPS = slow_but([50], [50, 6])
"""How many requests lie between two that fail."""


@pytest.fixture(scope="module")
def swept() -> Iterator[Swept]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        swept = Swept(monkeypatch)
        gc.freeze()  # who recovers collects garbage each time
        yield swept
        swept.pipe.dovetail.undo()
        del swept
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def runs_out_once(swept: Swept, at: int) -> None:
    """The picture is the same, or that of a decode in tiles; or what the pipeline computes itself ends the call."""
    found = swept.call_with(lambda count: count == at)
    if found is None:
        assert not swept.told.texts
        latents_are_kept(swept)
        return
    assert len(swept.told.texts) == 1
    tiled = f"tiles of {TILE}" in swept.told.texts[0]
    assert torch.equal(found, swept.in_tiles if tiled else swept.picture)


def runs_out_for_good(swept: Swept, at: int) -> None:
    """The call ends, and the next one gives the picture, without what has been moved to host memory."""
    assert swept.call_with(lambda count: count >= at) is None
    assert len(swept.told.texts) == len(set(swept.told.texts))
    assert swept.beside_weights() == swept.beside
    latents_are_kept(swept)
    assert torch.equal(swept.paint(), swept.picture)


def latents_are_kept(swept: Swept) -> None:
    """What was to be decoded when a call failed is there."""
    assert bool(swept.pipe.dovetail.latents) == swept.decoded
    if swept.pipe.dovetail.latents:
        assert torch.equal(swept.go_on(), swept.picture)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_memory_that_runs_out_at_a_request_is_recovered_or_ends_with_one_error(step: int, swept: Swept) -> None:
    for at in numbers_drawn(swept.whole, step):
        try:
            for runs_out in runs_out_once, runs_out_for_good:
                swept.restore()
                runs_out(swept, at)
                assert swept.beside_weights() == swept.beside
        except Exception as error:
            raise AssertionError(f"memory ran out at request {at} of {swept.whole}") from error


@pytest.mark.fifth
@pytest.mark.parametrize("step", STEPS)
def test_memory_that_runs_out_for_a_weight_is_asked_for_again_or_ends_with_one_error(step: int, swept: Swept) -> None:
    swept.restore()
    swept.injected.counts_weights = True
    swept.to_host()
    swept.call_with(lambda _: False, swept.prepare)
    whole = swept.injected.count
    assert whole > 300
    for at in numbers_drawn(whole, step):
        try:
            swept.to_host()
            swept.call_with(lambda count, at=at: count >= at, swept.prepare)  # also when it is asked for again
            assert swept.injected.count == at + 1
            swept.call_with(lambda count: count == 1, swept.prepare)
            assert swept.injected.count == 2 + whole - at
            assert not swept.told.texts
            assert torch.equal(swept.paint(), swept.picture)
            assert swept.beside_weights() == swept.beside
        except Exception as error:
            raise AssertionError(f"memory ran out for weight {at} of {whole}") from error
    swept.injected.counts_weights = False
