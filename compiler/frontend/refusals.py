"""Refuses modules of which a program would do something else, with the line of the model and the way out."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from ..errors import TraceError
from ..ir.aliasing import writes
from ..ir.program import Program, origin_of, tensors_of, weight_name
from ..ir.sizes import symbols_of
from ..ir.targets import name_of
from .diagnostics import line_of_stack

_OWN_WEIGHTS = ("torch", __name__.partition(".")[0])


def foreign_library(tensor: torch.Tensor) -> str:
    """The library whose class of tensors this is, where it is another than PyTorch; else empty."""
    library = type(tensor).__module__.partition(".")[0]
    return "" if library in _OWN_WEIGHTS else library


def refuse_foreign_weights(module: nn.Module) -> None:
    """Raises TraceError for a module that another library has quantized.

    Weights of a class of another library are not what they look like: it has quantized them in its own way.
    """
    for name, parameter in module.named_parameters():
        if library := foreign_library(parameter):
            raise TraceError(
                f"{type(module).__name__} was quantized by {library} ({name} is a {type(parameter).__name__}), in a "
                "form that cannot be compiled: load it without, and give the file of its quantized weights to dovetail "
                "(weights=…)"
            )


def refuse_fake_constants(module: nn.Module, exported: ExportedProgram) -> None:
    """Raises TraceError for a constant that has no values."""
    for name, value in exported.constants.items():
        if isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.is_meta):
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


def _statistics(node: Node) -> set[int]:
    """The storages of the running statistics that a normalization updates, which its schema does not say."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return set()
    running, of_batch = node.args[3:5], node.args[5]
    given = [one for one in running if isinstance(one, Node)] if of_batch else []
    return {tensor.storage for one in given for tensor in tensors_of(one)}
