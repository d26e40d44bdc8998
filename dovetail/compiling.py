"""Compiles one module."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from .cache.traces import trace
from .compiled_by_parts import compile_by_parts
from .compiler.checkpoints.index import WeightIndex
from .compiler.devices.device import Device, canonical_name
from .compiler.devices.rig import Rig
from .compiler.errors import TraceError, UsageError
from .compiler.ir.program import Program
from .compiler.spec.budget import MaxMemory
from .compiler.spec.modes import shares_out_weights
from .compiler.spec.residency import Residency
from .components.compiled import CompiledModule
from .components.decisions import Decisions
from .components.plan import ComponentPlan
from .components.weights.foreign import refuse_sparse
from .conventions.checked import FILES, MODULE, checked
from .conventions.device_map import named_devices, split_by_map
from .conventions.request import BOTH, Request, one_backend, tell_by_parts
from .conventions.spellings import Budgets, Counts, DeviceLike, Modes, Places, Shares
from .fitting.module import is_open, placed_module
from .passes.infra.base import Pass
from .passes.infra.manager import Callback, PassManager
from .passes.pipeline import default_passes, parse_passes, with_assignment
from .passes.placement.assignment import Assignment
from .quant import Packing
from .quant.asked import parse_type
from .runtime.store.program_weights import ProgramWeights
from .weights.files import Given, index_for, set_types, types_of
from .weights.name_matching import Wanted

logger = logging.getLogger(__name__)


@checked(module=MODULE, weights=FILES)
def compile(
    module: nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    weights: Given | None = None,
    quant: str | None = None,
    backend: Places | None = None,
    params_backend: Places | None = None,
    device_map: str | Mapping[str, DeviceLike] | None = None,
    split_mode: Modes | None = None,
    tensor_split: Shares | None = None,
    max_vram: Budgets | None = None,
    max_memory: MaxMemory | None = None,
    rig: Rig | str | None = None,
    chunk: Counts | None = None,
    micro_batches: Counts | None = None,
    bf16_partials: bool = False,
    inductor: bool = False,
    passes: str | Sequence[Pass] | None = None,
    dynamic_shapes: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback] = (),
) -> CompiledModule:
    """Compiles a module so that it runs over several devices; a layer split changes no bit of what it computes.

    Weights in memory that are replaced in the module, or written to (``copy_``, an optimizer), are read anew by the
    next call. What is written through ``.data`` leaves no trace in PyTorch: ``unload`` has the next call read all
    weights again. With ``weights`` the files count, as they are when they are read, and not what is written to the
    module.

    Args:
        module: any module that torch.export can trace; it is compiled as it is in eval mode, and its weights may be on
            meta.
        args, kwargs: an example call; the compiled module takes calls of these shapes and dtypes.
        weights: files that have the module's weights, in its own names or as published, safetensors or GGUF: a path, a
            list of parts, or the JSON file that lists them. GGUF's quantized types stay as they are.
        quant: a type in which the weights of these files are packed first: ``"q8_0"``, ``"f8"``. What was packed is
            kept for the next start. The page on weights lists the types.
        backend: the devices, main device first: ``"cuda0&cuda1"``, ``"sim0&sim1"``, a list, or a dict. Left out, where
            there are several: those on which a call is predicted to take least.
        params_backend: where parameters rest while nobody reads them: left out, on the device that reads them; ``cpu``,
            in host memory, from which each is brought for the stage that reads it; ``disk``, for weights in files. With
            a budget as many stay on their devices as fit within it.
        device_map: diffusers' spelling in place of a backend: ``"balanced"``, or module path → device.
        split_mode: how it is spread; ``layer`` gives each device a contiguous range of blocks, ``row`` some rows of
            each large matrix of the blocks, which may change the last bits of the result. In four modes all devices,
            of one kind, compute each operation together, which may change last bits too: ``tensor`` has each hold some
            of the weights, ``sequence`` all weights and compute some of the tokens, ``batch`` some of the pictures, and
            ``spatial`` a part of each picture. ``batch+sequence`` and ``batch+tensor`` have groups of devices compute
            some of the pictures each.
        tensor_split: shares of the devices (``"3,1"``) in place of their free memory.
        max_vram, max_memory: budgets a device, in stable-diffusion.cpp's spelling or diffusers'.
        rig: the devices to compile for, where that is not this machine: ``"cuda0=24GiB,cuda1=16GiB"``.
        chunk: in how many chunks wide parts (of feed-forward layers, or attention with all its scores) are computed, so
            that only one of them is there at a time; it may change the last bits of the result. ``"off"`` if left out.
        micro_batches: in how many parts the pictures of a call go through a layer split, one behind another, so that
            its devices work at the same time; it may change the last bits of the result. What cannot be proven to be
            the same in parts runs whole, with a warning. ``"off"`` if left out.
        bf16_partials: whether devices of a tensor split send one another their partial sums of float32 values in
            bfloat16, which takes half the bytes and changes bits. Refused where there are none.
        inductor: whether blocks that do the same are compiled by PyTorch's Inductor, once for all of them, which takes
            tens of seconds and may change the last bits of the result. It takes no budget, for what compiled blocks
            need is not known in advance.
        passes: other passes than the usual ones, as text or objects.
        dynamic_shapes: as torch.export takes it, by argument name.
        callbacks: called after each pass with the pass, the program and what changed.

    Raises:
        TraceError: the module cannot be traced, and cannot run by its parts either; or nothing of it can be traced, and
            it cannot run because something has no data.
        WeightError: files are missing or damaged, or are not for this module.
        UsageError: arguments contradict each other, are no call of the module, or a device map leaves a weight out.
        SpecError: a spec is wrong; the message points at the place.
        DoesNotFitError: a device cannot hold its part.

    >>> import torch, dovetail
    >>> layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    >>> x = torch.ones(1, 8)
    >>> compiled = dovetail.compile(layers, (x,), backend="sim0&sim1")
    >>> torch.equal(compiled(x), layers(x))
    True
    """
    _check_call(module, args, kwargs or {})
    _tell_of_training(module)
    spec = one_backend(backend, device_map)
    homes = device_map if isinstance(device_map, Mapping) else None
    request = Request.parse(
        backend=_devices_in(homes) if homes is not None else spec,
        params_backend=params_backend,
        split_mode=split_mode,
        tensor_split=tensor_split,
        max_vram=max_vram,
        max_memory=max_memory,
        rig=rig,
        chunk=chunk,
        micro_batches=micro_batches,
        bf16_partials=bf16_partials,
        inductor=inductor,
    )
    request.switch_on()
    if inductor and passes is not None:
        raise UsageError(BOTH)
    index = None if weights is None else index_for(Wanted.of_module(module), weights)
    if quant is not None:
        index = _packed(module, index, quant)
    places = None if homes is None else named_devices(homes, request.rig)
    if homes is not None:
        _refuse_mode(request)
    name = type(module).__name__
    offered = request.rig_for()
    if places is not None:
        offered = offered.only(dict.fromkeys(places.values()))
    residency = _residency_for(request, name, offered.devices, index is not None)
    shares, mode = request.shares_for(name, "", offered.devices), request.mode_for()
    keep = max_vram is not None or max_memory is not None  # what was granted is used

    def finish(
        traced: Program,
        mode: str,
        assignment: Assignment | None = None,
        shares: tuple[float, ...] = shares,
        chunks: int = request.chunks_for(),
        in_parts: int = request.micro_batches_for(),
    ) -> Program:
        steps = (
            parse_passes(passes)
            if isinstance(passes, str)
            else passes
            or default_passes(
                shares,
                split_mode=mode,
                keep=keep,
                chunk=chunks,
                inductor=inductor,
                micro_batches=in_parts,
                terms=request.terms_for() if shares_out_weights(mode) else "",
            )
        )
        steps = steps if assignment is None else with_assignment(steps, assignment)
        return PassManager(steps, callbacks).run(traced.copy())

    def finish_part(decided: Decisions, traced: Program, module: nn.Module) -> CompiledModule:
        decided.sites.place(module, traced)
        program = finish(traced, "layer" if decided.sites.settled else mode, in_parts=1)
        decided.assigned.note(module, program)
        return CompiledModule(program, request.rig, decided.component.view.of_program(module, program), traced)

    refuse_sparse(module)
    try:
        traced = trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=offered.devices[0].traced_as)
    except TraceError as error:
        if request.micro_batches_for() > 1:
            tell_by_parts(name)
        return compile_by_parts(
            module, args, kwargs or {}, why=error, rig=request.rig, finish=finish_part, index=index, places=places,
            plan=ComponentPlan(offered, shares=shares, mode=mode, residency=residency),
        )  # fmt: skip
    if index is not None:
        set_types(traced, types_of(traced, index))

    def lower(request: Request) -> Program:
        traced.rig = offered if places is not None else request.rig_for()
        devices = traced.rig.devices
        traced.keep(_residency_for(request, name, devices, index is not None), request.amounts_for())
        assignment = None if places is None else split_by_map(traced.weights, places, traced.residency)
        shares, chunks = request.shares_for(name, "", devices), request.chunks_for()
        return finish(traced, request.mode_for(), assignment, shares, chunks, request.micro_batches_for())

    program = placed_module(name, traced, request, lower, homes is None and is_open(request))
    of_module, of_files = ProgramWeights.of_module, ProgramWeights.of_files
    source = of_module(module, program) if index is None else of_files(index, program, module=module)
    return CompiledModule(program, request.rig, source, traced)


def _packed(module: nn.Module, index: WeightIndex | None, quant: str) -> WeightIndex:
    """The weights in files, packed; raises UsageError where none are in files."""
    if index is None:
        raise UsageError(f"quant={quant!r} packs weights in files: name these too (weights=…)")
    return Packing(type(module).__name__, parse_type(quant)).packed(module, index)


def _check_call(module: nn.Module, args: Sequence[object] | torch.Tensor, kwargs: Mapping[str, object]) -> None:
    """Raises UsageError where an example is no call of a module, by the names of its arguments alone."""
    if isinstance(args, torch.Tensor) or module._forward_pre_hooks:  # tracing says so; a hook gives other arguments
        return
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except ValueError:  # it has none
        return
    except TypeError as error:
        raise UsageError(
            f"{type(module).__name__} cannot be called with this example: {error}: give the arguments of a call, such "
            "as dovetail.compile(module, (x,))"
        ) from None


def _tell_of_training(module: nn.Module) -> None:
    """Says where a module would compute otherwise by itself, for it is in training mode."""
    differ = [one for one in module.modules() if one.training and _is_other_in_training(one)]
    if differ:
        logger.warning(
            "%s is in training mode and is compiled as in eval mode, in which its %s computes something else: call "
            "module.eval() to have both alike",
            type(module).__name__,
            type(differ[0]).__name__,
        )


def _is_other_in_training(module: nn.Module) -> bool:
    """Whether a module of PyTorch's own computes something else in training."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.track_running_stats
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.RReLU) or (isinstance(module, nn.MultiheadAttention) and module.dropout > 0)


def _residency_for(request: Request, name: str, devices: tuple[Device, ...], has_files: bool) -> Residency:
    residency = request.residency_for("", "", devices)
    if residency is Residency.DISK and not has_files:
        raise UsageError(
            f"the weights of {name} are in memory and cannot be kept on disk: name their files (weights=…), load "
            "the pipeline with load_pipeline, or keep them in host memory (params_backend=cpu)"
        )
    return residency


def _refuse_mode(request: Request) -> None:
    """Raises UsageError for a way to split that a device map leaves no room for."""
    mode = request.mode_for()
    if request.chooses_mode():
        logger.warning("a device map places each weight whole: split mode auto is not used beside one")
    if mode != "layer":
        how = "slices them" if mode == "row" else "has all devices compute each operation together"
        raise UsageError(f"a device map places each weight whole, split mode {mode} {how}: give one of the two")


def _devices_in(device_map: Mapping[str, DeviceLike]) -> list[str]:
    """The devices that a map names, each once, in its order."""
    return list(dict.fromkeys(canonical_name(device) for device in device_map.values()))
