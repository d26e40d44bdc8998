"""Whole pipelines within budgets of one simulated device whose weights rest in host memory, and a bound for each.

The bound B of a pipeline is computed here from its programs as they are lowered with all weights there: by a walk over
the graph, and by none of the code that decides what fits. For each program it is the smaller of two: its peak, and the
most, over its operations, of what lives then, what the kernel takes besides and the weights that the operation reads or
that its operands view, with the largest single weight besides. What the pipeline itself holds meanwhile is added.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.ir.program import Program, tensors_of, weight_name
from dovetail.passes.analysis.scratch import apart_bytes, scratch_bytes
from dovetail.planning.generation import Generation
from dovetail.runtime import sim

from .pipelines.every_pipeline import EVERY_PIPELINE, result, same

SLACK = 1.15
"""A budget of so many times B, and any larger one, has to be accepted."""

RIG = "sim0=64GiB,cpu=64GiB"

SIXTY = (
    "flux", "flux_img2img", "sd", "sd_safe", "sd_img2img", "sd_inpaint", "sd_controlnet", "sdxl", "sd3", "wan", "ltx",
    "pixart", "sana", "aura", "cogvideox", "svd", "qwen", "sd_pix2pix", "sd_upscale", "sd_latent_upscale",
    "sd_controlnet_img2img", "sd_adapter", "sd_pag", "sd_variation", "lcm", "marigold_depth", "ldm", "animatediff",
    "sdxl_img2img", "sdxl_inpaint", "sdxl_controlnet", "sdxl_adapter", "sdxl_pix2pix", "ddim", "consistency", "if",
    "if_img2img", "if_upscale", "kandinsky", "kandinsky_prior", "cascade_prior", "cascade_decoder", "flux_fill",
    "flux_control", "flux_kontext", "flux_controlnet", "sd3_img2img", "sd3_controlnet", "qwen_img2img", "chroma",
    "bria", "lumina", "pixart_alpha", "hunyuan_dit", "sana_sprint", "wan_i2v", "ltx_i2v", "cogvideox_v2v", "mochi",
    "latte",
)  # fmt: skip
"""The pipelines that are asked within budgets."""


@dataclass(frozen=True)
class Bound:
    """The bound of a pipeline, the call and the operation that it comes from, and its peak with all weights there."""

    nbytes: int
    where: str
    unbounded: int


@dataclass(frozen=True)
class Answer:
    """What became of a call within a budget: ``verdict`` is accepted, refused, or what went wrong."""

    budget: int
    verdict: str
    peak: int = 0
    said: str = ""

    def is_right(self, bound: Bound) -> bool:
        """Whether it was accepted where it has to be; below that it may be refused, before anything runs."""
        return self.verdict == "accepted" or (self.verdict == "refused" and self.budget < SLACK * bound.nbytes)


class Subject:
    """A pipeline, a call of it, and what the call gives in eager."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pipe, self.call = EVERY_PIPELINE[name]()
        self.expected = result(self.pipe, self.call)

    def bound(self) -> Bound:
        """B, and the measured peak of a call with all weights there."""
        options = {"output_type": "pt", "return_dict": False, **self.call}
        dovetail.compile_pipeline(self.pipe, "sim0", rig=RIG, vae_tiling="off")
        try:
            plan = self.pipe.dovetail.plan(**options, generator=torch.Generator().manual_seed(0))
            peak, _ = _measured(lambda: result(self.pipe, self.call))
            nbytes, where = bound_of(plan) if plan is not None else (peak, "no plan")
            return Bound(min(nbytes, peak), where, peak)
        finally:
            self._undo()

    def within(self, budget: int) -> Answer:
        """The call within a budget of the device."""
        try:
            dovetail.compile_pipeline(
                self.pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig=RIG, vae_tiling="off"
            )
            peak, found = _measured(lambda: result(self.pipe, self.call))
        except DoesNotFitError as error:
            return Answer(budget, self._refused(error), said=str(error))
        except Exception as error:
            return Answer(budget, type(error).__name__, said=str(error))
        finally:
            self._undo()
        if peak > budget:
            return Answer(budget, "over the budget", peak)
        return Answer(budget, "accepted" if same(found, self.expected) else "other bits", peak)

    def _refused(self, error: DoesNotFitError) -> str:
        """How it was refused: before any program was kept, with the bytes that it needs and the operation."""
        if any(self.pipe.dovetail.programs.values()):
            return "refused late"
        return "refused" if re.search(r"needs .*iB.*\(%\w+\)", error.problem, re.DOTALL) else "refused without a cause"

    def _undo(self) -> None:
        if getattr(self.pipe, "dovetail", None) is not None:
            self.pipe.dovetail.undo()
        gc.collect()


def _measured(call: Callable[[], Any]) -> tuple[int, Any]:
    """The peak of the device over a call beside what lay there before, and what the call gives."""
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    found = call()
    return sim.stats(0).peak - before, found


def bound_of(plan: Generation) -> tuple[int, str]:
    """The bytes of B of a planned call with all weights there, and the call and operation that they come from."""
    found = (0, "")
    for one in plan.calls:
        device = one.program.main
        nbytes, node = bound_of_program(one.program, device)
        found = max(found, (nbytes + one.held.get(device, 0), f"{one.title} %{node}"))
    return found


def bound_of_program(program: Program, device: Device) -> tuple[int, str]:
    """The smaller of a program's peak and of what its hungriest operation needs with the largest weight besides."""
    weights = {weight_name(node): program.weight(node).device_bytes for node in program.weight_nodes() if node.users}
    lives = list(living(program, device))
    peak = max((alive for _, alive in lives), default=0) + sum(weights.values())
    needs = ((alive + sum(weights[name] for name in _read(program, node)), node.name) for node, alive in lives)
    least, node = max(needs, default=(0, ""))
    return min((peak, node), (least + max(weights.values(), default=0), node))


def living(program: Program, device: Device) -> Iterator[tuple[Node, int]]:
    """The bytes of inputs, results and scratch that live while each operation runs, weights apart."""
    nodes = list(program.graph.nodes)
    of_others = {tensor.storage for node in program.weight_nodes() for tensor in tensors_of(node)}
    of_others |= program.given_storages
    last: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for one in (node, *node.all_input_nodes):
            last.update((tensor.storage, place) for tensor in (tensors_of(one) if one.op != "output" else ()))
    sizes: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for tensor in tensors_of(node) if node.op != "output" else ():
            if tensor.storage not in of_others:
                sizes.setdefault(tensor.storage, tensor.nbytes)
        if node.op == "call_function":
            yield node, sum(sizes.values()) + scratch_bytes(program, node, device) + apart_bytes(program, node, device)
        if node.op != "placeholder" or not node.users:
            sizes = {one: nbytes for one, nbytes in sizes.items() if last[one] > place}


def _read(program: Program, node: Node) -> set[str]:
    """The weights that an operation reads, or that its operands view."""
    by_memory: Mapping[int, str] = {
        tensor.storage: str(weight_name(one)) for one in program.weight_nodes() for tensor in tensors_of(one)
    }
    memory = (tensor.storage for operand in node.all_input_nodes for tensor in tensors_of(operand))
    return {by_memory[one] for one in memory if one in by_memory}
