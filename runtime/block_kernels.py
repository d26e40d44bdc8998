"""Compiles blocks of a program by PyTorch's Inductor, once for all blocks that do the same.

A block becomes a graph over its inputs, weights among them, in names of its own: two blocks of one text are one kernel.
Where Inductor fails, the operations of the block run one by one, which is said.
"""

from __future__ import annotations

import functools
import logging
import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx, nn
from torch._dynamo.exc import TorchDynamoException
from torch.fx import Node

from ..compiler.ir.aliasing import writers_of
from ..compiler.ir.block_spans import COMPILED, block_spans, internal, is_closed
from ..compiler.ir.program import HERE, Program, tensors_of, weight_name
from ..compiler.ir.schedule import Run, Schedule, Step, ValueRef, read_on
from ..compiler.states.parts import weight_on

logger = logging.getLogger(__name__)

_kernels: WeakValueDictionary[str, BlockKernel] = WeakValueDictionary()
_making = threading.RLock()


class BlockKernel:
    """A block as one function over its inputs; Inductor compiles it at the first call."""

    def __init__(self, graph: fx.Graph, owner: str) -> None:
        self._owner = owner
        self._plain = fx.GraphModule(nn.Module(), graph)
        self._run: Callable[..., Any] = torch.compile(self._plain.forward, dynamic=False, fullgraph=True)

    def __call__(self, *inputs: Any) -> Any:
        """The results of the block, always a tuple."""
        try:
            return self._run(*inputs)
        except TorchDynamoException as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning("Inductor cannot compile a block of %s, which runs as it is: %s", self._owner, why)
            self._run = self._plain.forward
            return self._run(*inputs)


@dataclass(frozen=True)
class BlockCall:
    """The call of a kernel in the place of some steps of a run.

    ``nodes`` are those of the steps, ``inputs`` pairs of a step's node and an operand that it reads from outside, in
    the order of the arguments.
    """

    span: range
    nodes: tuple[Node, ...]
    inputs: tuple[tuple[Node, Node], ...]
    outputs: tuple[ValueRef, ...]
    kernel: BlockKernel


def block_calls(program: Program, schedule: Schedule) -> dict[Node, list[BlockCall]]:
    """The blocks that do what another block of the program does too, by the first node of the run that they are in.

    There are none unless the program says so.
    """
    if COMPILED not in program.facts or program.symbols:
        return {}
    written = writers_of(program).keys()
    runs = [one for one in schedule if isinstance(one, Run) and not one.device.is_simulated]
    drafts = [
        draft
        for run in runs
        for span in block_spans(program, run)
        if is_closed(program, run.steps[span.start : span.stop], written)
        and (draft := _Draft.of(program, run, span)) is not None
    ]
    alike = Counter(draft.text for draft in drafts)
    calls: dict[Node, list[BlockCall]] = {}
    for draft in drafts:
        if alike[draft.text] > 1:
            calls.setdefault(draft.run.steps[0].node, []).append(draft.call(program.name))
    if runs:
        _tell(program, len(drafts), calls)
    return calls


def _tell(program: Program, blocks: int, calls: Mapping[Node, Sequence[BlockCall]]) -> None:
    kernels = [call.kernel for found in calls.values() for call in found]
    if not kernels:
        logger.warning("no two of %d blocks of %s do the same: they run as they are", blocks, program.name)
        return
    _tell_bits()
    logger.info("%s: %d of %d blocks share %d kernels", program.name, len(kernels), blocks, len(set(kernels)))


def made_in(calls: Mapping[Node, Sequence[BlockCall]]) -> set[int]:
    """The memory of what kernels make, in the numbers of the program: in truth, results of theirs may share some."""
    nodes = (node for found in calls.values() for call in found for node in call.nodes)
    return {tensor.storage for node in nodes for tensor in tensors_of(node)}


@functools.cache
def _tell_bits() -> None:
    logger.warning("Inductor compiles blocks once, in tens of seconds, and results may differ in their last bits")


@dataclass(frozen=True)
class _Draft:
    """A block as a graph, of which it is not known yet whether another one has it too."""

    run: Run
    span: range
    graph: fx.Graph
    text: str
    inputs: tuple[tuple[Node, Node], ...]
    outputs: tuple[ValueRef, ...]

    @staticmethod
    def of(program: Program, run: Run, span: range) -> _Draft | None:
        """The graph of some steps; None where one of them is no operation over tensors."""
        steps = run.steps[span.start : span.stop]
        if not all(_is_plain(step.node) for step in steps):
            return None
        graph, inputs, known, types = fx.Graph(), list[tuple[Node, Node]](), dict[Any, Node](), list[str]()
        keys = {pair: _key(program, run, *pair) for pair in _readings(steps)}
        made = {ValueRef(step.node) for step in steps}
        for (reader, operand), key in keys.items():
            if key not in made and key not in known:
                kind = _type(program, run, reader, operand)
                if kind is None:
                    return None
                known[key] = graph.placeholder(f"in{len(inputs)}")
                inputs.append((reader, operand))
                types.append(kind)
        for step in steps:
            node = step.node
            made_of = {operand: known[keys[node, operand]] for operand in node.all_input_nodes}
            arguments = _here(fx.node.map_arg((node.args, node.kwargs), made_of.__getitem__), run.device.torch)
            known[ValueRef(node)] = graph.create_node("call_function", node.target, *arguments)
        own = internal(steps)
        outputs = tuple(one for one in (ValueRef(step.node) for step in steps) if one not in own)
        graph.output(tuple(known[one] for one in outputs))
        return _Draft(run, span, graph, f"{graph} over {types} on {run.device}", tuple(inputs), outputs)

    def call(self, owner: str) -> BlockCall:
        """The call of the kernel of its text, which is made if there is none."""
        with _making:
            kernel = _kernels.get(self.text) or BlockKernel(self.graph, owner)
            _kernels[self.text] = kernel
        return BlockCall(self.span, self.run.nodes[self.span.start : self.span.stop], self.inputs, self.outputs, kernel)


def _readings(steps: Sequence[Step]) -> list[tuple[Node, Node]]:
    return [(step.node, operand) for step in steps for operand in step.node.all_input_nodes]


def _is_plain(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _key(program: Program, run: Run, reader: Node, operand: Node) -> Any:
    """What tells an operand from others: the name of a weight, or a value as it lies on the device."""
    if weight_name(operand):
        return weight_on(program, reader, operand, run.device).name
    return read_on(operand, run.device)


def _type(program: Program, run: Run, reader: Node, operand: Node) -> str | None:
    """The shape and dtype of an input; None for what is neither a weight nor a single tensor."""
    if weight_name(operand):
        weight = weight_on(program, reader, operand, run.device)
        return "number" if weight.is_number else f"{weight.stored}{weight.quant}{weight.requires_grad}"
    tensors = tensors_of(operand)
    return f"{tensors[0].shape}{tensors[0].dtype}" if len(tensors) == 1 else None


def _here(arguments: Any, device: torch.device) -> Any:
    """Arguments in which the device of the run stands in the place of HERE."""
    return fx.node.map_aggregate(arguments, lambda one: device if one == HERE else one)
