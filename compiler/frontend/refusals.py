"""Refuses modules of which a program would do something else, with the line of the model and the way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import DovetailError, TraceError
from ..ir.aliasing import writes, written_by
from ..ir.asked import UNUSUAL, unusual
from ..ir.program import Program, origin_of, tensors_of, weight_name
from ..ir.sizes import symbols_of
from ..ir.targets import name_of
from .diagnostics import cannot_trace, line_of_error, line_of_stack
from .fakes import has_numbers

STANDS_FOR = "stands_for"
"""The attribute of a tensor without data that has the class of the weight in whose place it is."""

_IDEMPOTENT = frozenset(
    ("fill_", "zero_", "masked_fill_", "index_put_", "index_fill_", "tril_", "triu_", "fill_diagonal_", "threshold_")
    + ("masked_scatter_", "addmm_", "addbmm_", "baddbmm_", "_index_put_impl_", "detach_")
)
"""Writes that kernels carry out wherever their operands lie."""

_OWN_WEIGHTS = ("torch", __name__.partition(".")[0])


@contextlib.contextmanager
def no_raw_errors(name: str) -> Iterator[None]:
    """Makes a TraceError, with the name of the module and its line, of what anybody else raises while it is traced."""
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
        raise TraceError(cannot_trace(name, line_of_error(error), why)) from error


def foreign_library(tensor: torch.Tensor) -> str:
    """The library whose class of tensors this is, or stands for, where it is another than PyTorch; else empty."""
    library = getattr(tensor, STANDS_FOR, type(tensor)).__module__.partition(".")[0]
    return "" if library in _OWN_WEIGHTS else library


def refuse_foreign_weights(module: nn.Module) -> None:
    """Raises TraceError for a module that another library has quantized.

    Weights of a class of another library are not what they look like: it has quantized them in its own way.
    """
    for name, parameter in module.named_parameters():
        if library := foreign_library(parameter):
            raise TraceError(
                f"{type(module).__name__} was quantized by {library} ({name} is a {type(parameter).__name__}), in a "
                "form that cannot be compiled: load it without, and give a file of its quantized weights, as dovetail "
                "convert --type q8_0 makes it (weights=…)"
            )


def refuse_fake_constants(module: nn.Module, exported: ExportedProgram) -> None:
    """Raises TraceError for a constant that has no values."""
    for name, value in exported.constants.items():
        if isinstance(value, torch.Tensor) and not has_numbers(value):
            raise TraceError(
                f"{type(module).__name__} computed the constant {name} {tuple(value.shape)} from tensors that have no "
                "values while tracing: pass it as an input, or register it as a buffer when the module is made"
            )


def refuse_unknown_operations(exported: ExportedProgram, name: str) -> None:
    """Raises TraceError for an operation that no program may have, with the line that calls it."""
    for node in exported.graph.nodes:
        if node.op == "call_function" and not name_of(node.target):
            where = line_of_stack(node.meta.get("stack_trace") or "")
            namespace = getattr(node.target, "namespace", "")
            way_out = f"if you trust that library, call dovetail.compiler.ir.targets.trust({namespace!r}) first"
            own = namespace not in ("", "aten", "prims")
            raise TraceError(
                f"{name} calls {node.target}{f' at {where}' if where else ''}, which is no operation that a program "
                f"may have: {way_out if own else 'rewrite this line without it, or compile a part without it'}"
            )


def refuse_unknown_sizes(program: Program) -> None:
    """Raises TraceError where a symbol is no dimension of an input by itself: a call would not tell its size."""
    sizes = [size for tensor in program.signature.tensors for size in tensor.shape if isinstance(size, str)]
    bare = set(sizes) & program.signature.ranges.keys()
    for text in (*sizes, *program.signature.guards):
        unknown = symbols_of(text) - bare
        if unknown:
            raise TraceError(
                f"{program.name} has {text} among its sizes, and no dimension of an input is {sorted(unknown)[0]}: "
                "trace it without dynamic_shapes, or make another dimension dynamic"
            )


def refuse_unusual_inputs(program: Program, given: Mapping[str, object]) -> None:
    """Raises TraceError where the model asks of the example what a trace, which shows plain tensors, cannot tell."""
    asked = program.signature.asked
    for name, value in given.items():
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and (found := unusual(leaf, asked)):
                raise TraceError(
                    f"{program.name} asks for what no trace shows of its argument {name}, which {UNUSUAL[found[0]]}: "
                    "give a detached clone of it"
                )


def refuse_outside_writes(program: Program) -> None:
    """Raises TraceError where a module writes into its inputs or weights."""
    outside = {t.storage: node for node in program.graph.find_nodes(op="placeholder") for t in tensors_of(node)}
    for node in program.ops():
        for storage in (writes(node) | _statistics(node)) & outside.keys():
            what = weight_name(outside[storage])
            raise TraceError(
                f"{program.name} writes into {f'its weight {what}' if what else f'its input {outside[storage]}'} "
                f"at {origin_of(node).source}: dovetail compiles modules without side effects: clone it first"
            )


def refuse_overlapping_writes(exported: ExportedProgram, name: str) -> None:
    """Raises TraceError for a write that kernels refuse for how its operands lie in memory, which no trace looks at.

    The model may catch what the kernel raises, and go on otherwise than its trace.
    """
    for node in exported.graph.nodes:
        for written in written_by(node):
            others = [one.meta.get("val") for one in node.all_input_nodes if one is not written]
            if _is_refused(node.target.overloadpacket.__name__, written.meta.get("val"), others):
                where = line_of_stack(node.meta.get("stack_trace") or "")
                raise TraceError(
                    f"{name} writes into memory of which several elements are one, or that it reads elsewhere"
                    f"{f', at {where}' if where else ''}: {node.target} refuses that when it runs: clone it first"
                )


def _is_refused(op: str, written: object, others: Sequence[object]) -> bool:
    """Whether the kernel of an op raises at a write, by sizes and strides that are no symbols."""
    if op in _IDEMPOTENT or not isinstance(written, torch.Tensor):
        return False
    steps = zip(written.stride(), written.shape, strict=True)
    if any(isinstance(step, int) and not step and not (isinstance(size, int) and size < 2) for step, size in steps):
        return True
    return any(isinstance(one, torch.Tensor) and _overlap_in_part(written, one) for one in others)


def _overlap_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors share some of their elements, and not all."""
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    told = (*one.shape, *one.stride(), *other.shape, *other.stride(), one.storage_offset(), other.storage_offset())
    if not all(isinstance(number, int) for number in told):
        return False
    if any(map(torch._debug_has_internal_overlap, (one, other))):  # or gaps: kernels do not compare such either
        return False
    first, second = sorted((each.storage_offset(), each.storage_offset() + each.numel()) for each in (one, other))
    return first != second and second[0] < first[1] and bool(one.numel() and other.numel())


def _statistics(node: Node) -> set[int]:
    """The storages of the running statistics that a normalization updates, which its schema does not say."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return set()
    running, of_batch = node.args[3:5], node.args[5]
    given = [one for one in running if isinstance(one, Node)] if of_batch else []
    return {tensor.storage for one in given for tensor in tensors_of(one)}
