"""The options that several commands share."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TextIO, get_type_hints

import typer

from ...addons.addons import check_addons
from ...compiler.devices.rig import Rig as Devices
from ...compiler.errors import UsageError
from ...compiler.printable import printable
from ...compiler.spec import with_cpu_flags, with_offload_flag
from ...conventions.request import Request
from ...conventions.spellings import Settings
from ...planning.tiling import parse_tiling
from .readers import none_of, with_readers
from .typed import VERBOSE, DevicesAskedError

PLACEMENT = "Placement"
_DTYPES = {
    "fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16",
}  # fmt: skip


def _note_debug(context: typer.Context, asked: bool) -> bool:
    if asked:
        context.meta["debug"] = True
        logging.getLogger(__name__.partition(".")[0]).setLevel(logging.DEBUG)
    return asked


Debug = Annotated[
    bool, typer.Option("--debug", help="Log everything, and show where an error came from.", callback=_note_debug)
]


def _note_verbose(context: typer.Context, asked: bool) -> bool:
    if asked:
        context.meta[VERBOSE] = True
        logger = logging.getLogger(__name__.partition(".")[0])
        logger.setLevel(min(logger.level, logging.INFO))
    return asked


Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Log more; with --help: list other spellings of options too.", callback=_note_verbose
    ),
]


def _list_devices(asked: bool) -> bool:
    if asked:
        raise DevicesAskedError
    return asked


ListDevices = Annotated[
    bool,
    typer.Option("--list-devices", is_eager=True, hidden=True, help="List the devices.", callback=_list_devices),
]


def _full_name(dtype: str | None) -> str | None:
    """The name of a dtype in full; raises UsageError for one that nothing computes in."""
    if dtype is None:
        return None
    named = dtype.lower()
    found = _DTYPES.get(named, named)
    if found not in _DTYPES.values():
        raise none_of("--dtype", dtype, list(dict.fromkeys(_DTYPES.values())), "no type to compute in")
    return found


Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="DTYPE", help="The type to compute in: float32, bfloat16, float16.", callback=_full_name
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _not_empty(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    source = getattr(context.get_parameter_source(parameter.name or ""), "name", "DEFAULT")
    if source != "DEFAULT" and not value.strip():
        raise UsageError("--rig names no device: name some, as in cuda0=24GiB, or leave it out for this machine's")
    return value


Rig = Annotated[
    str,
    typer.Option(
        metavar="SIZES",
        help="Plan for these devices: cuda0=24GiB,cuda1=16GiB.",
        rich_help_panel=PLACEMENT,
        callback=_not_empty,
    ),
]


def _placement(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=PLACEMENT)


def _spelling(name: str, *, help: str) -> Any:
    return typer.Option(name, hidden=True, help=help)


@dataclass(frozen=True)
class Where:
    """Where things shall run, as it was typed."""

    backend: Annotated[
        str, _placement("--backend", metavar="SPEC", help="What runs where: te=cpu,diffusion=cuda0&cuda1.")
    ] = ""
    params_backend: Annotated[
        str,
        _placement("--params-backend", metavar="SPEC", help="Where weights are kept: cpu, disk, te=cpu,vae=disk."),
    ] = ""
    split_mode: Annotated[
        str,
        _placement(
            "--split-mode",
            metavar="MODE",
            help="layer, row, tensor, sequence, batch, spatial, batch+sequence, batch+tensor, or auto: the quickest. "
            "For all or by role.",
        ),
    ] = ""
    tensor_split: Annotated[
        str, _placement("--tensor-split", "-ts", metavar="SHARES", help="Shares of the devices: 3,1.")
    ] = ""
    max_vram: Annotated[
        str, _placement("--max-vram", metavar="BUDGET", help="Memory to use: 6, cuda0=6,cuda1=80%, -1.")
    ] = ""
    vae_tiling: Annotated[
        str, _placement("--vae-tiling", metavar="TILES", help="Decode in tiles: auto, on, off, 512, 512x384x16.")
    ] = "auto"
    chunk: Annotated[
        str,
        _placement(
            "--chunk", metavar="CHUNKS", help="Compute wide parts in chunks, which may change last bits: off, 4."
        ),
    ] = ""
    micro_batches: Annotated[
        str,
        _placement(
            "--micro-batches", metavar="PARTS", help="Pictures of a call through a layer split in turn: off, 2."
        ),
    ] = ""
    bf16_partials: Annotated[
        bool,
        _placement(
            "--bf16-partials", metavar="", help="Send partial sums of float32 values in bfloat16; changes bits."
        ),
    ] = False
    inductor: Annotated[
        bool,
        _placement(
            "--inductor", metavar="", help="Compile equal blocks of the diffusion model once; may change last bits."
        ),
    ] = False
    attention: Annotated[
        str | None,
        _placement(
            "--attention", metavar="NAME", help="Compute attention by diffusers' backend: flex, sage; may change bits."
        ),
    ] = None
    cache: Annotated[
        str | None,
        _placement(
            "--cache",
            metavar="CACHE",
            help="Reuse results of earlier steps, which may change pictures: first_block:0.12, taylorseer:5.",
        ),
    ] = None
    auto_fit: Annotated[
        bool,
        _placement(
            "--auto-fit/--no-auto-fit", metavar="", help="Search what --backend leaves open, or use the main device."
        ),
    ] = True
    no_multi_gpu: Annotated[
        bool, _placement("--no-multi-gpu", metavar="", help="Use one GPU: the first, or the one that --backend names.")
    ] = False
    rig: Rig = ""
    passes: Annotated[str, _placement("--passes", metavar="TEXT", help="Other passes: see `dovetail passes`.")] = ""
    clip_on_cpu: Annotated[bool, _spelling("--clip-on-cpu", help="The same as --backend te=cpu.")] = False
    vae_on_cpu: Annotated[bool, _spelling("--vae-on-cpu", help="The same as --backend vae=cpu.")] = False
    control_net_cpu: Annotated[bool, _spelling("--control-net-cpu", help="The same as --backend controlnet=cpu.")] = (
        False
    )
    offload_to_cpu: Annotated[bool, _spelling("--offload-to-cpu", help="The same as --params-backend cpu.")] = False
    stream_layers: Annotated[bool, _spelling("--stream-layers", help="The same as --params-backend diffusion=cpu.")] = (
        False
    )
    mmap: Annotated[bool, _spelling("--mmap", help="Accepted, has no effect: files are always mapped.")] = False

    @property
    def arguments(self) -> Settings:
        """The same request as keyword arguments of `Request.parse` and of `dovetail.compile_pipeline`."""
        backend = with_cpu_flags(
            self.backend, clip=self.clip_on_cpu, vae=self.vae_on_cpu, control_net=self.control_net_cpu
        )
        return {
            "backend": backend or None,
            "params_backend": with_offload_flag(
                self.params_backend, offload_to_cpu=self.offload_to_cpu, stream_layers=self.stream_layers
            )
            or None,
            "split_mode": self.split_mode or None,
            "tensor_split": self.tensor_split or None,
            "max_vram": self.max_vram or None,
            "rig": self.rig or None,
            "chunk": self.chunk or None,
            "micro_batches": self.micro_batches or None,
            "bf16_partials": self.bf16_partials,
            "inductor": self.inductor,
            "auto_fit": self.auto_fit,
            "multi_gpu": not self.no_multi_gpu,
        }

    @property
    def typed(self) -> list[str]:
        """The options that were typed."""
        found = [one.name.replace("_", "-") for one in fields(self) if getattr(self, one.name) != one.default]
        return ["--no-auto-fit" if name == "auto-fit" else f"--{name}" for name in found]

    @property
    def rig_words(self) -> list[str]:
        """The option that names the devices, where they are here: on another machine they are as that has them."""
        return ["--rig", self.rig] if self.rig and Devices.parse(self.rig).present else []

    def check(self, components: Mapping[str, str], *, has_plans: bool = False) -> Request:
        """The request for a pipeline of these components (attribute name → role), once tiles are read too.

        With plans it is not whole yet: whether something is split by tensor is checked when they are read.
        Raises SpecError where it is written wrongly, UsageError where weights cannot rest.
        """
        parse_tiling(self.vae_tiling)
        check_addons(self.attention, self.cache)
        arguments = self.arguments
        arguments["bf16_partials"] = self.bf16_partials and not has_plans
        request = Request.parse(**arguments, components=components)
        for attribute, role in components.items():
            request.residency_for(attribute, role, request.devices_for(attribute, role))
        return request


def expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with each parameter that is a dataclass replaced by the fields of it.

    Typer reads a command's options from its parameters; so a group of options can be written once. Numbers and words
    are read by readers of our own. Options that every command has come last, and do their work while options are read.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    every = {"verbose": Verbose, "list_devices": ListDevices}
    own = [
        parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in groups
    ]
    flat = [with_readers(one) for one in (*own, *(one for kind in groups.values() for one in _parameters(kind)))]
    flat += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in every.items()
    ]

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        return function(**{name: value for name, value in given.items() if name not in every})

    del command.__wrapped__
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return command


def _parameters(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(kind)
    ]


class _Printable(logging.Formatter):
    """Messages without characters that a terminal obeys: names in them come from files."""

    def format(self, record: logging.LogRecord) -> str:
        """The message of a record, behind its level as commands write it themselves."""
        return f"{record.levelname.lower()}: {printable(super().format(record))}"


class _OnStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now: while a bar is shown on a terminal, that puts lines above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record."""
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(debug: bool, verbose: bool = False) -> None:
    """Sends what dovetail has to say to stderr: warnings, more after `--verbose`, or everything after `--debug`."""
    handler = _OnStderr()
    handler.setFormatter(_Printable())
    logger = logging.getLogger(__name__.partition(".")[0])
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING)
