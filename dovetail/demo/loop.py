"""The training loop that the three stages share: it resumes where it was interrupted.

Every step draws its random numbers from a generator seeded by the step's number, so that a resumed run goes on as the
uninterrupted one would have.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

_logger = logging.getLogger(__name__)

Loss = Callable[[int, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a stage is trained; the rate is constant up to half-time and then falls linearly to nothing."""

    name: str
    steps: int
    rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    average: float | None = None
    save_every: int = 500

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.rate * min(1.0, 2.0 * (self.steps - step) / self.steps)


class Average:
    """An exponential moving average of a module's parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = [parameter.detach().clone() for parameter in module.parameters()]

    def update(self, module: nn.Module, step: int) -> None:
        """Move towards the module's parameters, faster in the first steps."""
        decay = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(self.values, [p.detach() for p in module.parameters()], 1.0 - decay)

    def load_into(self, module: nn.Module) -> None:
        """Write the averages into the module."""
        for parameter, value in zip(module.parameters(), self.values, strict=True):
            parameter.data.copy_(value)


class Stage:
    """A module, its optimizer and its average on the way through a recipe, with a checkpoint on disk."""

    def __init__(self, module: nn.Module, recipe: Recipe, work: Path) -> None:
        self.module, self.recipe, self.file = module, recipe, work / f"{recipe.name}.pt"
        self.optimizer = torch.optim.AdamW(
            module.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
        )
        self.average = Average(module, recipe.average) if recipe.average is not None else None
        self.done = 0
        if self.file.exists():
            self._load(torch.load(self.file, weights_only=True))

    def run(self, loss: Loss) -> None:
        """Take the steps that are left, then leave the averaged parameters in the module, in eval mode."""
        self.module.train()
        clock, generator = time.monotonic(), torch.Generator()
        for step in range(self.done, self.recipe.steps):
            value = self._step(step, loss, generator.manual_seed(step))
            self.done = step + 1
            if self.done % 100 == 0:
                _logger.info(
                    "%s %d/%d loss %.4f %.0f s",
                    self.recipe.name,
                    self.done,
                    self.recipe.steps,
                    value,
                    time.monotonic() - clock,
                )
            if self.done % self.recipe.save_every == 0 or self.done == self.recipe.steps:
                self._save()
        if self.average is not None:
            self.average.load_into(self.module)
        self.module.eval().requires_grad_(False)

    def _step(self, step: int, loss: Loss, generator: torch.Generator) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(step)
        value = loss(step, generator)
        value.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.module, step)
        return float(value.detach())

    def _save(self) -> None:
        state = {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}
        if self.average is not None:
            state["average"] = self.average.values
        beside = self.file.with_suffix(".part")
        torch.save(state, beside)
        beside.replace(self.file)

    def _load(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]
        if self.average is not None:
            self.average.values = state["average"]
        _logger.info("%s goes on at step %d", self.recipe.name, self.done)


def rounded(module: nn.Module) -> None:
    """Round the parameters to bfloat16, as the files will hold them, so that the next stage sees what is saved."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
