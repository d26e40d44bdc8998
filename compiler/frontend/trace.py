"""From an nn.Module and example inputs to a Program, through torch.export.

The module is traced on fake CPU tensors: its parameters, wherever they are, give way to fakes for the time of the
trace, so that a model on meta, on an accelerator or larger than memory traces alike and nothing is computed or copied.
Buffers stay real, for models read values from them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ..checkpoints.entries import clipped
from ..devices.device import HOST
from ..errors import TraceError, UsageError
from ..ir.asked import TRACED
from ..ir.fake_strides import eager_strides
from ..ir.program import Program, tensors_of
from ..ir.signature import ConstantLeaf, Signature, TensorLeaf, leaf_path, name_arguments, parameters_of
from ..ir.weight import Weight
from .annotate import annotate, drop_frozen_devices
from .asked import FAKES, TRACES, answered
from .autocast import autocast_set, autocast_state, casts_of
from .call_modes import modes_answered
from .export_patches import backends_left, buffer_hooks_let_go, lazily_exported, modes_let_go, quietly_exported
from .fakes import cloned_buffers, copy_on_host, fake, faked, frozen
from .first_trace import import_for_traces
from .guards import read_guards
from .identity import refuse_identity
from .inline import inline_regions
from .layout_ops import AsInEager, part_views
from .model_view import ModelView
from .questions import Questions
from .random_numbers import refuse_objects
from .refusals import (
    no_raw_errors,
    refuse_fake_constants,
    refuse_foreign_weights,
    refuse_outside_writes,
    refuse_overlapping_writes,
    refuse_unknown_operations,
    refuse_unknown_sizes,
    refuse_unusual_inputs,
)
from .replaced_functions import applied_once, are_any
from .rollback import rolled_back
from .side_effects import noted_changes, refuse_side_effects
from .trace_lock import alone

logger = logging.getLogger(__name__)

_LARGEST = 2**62


def trace(
    module: nn.Module,
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    kind: str = HOST,
    beside: Sequence[Any] = (),
) -> Program:
    """Traces a module in eval mode to a Program of ATen ops.

    Args:
        module: any module; its weights may be real, on any device, or on meta. It is left as it was.
        args, kwargs: an example call. Tensors may be on any device, meta included; only shapes and dtypes matter.
        dynamic_shapes: as torch.export takes it, keyed by the names of the arguments.
        beside: containers, and names of classes and globals (``outside.Named``), that the module's code may write to.
        kind: of the main device, which the module sees when it asks where its tensors lie; none needs to be here.

    Raises:
        TraceError: the module cannot be exported, or writes into its inputs or weights.
        UsageError: the arguments are no sequence.
    """
    if isinstance(args, torch.Tensor):
        raise UsageError("the arguments of the example call are one tensor: give them in a tuple, such as (x,)")
    refuse_foreign_weights(module)
    import_for_traces()
    asked: dict[str, set[str]] = {FAKES: set(), TRACES: set()}

    def traced(told: Collection[str]) -> Program:
        # what the module does to context variables stays in a context of its own
        with no_raw_errors(type(module).__name__):
            return copy_context().run(
                _traced, module, args, kwargs or {}, dynamic_shapes, kind, asked, told, beside, are_any()
            )

    told: tuple[str, ...] = ()
    while True:
        try:
            program = traced(told)
            break
        except TraceError:
            more = [question for question in asked if asked[question] and question not in told]
            if not more:
                raise
            told = *told, more[0]
    if TRACES in told:
        logger.warning(
            "%s asks whether it is being traced (%s), and can only be traced if it is told so: where it computes "
            "something else then, the compiled program does too, and may differ from eager in the last bits",
            type(module).__name__, ", ".join(sorted(asked[TRACES])[:3]),
        )  # fmt: skip
    return program


def _traced(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None,
    kind: str,
    asked: Mapping[str, set[str]],
    told: Collection[str],
    beside: Sequence[Any],
    is_replaced: bool = False,
) -> Program:
    positional, defaults = parameters_of(module.forward)
    given = name_arguments(positional, {}, args, kwargs)
    full = name_arguments(positional, defaults, args, kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic_shapes else None)
    example = {
        name: pytree.tree_map(lambda leaf: fake(leaf, mode), value) for name, value in full.items() if name in given
    }
    questions = Questions()
    view = ModelView(type(module).__name__, kind, questions)
    autocast = autocast_state(kind)

    @contextlib.contextmanager
    def prepared() -> Iterator[None]:
        on_host = functools.partial(copy_on_host, mode=mode, view=view)
        with alone(), eager_strides(), rolled_back(module, on_host, beside), frozen(module), faked(module, mode):
            modes = modes_answered(module, questions.asked)
            with autocast_set(HOST, autocast), answered(kind, asked, told), modes:  # the fakes lie on the host
                yield

    once = applied_once(module) if is_replaced else contextlib.nullcontext()
    with prepared(), noted_changes(module, beside) as found, questions.listening(module), once:
        exported = _export(module, example, dynamic_shapes, view)
    if view.is_replaced and not is_replaced:  # by the module itself
        return _traced(module, args, kwargs, dynamic_shapes, kind, asked, told, beside, is_replaced=True)
    if found:
        with prepared(), cloned_buffers(module, mode):  # without what the trace has left
            refuse_side_effects(module, found, lambda: _call(module, example, mode, kind), beside)

    def call_anew(given: Mapping[str, Any]) -> None:
        with prepared(), cloned_buffers(module, mode):
            _call(module, given, mode, kind)

    refuse_identity(module, full, example, call_anew)
    refuse_fake_constants(module, exported)
    # what computes under autocast is computed once more on fakes, and may fail
    with alone(), eager_strides(), quietly_exported():
        inline_regions(exported.graph_module, kind, casts_of(kind, autocast))
    drop_frozen_devices(exported.graph)
    refuse_unknown_operations(exported, type(module).__name__)
    refuse_objects(exported, type(module).__name__)
    ranges = {str(s): (_bound(r.lower), _bound(r.upper)) for s, r in exported.range_constraints.items()}
    guards = read_guards(exported, type(module).__name__, ranges)
    part_views(exported.graph)
    refuse_overlapping_writes(exported, type(module).__name__)
    symbols = annotate(exported.graph, type(module).__name__)
    ranges = {symbol: ranges[symbol] for symbol in symbols if symbol in ranges}  # others are of values
    program = Program(
        name=type(module).__name__,
        graph=exported.graph,
        signature=replace(
            _signature(exported, positional, defaults, full),
            ranges=ranges,
            guards=guards,
            asked=frozenset(questions.asked | ({TRACED} if told else set())),
        ),
        weights=_bind_weights(module, exported),
        constants={name: value for name, value in exported.constants.items() if isinstance(value, torch.Tensor)},
        symbols=symbols,
        autocast=autocast,
    )
    refuse_unknown_sizes(program)
    refuse_unusual_inputs(program, full)
    refuse_outside_writes(program)
    view.check()
    return program


def _export(
    module: nn.Module, given: dict[str, Any], dynamic_shapes: Mapping[str, Any] | None, view: ModelView
) -> ExportedProgram:
    if dynamic_shapes is not None:
        _name_all(module, given)
    args, kwargs = _as_passed(module, given)
    shapes = None if dynamic_shapes is None else _arrange_shapes(module, given, dynamic_shapes)
    try:
        with (
            torch.no_grad(), AsInEager(), view, lazily_exported(), quietly_exported(), modes_let_go(),
            buffer_hooks_let_go(), backends_left(),
        ):  # fmt: skip
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        violated = _violated(error)
        if violated:
            problem = f"{type(module).__name__} cannot be traced with these dynamic_shapes: {violated}"
            raise TraceError(f"{problem}\nchange dynamic_shapes so that this holds, or leave it out") from error
        raise


def _as_passed(module: nn.Module, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position, where they must be, and by name."""
    surplus = [index for index, name in enumerate(given) if name.startswith("*")]
    only = [name for name, one in _parameters(module).items() if one.kind is one.POSITIONAL_ONLY and name in given]
    names = list(given)[: surplus[-1] + 1 if surplus else len(only)]
    return tuple(given[name] for name in names), {name: value for name, value in given.items() if name not in names}


def _call(module: nn.Module, given: Mapping[str, Any], mode: FakeTensorMode, kind: str) -> None:
    args, kwargs = _as_passed(module, given)
    with torch.no_grad(), mode, ModelView(type(module).__name__, kind), quietly_exported():
        module(*args, **kwargs)


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


def _violated(error: Exception) -> str:
    """What torch.export says of dimensions that cannot be as was asked, and proposes; empty for other errors."""
    text = str(error).strip()
    about = "Constraints violated" in text or "Suggested fixes:" in text
    return (
        clipped(text.partition("\n\n")[0].replace(' For more information, run with TORCH_LOGS="+dynamic".', "")) * about
    )


def _name_all(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Lets the forward of a module name the arguments of a call, until the module is rolled back.

    torch.export mistakes what a forward takes as ``**kwargs`` where shapes are dynamic.
    """
    own, parameters = module.forward, inspect.signature(module.forward).parameters
    if all(name in parameters for name in given) or any(name.startswith("*") for name in given):
        return

    def forward(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in given]
    forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    module.__dict__["forward"] = forward


def _arrange_shapes(module: nn.Module, given: dict[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Puts the shapes of surplus arguments where torch.export looks for them."""
    parameters = _parameters(module)
    arranged: dict[str, Any] = {name: shapes.get(name) for name in given if name in parameters}
    surplus = [name for name in given if name not in parameters]
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and any(name.startswith("*") for name in surplus):
            arranged[parameter.name] = tuple(shapes.get(name) for name in surplus if name.startswith("*"))
        if parameter.kind is parameter.VAR_KEYWORD and any(not name.startswith("*") for name in surplus):
            arranged[parameter.name] = {name: shapes.get(name) for name in surplus if not name.startswith("*")}
    return arranged


def _signature(
    exported: ExportedProgram, positional: tuple[str, ...], defaults: dict[str, Any], full: dict[str, Any]
) -> Signature:
    """The calling convention, with the sizes that the trace found for dynamic dimensions."""
    user = [spec for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    traced = {spec.arg.name: node for spec, node in _placeholders(exported) if spec.kind is InputKind.USER_INPUT}
    tensors = iter([traced[spec.arg.name] for spec in user if not isinstance(spec.arg, ConstantArgument)])
    leaves: list[TensorLeaf | ConstantLeaf] = []
    for name, value in full.items():
        found = pytree.tree_leaves(value)
        for index, leaf in enumerate(found):
            path = leaf_path(name, index, len(found))
            kind = tensors_of(next(tensors))[0] if isinstance(leaf, torch.Tensor) else None
            leaves.append(TensorLeaf(path, kind.shape, kind.dtype, kind.stride) if kind else ConstantLeaf(path, leaf))
    constants = [node for spec, node in _placeholders(exported) if isinstance(spec.arg, ConstantArgument)]
    for node in constants:
        node.graph.erase_node(node)
    return Signature(
        positional=positional,
        defaults=defaults,
        names=tuple(full),
        specs=tuple(pytree.tree_structure(value) for value in full.values()),
        leaves=tuple(leaves),
        out_spec=exported.call_spec.out_spec,
    )


def _bound(bound: Any) -> int:
    """A bound of a symbol; one that has none may be as large, or as small, as an integer can be."""
    return int(max(-_LARGEST, min(bound, _LARGEST)))


def _placeholders(exported: ExportedProgram) -> list[tuple[InputSpec, Node]]:
    nodes = {node.name: node for node in exported.graph.find_nodes(op="placeholder")}
    specs = exported.graph_signature.input_specs
    return [(spec, nodes[spec.arg.name]) for spec in specs if spec.arg.name in nodes]


def _bind_weights(module: nn.Module, exported: ExportedProgram) -> dict[str, Weight]:
    """Names the weight behind each placeholder, and merges the placeholders of one that is tied."""
    first, aliases = _tied_names(module)
    kinds = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
    weights: dict[str, Weight] = {}
    nodes: dict[str, Node] = {}
    for spec, node in _placeholders(exported):
        if spec.kind not in kinds:
            continue
        name = first.get(str(spec.target), str(spec.target))
        if name in nodes:
            node.replace_all_uses_with(nodes[name])
            node.graph.erase_node(node)
            continue
        kind = tensors_of(node)[0]
        persistent = spec.kind is InputKind.PARAMETER or bool(spec.persistent)
        frozen = spec.kind is InputKind.PARAMETER and not module.get_parameter(name).requires_grad
        others = aliases.get(name, ())
        weights[name] = Weight(name, kinds[spec.kind], kind.sizes, kind.dtype, others, persistent, frozen)
        node.meta["weight"] = name
        nodes[name] = node
    return weights


def _tied_names(module: nn.Module) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """For each weight name the first name of the same tensor, and for each first name the others."""
    seen: dict[int, str] = {}
    first: dict[str, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            first[name] = seen.setdefault(id(tensor), name)
            if first[name] != name:
                aliases[first[name]] = (*aliases.get(first[name], ()), name)
    return first, aliases
