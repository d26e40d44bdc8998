"""A whole tiny pipeline of which one component is split under a mode, or takes micro-batches, judged call by call.

Pictures are made larger than the pipelines' own, of 256 tokens where classes take them. Each call that the pipeline
makes of the component is seen in eager, for some seeds; what the split component yields for the same arguments is
compared with float64, beside what eager yields. Peaks and bytes are compared with those planned, and the same pipeline
then paints a picture of another size, and several pictures at once.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL.Image import Image
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.ir.program import Program
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.components.compiled import CompiledModule
from dovetail.conventions.roles import role_of_module
from dovetail.passes.batches.divide import micro_batches_of
from dovetail.passes.states.states import split_mode_of
from dovetail.runtime import sim
from dovetail.runtime.in_place import Settled

from .exact import InFloat64
from .pipelines.every_pipeline import EVERY_PIPELINE, arguments, result

MODES = {"diffusion": ("tensor", "sequence", "batch"), "vae": ("spatial",)}
SHARES = ((1, 1), (1, 0), (5, 3), (5, 3, 2), (1, 1, 1), (1, 1, 1, 1))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
METHODS = ("forward", "decode", "encode")
WORSE = 1.5
"""So many times as far from float64 as eager may results be."""

MICRO = "micro-batches"
"""A layer split through which pictures go in two parts, by the name of a mode."""

SIDE = 64
"""Of a picture; the tiny pipelines' own have 8 to 32."""

_ROOM = 2**33

Call = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A pipeline of which a component is split under a mode, on as many devices as there are shares."""

    name: str
    component: str
    mode: str
    shares: tuple[int, ...]
    dtype: str

    @property
    def option(self) -> str:
        """The argument that asks for the mode."""
        return "micro_batches" if self.mode == MICRO else "split_mode"

    def __str__(self) -> str:
        return f"{self.name} {self.component}={self.mode} {':'.join(map(str, self.shares))} {self.dtype}"


@dataclass
class Verdict:
    """What was found of a cell: which calls were judged, the largest error beside eager's, and what is wrong."""

    judged: list[str] = field(default_factory=list)
    ratio: float = 0.0
    is_split: bool = False
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """It as JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """A call of a component, and what it yields in eager and in float64 (or in eager again, where that is not)."""

    method: str
    args: tuple[Any, ...]
    kwargs: Call
    eager: torch.Tensor
    exact: torch.Tensor
    is_exact: bool


def cells(name: str, seed: int, count: int = 2) -> list[Cell]:
    """So many of the modes of a pipeline's components, with shares and dtypes, drawn by a seed."""
    choice, pipe = random.Random(f"{seed} {name}"), EVERY_PIPELINE[name]()[0]
    modules = {key: one for key, one in pipe.components.items() if isinstance(one, nn.Module)}
    asked = [(key, mode) for key, one in modules.items() for mode in MODES.get(role_of_module(key, one), ())]
    chosen = choice.sample(asked, min(count, len(asked)))
    kinds = ("fp32", "fp32", "bf16")
    return [Cell(name, key, mode, choice.choice(SHARES), choice.choice(kinds)) for key, mode in chosen]


def judge(cell: Cell) -> Verdict:
    """Paints with the pipeline in eager and split, and says what was found."""
    pipe, calls = prepared(cell)
    seen = {what: list(_seen(pipe, cell, call, 5 if what == "picture" else 3)) for what, call in calls.items()}
    verdict, count = Verdict(), len(cell.shares)
    if getattr(pipe, cell.component).dtype != DTYPES[cell.dtype]:
        verdict.told.append(f"judged in fp32, for eager takes no call in {cell.dtype}")
    gc.collect()
    sim.enable(dict.fromkeys(range(count), _ROOM))
    before = [sim.stats(index).in_use for index in range(count)]
    devices = "&".join(f"sim{index}" for index in range(count))
    with _told(verdict.told):
        dovetail.compile_pipeline(
            pipe,
            f"sim0,{cell.component}={devices}",
            **{cell.option: f"{cell.component}={2 if cell.mode == MICRO else cell.mode}"},
            tensor_split=f"{cell.component}={':'.join(map(str, cell.shares))}",
        )
        with pipe.dovetail:
            for what, call in calls.items():
                _judge_call(verdict, what, pipe, cell, call, seen[what], before)
            made = pipe.dovetail.programs.get(cell.component, [])
            verdict.is_split = any(_mode_of(one.program) == cell.mode for one in made)
    if not any(seen.values()):
        verdict.told.append("peaks alone are judged: called by itself, the component yields something else")
    return verdict


def _mode_of(program: Program) -> str:
    return MICRO if micro_batches_of(program) > 1 else split_mode_of(program)


def prepared(cell: Cell) -> tuple[Any, dict[str, Call]]:
    """The pipeline in its dtype, and the calls that it takes in eager: one picture, another size, several.

    In float32 where eager takes none in that dtype.
    """
    for dtype, scaled in itertools.product(dict.fromkeys((cell.dtype, "fp32")), (True, False)):
        pipe, call = EVERY_PIPELINE[cell.name]()
        pipe.to(DTYPES[dtype])
        first = enlarged(call, SIDE) if scaled else call
        if _is_taken(pipe, first):
            break
    else:
        raise ValueError("eager takes no call")
    others = {"other size": enlarged(call, SIDE * 3 // 4), "several": _several(pipe, first)}
    taken = {what: one for what, one in others.items() if _is_taken(pipe, one)}
    return pipe, {"picture": first, **taken}


def enlarged(call: Call, side: int) -> Call:
    """A call for pictures of another side; pictures that it is given are scaled."""
    sides = [call["height"]] if "height" in call else [_side(one) for one in call.values() if _side(one)]
    if not sides:
        return {}
    factor = max(1, side // max(sides)) if side % max(sides) == 0 else side / max(sides)
    return {name: _scaled(name, value, factor) for name, value in call.items()}


def _side(value: Any) -> int:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[1] in (1, 3):
        return int(value.shape[-1])
    return int(value.size[0]) if isinstance(value, Image) else 0


def _scaled(name: str, value: Any, factor: float) -> Any:
    if name in ("height", "width"):
        return int(value * factor)
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[1] in (1, 3, 4):
        found = nn.functional.interpolate(value, scale_factor=factor)
        last = value.is_contiguous(memory_format=torch.channels_last)
        return found.contiguous(memory_format=torch.channels_last) if last else found
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return np.repeat(np.repeat(value, int(factor), 0), int(factor), 1)
    if isinstance(value, list):
        return [_scaled(name, one, factor) for one in value]
    if isinstance(value, Image):
        return value.resize([int(one * factor) for one in value.size])
    return value


def _several(pipe: Any, call: Call) -> Call:
    """A call for two pictures at once."""
    known = inspect.signature(type(pipe).__call__).parameters
    counts = [name for name in known if name.startswith("num_") and name.endswith("_per_prompt")]
    counts += [name for name in ("batch_size",) if name in known]
    return {**call, counts[0]: 2} if counts else {}


def _is_taken(pipe: Any, call: Call) -> bool:
    if not call:
        return False
    try:
        return bool(result(pipe, call))
    except Exception:  # whatever eager refuses is not judged
        return False


def _seen(pipe: Any, cell: Cell, call: Call, seeds: int) -> Iterator[Seen]:
    """The first call of each method of a component for each seed, as eager makes it.

    None of a component that a pipeline changes for its calls (other processors of attention, say): called by itself
    it yields something else. Where a pipeline makes the same call for each seed (it encodes a picture that it was
    given, which may be of one colour), noise is added to pictures: one call is one sample.
    """
    module = getattr(pipe, cell.component)
    double = copy.deepcopy(module).double()
    first: dict[str, list[torch.Tensor]] = {}
    for seed in range(1, seeds + 1):
        for method, (args, kwargs, eager) in _noted(pipe, module, call, seed).items():
            is_exact, exact = True, eager
            with torch.no_grad():
                if not torch.equal(tensors_in(getattr(module, method)(*_cloned(args), **_cloned(kwargs))), eager):
                    continue
                given = _tensors((args, kwargs))
                if method in first and all(map(torch.equal, first[method], given)):
                    args, kwargs = _noisy((args, kwargs), seed)
                    eager = tensors_in(getattr(module, method)(*_cloned(args), **_cloned(kwargs)))
                first.setdefault(method, given)
            try:
                with torch.no_grad(), InFloat64():
                    found = getattr(copy.deepcopy(double), method)(*_doubled(args), **_doubled(kwargs))
                exact = tensors_in(found)
            except RuntimeError:  # some classes have a dtype in their code
                is_exact = False
            yield Seen(method, args, kwargs, eager, exact, is_exact and bool(exact.isfinite().all()))


def _noted(pipe: Any, module: Any, call: Call, seed: int) -> dict[str, tuple[Any, Any, torch.Tensor]]:
    found: dict[str, tuple[Any, Any, torch.Tensor]] = {}

    def noting(method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            given = None if method in found else _cloned((args, kwargs))
            yielded = function(*args, **kwargs)
            if given is not None:
                found[method] = (*given, tensors_in(_cloned(yielded)))
            return yielded

        return noted

    methods = [method for method in METHODS if hasattr(module, method)]
    for method in methods:
        setattr(module, method, noting(method, getattr(module, method)))
    try:
        result(pipe, {**call, "generator": torch.Generator().manual_seed(seed)})
    finally:
        for method in methods:
            delattr(module, method)
    return found


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _noisy(value: Any, seed: int) -> Any:
    """The same with noise on pictures, and on whatever else has rows and columns."""
    made = torch.Generator().manual_seed(seed)

    def add(one: Any) -> Any:
        is_picture = isinstance(one, torch.Tensor) and one.is_floating_point() and one.dim() > 3
        return one + 0.3 * torch.randn(one.shape, generator=made).to(one) if is_picture else one

    return pytree.tree_map(add, value)


def _cloned(value: Any) -> Any:
    return pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, value)


def _doubled(value: Any) -> Any:
    def double(one: Any) -> Any:
        return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    return pytree.tree_map(double, value)


def tensors_in(value: Any) -> torch.Tensor:
    """All floats of what a component yields, one behind another, as float64; of distributions their parameters."""
    if isinstance(value, Mapping):
        value = list(value.values())
    leaves = [getattr(one, "parameters", one) for one in pytree.tree_leaves(value)]
    floats = [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]
    return torch.cat([one.detach().cpu().double().flatten() for one in floats])


@contextmanager
def _told(lines: list[str]) -> Iterator[None]:
    """Notes what dovetail warns of modes."""

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.getMessage()
            if ("cannot be split" in said or "split mode" in said or "by its parts" in said) and said not in lines:
                lines.append(said)

    handler, logger = Listening(logging.WARNING), logging.getLogger("dovetail")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _judge_call(
    verdict: Verdict, what: str, pipe: Any, cell: Cell, call: Call, seen: Sequence[Seen], before: Sequence[int]
) -> None:
    """Paints four times, and compares the component's results, bytes and peaks.

    In the first call of all, weights come to a device when the component is first called that they are of: what is
    planned is what a call takes that finds all there and has yet to see what may be computed in place. The first and
    all that follow take no more. It is planned before: a call that plans itself has copies of a scheduler's tensors
    beside what the pipeline holds meanwhile.

    Where numbers decide with how many rows parts are called, which only a component does that runs by its parts, the
    plan has all rows: no call takes more, and it is told that some take less.
    """
    planned = pipe.dovetail.plan(**arguments(call), generator=torch.Generator().manual_seed(0))
    peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated} if planned else {}
    with patch.object(Settled, "keep"):  # each call looks as the first does
        took = [_measured(pipe, call, peaks, before) for _ in range(2)]
    took += [_measured(pipe, call, peaks, before) for _ in range(2)]  # the second does in place what the first has seen
    is_more = any(one[device] > peaks[device] for one in took for device in peaks)
    if by_parts(pipe) and took[1] != peaks and not is_more:
        verdict.told.append(f"{what}: runs by its parts, peaks {_words(took[1])}, planned at most {_words(peaks)}")
    elif planned is None or took[1] != peaks or is_more:
        verdict.wrong.append(f"{what}: peaks {', then '.join(map(_words, took))}, planned {_words(peaks)}")
    module = getattr(pipe, cell.component)
    for method in dict.fromkeys(one.method for one in seen):
        calls = [one for one in seen if one.method == method]
        found = [_called(verdict, f"{what}, {method}", pipe, cell, module, one) for one in calls]
        _compare(verdict, f"{what}, {method}", found, calls, DTYPES[cell.dtype])
        verdict.judged.append(f"{what}, {method}")


def by_parts(pipe: Any) -> bool:
    """Whether a component of a pipeline runs by its parts."""
    return any(one.parts.reasons for one in pipe.dovetail.components.values())


def _measured(pipe: Any, call: Call, devices: Iterable[Any], before: Sequence[int]) -> dict[Any, int]:
    """Paints, and says how much of each device was in use at most."""
    gc.collect()
    for device in devices:
        sim.reset_peak(device.index)
    result(pipe, call)
    return {device: sim.stats(device.index).peak - before[device.index] for device in devices}


def _words(bytes_on: Mapping[Any, int]) -> str:
    return ", ".join(f"{device} {nbytes}" for device, nbytes in bytes_on.items()) or "none"


def _called(verdict: Verdict, what: str, pipe: Any, cell: Cell, module: Any, one: Seen) -> torch.Tensor:
    """What the split component yields; notes where it sent other bytes than planned."""
    for _ in range(2):  # with the first call weights may come
        ran, came = list[tuple[Program, int]](), sum(sim.stats(index).bytes_in for index in range(len(cell.shares)))
        with torch.no_grad(), _noted_programs(ran):
            yielded = getattr(module, one.method)(*_cloned(one.args), **_cloned(one.kwargs))
        sent = sum(sim.stats(index).bytes_in for index in range(len(cell.shares))) - came
    planned, inputs = sum(crossing_bytes(program) for program, _ in ran), sum(nbytes for _, nbytes in ran)
    is_known = bool(ran) and all(program.is_grouped for program, _ in ran)
    if is_known and sent != planned + inputs:
        verdict.wrong.append(f"{what}: {sent} B came, {planned} planned beside {inputs} of inputs")
    return tensors_in(yielded)


@contextmanager
def _noted_programs(ran: list[tuple[Program, int]]) -> Iterator[None]:
    """Notes the programs that run, and the bytes of inputs that come to them from the host.

    A call that goes by its parts has several; results of a part go back to the host if the call's inputs lie there.
    """
    own = CompiledModule.__call__

    def noting(made: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        given = _tensors((args, kwargs))
        ran.append((made.program, sum(leaf.nbytes for leaf in given if leaf.device.type == "cpu")))
        return own(made, *args, **kwargs)

    with patch.object(CompiledModule, "__call__", noting):
        yield


def _compare(
    verdict: Verdict, what: str, found: Sequence[torch.Tensor], calls: Sequence[Seen], dtype: torch.dtype
) -> None:
    size = sum(float(one.exact.square().sum()) for one in calls)
    pairs = list(zip(found, calls, strict=True))
    error, eager = (
        (sum(float((one - exact).square().sum()) for one, exact in each) / max(size, 1e-300)) ** 0.5
        for each in ([(one, seen.exact) for one, seen in pairs], [(seen.eager, seen.exact) for seen in calls])
    )
    is_exact = all(one.is_exact for one in calls)
    most = max(WORSE * eager, torch.finfo(dtype).eps) if is_exact else 100 * torch.finfo(dtype).eps
    verdict.ratio = max(verdict.ratio, error / max(eager, torch.finfo(dtype).eps) if is_exact else 0.0)
    if not error <= most:
        verdict.wrong.append(f"{what}: error {error:.1e}, eager's {eager:.1e}{'' if is_exact else ' (no float64)'}")
