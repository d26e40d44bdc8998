"""Compiles a diffusers pipeline that is in memory, and undoes that."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..addons.addons import of_another
from ..compiler.devices.rig import Rig
from ..compiler.spec.budget import MaxMemory
from ..conventions.checked import PIPELINE, checked
from ..conventions.request import one_backend
from ..conventions.spellings import Budgets, Counts, Modes, Places, Settings, Shares, Tiling
from ..lora.requested import Loras, read_loras
from ..passes.infra.base import Pass
from ..passes.infra.manager import Callback
from ..runtime.store.store import Origins
from .loras import apply_loras
from .pipeline import CompiledPipeline
from .sharing import leader_of
from .subclass import become_compiled, handle_of, set_apart, when_made

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

logger = logging.getLogger(__name__)

PipelineT = TypeVar("PipelineT", bound="DiffusionPipeline")

_REQUEST = (
    "params_backend", "split_mode", "tensor_split", "max_vram", "max_memory", "rig", "chunk", "micro_batches",
    "bf16_partials", "inductor", "auto_fit", "multi_gpu",
)  # fmt: skip


@checked(pipe=PIPELINE)
def compile_pipeline(
    pipe: PipelineT,
    backend: Places | None = None,
    *,
    split_mode: Modes | None = None,
    tensor_split: Shares | None = None,
    max_vram: Budgets | None = None,
    max_memory: MaxMemory | None = None,
    params_backend: Places | None = None,
    device_map: Places | None = None,
    lora: Loras = None,
    lora_apply_mode: str = "auto",
    vae_tiling: Tiling | None = None,
    attention: str | None = None,
    cache: str | None = None,
    chunk: Counts | None = None,
    micro_batches: Counts | None = None,
    bf16_partials: bool = False,
    inductor: bool = False,
    auto_fit: bool = True,
    multi_gpu: bool = True,
    rig: Rig | str | None = None,
    dynamic_shapes: Mapping[str, Mapping[str, object]] | None = None,
    passes: str | Sequence[Pass] | None = None,
    callbacks: Sequence[Callback] = (),
    plans: str | os.PathLike[str] | None = None,
) -> PipelineT:
    """Compiles every component of a diffusers pipeline over the devices that were asked for, and changes no bit.

    The pipeline stays the object it is and is called as before. A component is compiled at its first call of each kind
    (shapes, dtypes, arguments that are no tensors), and its weights go to their devices then, once.

    Args:
        pipe: any diffusers pipeline; inference only.
        backend: devices by role or component: ``"diffusion=cuda0&cuda1,te=cuda1,vae=cuda0"``, or a dict.
        params_backend: where weights rest while nobody reads them: left out, where they run, as far as they fit there
            together, else elsewhere with a warning; ``cpu``, in host memory; ``disk``, in their files
            (``load_pipeline``). By role too: ``"te=cpu,diffusion=disk"``. Such weights are brought to their devices
            when a component is called, and leave with its phase: the text encoders are gone before sampling starts.
        split_mode, tensor_split, max_vram, max_memory, rig, passes, callbacks: as for compile, and per role too.
        device_map: diffusers' spelling of ``backend``: ``"balanced"``, or a dict of component → device.
        lora: LoRAs to load, ``"NAME:SCALE"`` or a list: files, folders with one, or repositories on the Hub.
        lora_apply_mode: ``immediately`` merges them into the weights, ``at_runtime`` computes them beside; ``auto``
            merges where weights are dense, stay where they run and are whole there. What ``pipe.load_lora_weights``
            loads later is computed beside the weights until ``pipe.fuse_lora`` merges it.
        vae_tiling: whether VAEs encode and decode in tiles, which changes the picture slightly: ``"auto"``, where the
            whole does not fit, or on the host alone and takes much longer there; ``"on"``, in the tiles that they have;
            ``"off"``; or the size of a tile in pixels, ``512``, ``"512x384"``, with frames ``"512x384x16"``.
        attention: the backend by which diffusion models compute attention, one of diffusers': ``"flex"``, ``"sage"``.
            One whose package is not here is refused. Another kernel than the one by default rounds otherwise.
        cache: a cache of diffusers, by which steps reuse results of earlier ones: ``"first_block:0.12"``, a threshold,
            or ``"taylorseer:5"``, an interval of steps. It may change the picture.
        chunk: in how many chunks wide parts of components are computed, so that only one of them is there at a time; it
            may change the last bits of the picture. ``"off"`` if left out; ``4``, ``"diffusion=4,te=2"``.
        micro_batches: in how many parts the pictures of a call, and the halves of guidance, go through a layer split,
            so that its devices work at the same time; as for compile, and per role too.
        bf16_partials: whether devices send partial sums of float32 values in bfloat16, as for compile.
        inductor: whether equal blocks of what runs in each step are compiled by PyTorch's Inductor, as for compile.
        auto_fit: whether devices are searched for components without devices, and weights of which nothing was said may
            rest elsewhere where they do not fit; without, they run on the main device, and it is refused.
        multi_gpu: whether several GPUs may be used; without, one: the first, or the one that is named.
        dynamic_shapes: for components that shall take other sizes without compiling again, component → as torch.export
            takes it.
        plans: a folder that ``dovetail compile -o`` wrote: calls that a plan is of are placed by it, without tracing
            them. Devices that are not given are those of the plans. What does not match is said.

    Returns:
        The pipeline, which has at ``pipe.dovetail`` its components, programs and plan, and what undoes everything: see
        CompiledPipeline.

    Raises:
        SpecError: a spec is wrong; the message points at the place.
        PlanFileError: a file in the folder of plans is none.
        UsageError: the pipeline is compiled or offloaded already.
    """
    return compile_opened(
        pipe,
        None,
        backend=backend,
        params_backend=params_backend,
        split_mode=split_mode,
        tensor_split=tensor_split,
        max_vram=max_vram,
        max_memory=max_memory,
        device_map=device_map,
        rig=rig,
        chunk=chunk,
        micro_batches=micro_batches,
        bf16_partials=bf16_partials,
        inductor=inductor,
        auto_fit=auto_fit,
        multi_gpu=multi_gpu,
        dynamic_shapes=dynamic_shapes,
        passes=passes,
        callbacks=callbacks,
        lora=lora,
        lora_apply_mode=lora_apply_mode,
        vae_tiling=vae_tiling,
        attention=attention,
        cache=cache,
        plans=plans,
    )


def compile_opened(
    pipe: PipelineT,
    origins: Mapping[str, Origins] | None,
    backend: Places | None = None,
    device_map: Places | None = None,
    **options: Any,
) -> PipelineT:
    """Compiles a pipeline whose weights come from somewhere, by component; the rest is as for compile_pipeline."""
    if follow(pipe):
        _join(pipe, {**options, "backend": one_backend(backend, device_map)})
        return pipe
    request = {name: options.pop(name) for name in _REQUEST if name in options}
    settings = cast("Settings", {"backend": one_backend(backend, device_map), **request})
    CompiledPipeline(pipe, settings, origins=origins, **options)
    return pipe


def _join(pipe: Any, options: Mapping[str, Any]) -> None:
    """What is asked of a pipeline whose components are placed already, all of them: LoRAs, and no devices."""
    if any(options.get(name) is not None for name in ("backend", "params_backend", "max_vram", "max_memory", "rig")):
        logger.warning(
            "the components of this %s are those of another compiled pipeline, and stay where that placed them: what "
            "is asked here of devices and budgets is not used",
            type(pipe).__name__,
        )
    for name in (name for name in ("attention", "cache") if options.get(name) is not None):
        raise of_another(name, type(pipe).__name__)
    apply_loras(pipe.dovetail, read_loras(options.get("lora")), options.get("lora_apply_mode", "auto"))


def follow(pipe: Any) -> bool:
    """Gives a pipeline over the components of a compiled one its own ``.dovetail``; says whether it has that now."""
    handle = handle_of(pipe)
    leader = leader_of(pipe)
    if handle is None and leader is not None:
        become_compiled(pipe, leader.faced(pipe))
    elif handle is None:
        with contextlib.suppress(AttributeError, ValueError):  # it is being made
            set_apart(pipe)
    return leader is not None and (handle is None or handle.follows)


when_made(follow)


def undo(pipe: DiffusionPipeline) -> None:
    """Makes a compiled pipeline what it was before; one that is not compiled stays as it is."""
    handle = handle_of(pipe)
    if handle is not None:
        handle.undo()
