"""Hooks of diffusers' caches that compute everything in a dry run, and note what had to be computed.

What a cache skips may depend on numbers, which a dry run has none of: a plan would promise what no picture keeps. So
the plan is of a picture in which nothing is skipped, and each decision is noted with whether it could be otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from diffusers.hooks.taylorseer_cache import TaylorSeerCacheHook

from ..components.dry import dry_run


class ForeseenFirstBlock(FBCHeadBlockHook):  # type: ignore[misc]
    """Decides by how much the first block's result changes; the first step of each half of guidance is computed."""

    __module__ = FBCHeadBlockHook.__module__  # what it keeps is the model's, which a dry run gives back
    component: str

    def _should_compute_remaining_blocks(self, hidden_states_residual: torch.Tensor) -> bool:
        run = dry_run()
        if run is None:
            return bool(super()._should_compute_remaining_blocks(hidden_states_residual))
        run.note_skip(self.component, self.state_manager.get_state().head_block_residual is None)
        return True


class ForeseenTaylorSeer(TaylorSeerCacheHook):  # type: ignore[misc]
    """Decides by the number of the step."""

    __module__ = TaylorSeerCacheHook.__module__
    component: str

    def _measure_should_compute(self) -> tuple[bool, Any]:
        is_due, state = super()._measure_should_compute()
        run = dry_run()
        if run is None:
            return is_due, state
        run.note_skip(self.component, is_due)
        return True, state


_FORESEEN = {FBCHeadBlockHook: ForeseenFirstBlock, TaylorSeerCacheHook: ForeseenTaylorSeer}


def foresee(hook: Any, component: str) -> None:
    """Has a hook of a component compute everything in dry runs, if it is one that decides.

    Its class is exchanged, and nothing is put into it that knows it: copies of a model have hooks of their own.
    """
    kind = _FORESEEN.get(type(hook))
    if kind is not None:
        hook.__class__ = kind
        hook.component = component
