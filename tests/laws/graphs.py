"""Generates programs out of small pieces of ATen graph, with weights at home anywhere.

A piece takes values from the pool and puts its own there, so that a failure shrinks to the few pieces that matter.
Pieces write into memory that other pieces have views of, on any device, which is where a split can go wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.annotate import annotate
from dovetail.compiler.ir.program import HERE, Program, weight_name
from dovetail.compiler.ir.signature import Signature, TensorLeaf
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.printer import print_program
from dovetail.runtime import sim

aten = torch.ops.aten
MIB = 2**20
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Case:
    """A program with everything that is needed to run it, and what it yields on one CPU."""

    program: Program
    weights: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    expected: list[Any]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"\n{print_program(self.program)}")


@dataclass
class Draft:
    """A graph that grows; every node is run without data as it is added."""

    dtype: torch.dtype
    graph: Graph = field(default_factory=Graph)
    mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    pool: list[Node] = field(default_factory=list)
    tensors: dict[Node, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, Node] = field(default_factory=dict)
    seed: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def given(self, name: str, *shape: int) -> Node:
        """A placeholder with random values; they all stand at the beginning."""
        first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        node = self.graph.placeholder(name)
        if first is not None:
            first.prepend(node)
        self.tensors[node] = torch.randn(shape, generator=self.seed).to(self.dtype)
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=self.dtype)
        return node

    def weight(self, draw: Draw, *shape: int) -> Node:
        """A new weight, or one that is there already and has this shape."""
        shared = [node for node in self.weights.values() if node.meta["val"].shape == shape]
        if shared and draw(st.booleans()):
            return draw(st.sampled_from(shared))
        node = self.given(f"w{len(self.weights)}", *shape)
        self.tensors[node].requires_grad_(draw(st.booleans()))  # torch picks kernels by it, even where none is taken
        self.weights[f"blocks.{len(self.weights)}.weight"] = node
        return node

    def op(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = run(node, lambda operand: operand.meta["val"], torch.device("cpu"), self.mode)
        if isinstance(node.meta["val"], torch.Tensor):
            self.pool.append(node)
        return node

    def pick(self, draw: Draw, suits: Callable[[torch.Tensor], bool] = lambda value: True) -> Node | None:
        """One of the last values that suit."""
        found = [node for node in self.pool if suits(node.meta["val"]) and node.meta["val"].numel() <= 4096]
        return draw(st.sampled_from(found[:-6:-1])) if found else None

    def like(self, draw: Draw, node: Node) -> Node:
        """Another value of the same shape and dtype, or the same one."""
        mine = node.meta["val"]
        same = self.pick(draw, lambda value: value.shape == mine.shape and value.dtype == mine.dtype)
        return same or node

    def is_owned(self, value: torch.Tensor) -> bool:
        """Whether a piece may write this memory: it is no input, no weight, and no element of it occurs twice."""
        outside = {node.meta["val"].untyped_storage()._cdata for node in self.tensors}
        overlaps = any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True))
        return not overlaps and value.numel() > 0 and value.untyped_storage()._cdata not in outside


def run(node: Node, value: Callable[[Node], Any], device: torch.device, mode: Any = None) -> Any:
    """What a node yields, on one device."""
    args, kwargs = map_arg((node.args, node.kwargs), value)
    args, kwargs = pytree.tree_map(lambda one: device if one == HERE else one, (args, kwargs))
    with mode or torch.no_grad():
        return node.target(*args, **kwargs)


def linear(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: v.dim() > 0 and 0 < v.shape[-1] <= 16 and v.dtype == draft.dtype)
    if x is None:
        return
    width = draw(st.sampled_from([4, 8]))
    weight = draft.weight(draw, width, x.meta["val"].shape[-1])
    bias = draft.weight(draw, width) if draw(st.booleans()) else None
    draft.op(aten.linear.default, x, weight, bias)


def weight_chain(draft: Draft, draw: Draw) -> None:
    """A linear layer whose weight is stored transposed, in another dtype, or as a part of a larger one."""
    x = draft.pick(draw, lambda v: v.dim() > 0 and 0 < v.shape[-1] <= 16 and v.dtype == draft.dtype)
    if x is None:
        return
    width = x.meta["val"].shape[-1]
    kind = draw(st.sampled_from(["transposed", "cast", "part"]))
    if kind == "transposed":
        weight = draft.op(aten.permute.default, draft.weight(draw, width, 4), [1, 0])
    elif kind == "cast":
        wide = draft.op(aten.to.dtype, draft.weight(draw, 4, width), torch.float64)
        weight = draft.op(aten.to.dtype, wide, draft.dtype)
    else:
        weight = draft.op(aten.slice.Tensor, draft.weight(draw, 8, width), 0, 2, 6)
    draft.op(aten.linear.default, x, weight)


def scale(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: v.dim() > 0 and 0 < v.shape[-1] <= 16 and v.dtype == draft.dtype)
    if x is not None:
        draft.op(aten.mul.Tensor, x, draft.weight(draw, x.meta["val"].shape[-1]))


def norm(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: v.dim() > 0 and 1 < v.shape[-1] <= 16 and v.dtype == draft.dtype)
    if x is not None:
        width = x.meta["val"].shape[-1]
        draft.op(aten.layer_norm.default, x, [width], draft.weight(draw, width), draft.weight(draw, width))


def embedding(draft: Draft, draw: Draw) -> None:
    length = draw(st.integers(1, 6))
    where = draft.op(aten.arange.default, length, device=HERE)
    draft.op(aten.embedding.default, draft.weight(draw, 8, 4), where)


def unary(draft: Draft, draw: Draw) -> None:
    ops = [aten.gelu.default, aten.silu.default, aten.neg.default, aten.tanh.default]
    x = draft.pick(draw, lambda v: v.is_floating_point())
    if x is not None:
        draft.op(draw(st.sampled_from(ops)), x)


def binary(draft: Draft, draw: Draw) -> None:
    ops = [aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor]
    x = draft.pick(draw)
    if x is not None:
        draft.op(draw(st.sampled_from(ops)), x, draft.like(draw, x))


def view(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: v.dim() > 0 and v.numel() > 0)
    if x is None:
        return
    rank = x.meta["val"].dim()
    dim = draw(st.integers(0, rank - 1))
    size = x.meta["val"].shape[dim]
    match draw(st.sampled_from(["transpose", "slice", "select", "expand", "reshape", "chunk", "split", "unbind"])):
        case "transpose":
            draft.op(aten.transpose.int, x, dim, draw(st.integers(0, rank - 1)))
        case "slice":
            start = draw(st.integers(0, size - 1))
            draft.op(aten.slice.Tensor, x, dim, start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2)))
        case "select":
            draft.op(aten.select.int, x, dim, draw(st.integers(0, size - 1)))
        case "expand":
            draft.op(aten.expand.default, draft.op(aten.unsqueeze.default, x, 0), [2] + [-1] * rank)
        case "reshape":
            draft.op(aten.reshape.default, x, draw(st.sampled_from([[-1], [size, -1], [1, -1]])))
        case "chunk":
            take(draft, draw, draft.op(aten.chunk.default, x, 2, dim))
        case "split":
            sizes = [size // 2, size - size // 2]
            take(draft, draw, draft.op(aten.split_with_sizes.default, x, sizes, dim))
        case "unbind":
            take(draft, draw, draft.op(aten.unbind.int, x, dim))


def take(draft: Draft, draw: Draw, parts: Node) -> None:
    for index in draw(st.sets(st.integers(0, len(parts.meta["val"]) - 1), max_size=3)):
        draft.op(operator.getitem, parts, index)


def join(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: v.dim() > 0)
    if x is not None:
        target = draw(st.sampled_from([aten.cat.default, aten.stack.default]))
        draft.op(target, [x, draft.like(draw, x)], draw(st.integers(0, x.meta["val"].dim() - 1)))


def reduce(draft: Draft, draw: Draw) -> None:
    """Reductions add in an order that depends on the strides."""
    x = draft.pick(draw, lambda v: v.dim() > 0 and v.is_floating_point() and v.numel() > 0)
    if x is None:
        return
    dim = draw(st.integers(0, x.meta["val"].dim() - 1))
    match draw(st.sampled_from(["sum", "mean", "softmax", "all"])):
        case "sum":
            draft.op(aten.sum.dim_IntList, x, [dim], draw(st.booleans()))
        case "mean":
            draft.op(aten.mean.dim, x, [dim], draw(st.booleans()))
        case "softmax":
            draft.op(aten.softmax.int, x, dim)
        case "all":
            draft.op(aten.sum.default, x)


def attention(draft: Draft, draw: Draw) -> None:
    q = draft.pick(draw, lambda v: v.dim() == 3 and v.dtype == draft.dtype and v.numel() > 0)
    if q is not None:
        draft.op(aten.scaled_dot_product_attention.default, q, draft.like(draw, q), draft.like(draw, q))


def layout(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw)
    if x is None:
        return
    match draw(st.sampled_from(["clone", "contiguous", "cast", "dropout"])):
        case "clone":
            draft.op(aten.clone.default, x)
        case "contiguous":
            draft.op(aten.contiguous.default, x)
        case "cast":
            draft.op(aten.to.dtype, x, draw(st.sampled_from([torch.float64, torch.bfloat16, draft.dtype])))
        case "dropout":
            draft.op(aten.dropout.default, x, 0.5, False)


def fresh(draft: Draft, draw: Draw) -> None:
    shape = draw(st.sampled_from([[2, 3, 4], [2, 4], [4]]))
    target = draw(st.sampled_from([aten.zeros.default, aten.ones.default]))
    draft.op(target, shape, dtype=draft.dtype, device=HERE)


def write(draft: Draft, draw: Draw) -> None:
    x = draft.pick(draw, lambda v: draft.is_owned(v) and v.is_floating_point())
    if x is None:
        return
    if x.meta["val"].dim() and draw(st.booleans()):
        x = draft.op(aten.slice.Tensor, x, 0, 0, draw(st.integers(1, x.meta["val"].shape[0])))
    match draw(st.sampled_from(["add", "mul", "copy", "fill", "foreach"])):
        case "add":
            draft.op(aten.add_.Tensor, x, draw(st.sampled_from([1.0, 0.5])))
        case "mul":
            other = draft.like(draw, x)  # itself, or what shares no memory with it, for they would overlap in part
            apart = other.meta["val"].untyped_storage()._cdata != x.meta["val"].untyped_storage()._cdata
            draft.op(aten.mul_.Tensor, x, other if apart else x)
        case "copy":
            source = draft.pick(draw, lambda v: v.dim() == 0 or v.shape == x.meta["val"].shape)
            if source is not None:
                draft.op(aten.copy_.default, x, source)
        case "foreach":  # yields nothing
            draft.op(aten._foreach_mul_.Scalar, [x], 0.5)
        case "fill":
            draft.op(aten.fill_.Scalar, x, 2.0)


PIECES = (
    linear, unary, binary, view, write, weight_chain, scale, norm, embedding, join, reduce, attention, layout, fresh,
    linear, scale, view, write,
)  # fmt: skip


@st.composite
def rigs(draw: Draw, most: int = 5) -> Rig:
    """One to five simulated devices of unequal memory, switched on."""
    count = draw(st.sampled_from([2, 3, 1, 4, 5][:most]))
    sizes = draw(st.permutations([8, 16, 24, 40, 64]))[:count]
    sim.enable({index: size * MIB for index, size in enumerate(sizes)})
    return Rig.of(**{f"sim{index}": size * MIB for index, size in enumerate(sizes)})


@st.composite
def cases(draw: Draw, pieces: tuple[Callable[[Draft, Draw], None], ...] = PIECES, most: int = 5) -> Case:
    """A program of some pieces over up to five devices, every weight at home anywhere."""
    draft = Draft(draw(st.sampled_from([torch.float32, torch.bfloat16])))
    draft.pool += [draft.given("x", 2, 3, 4), draft.given("y", 2, 3, 4), draft.given("z", 4)]
    some = st.lists(st.sampled_from(pieces), max_size=10)
    for piece in [*draw(some), *draw(some), *draw(some)]:
        piece(draft, draw)
    extras = [*draft.pool, *draft.weights.values(), None, 7]
    return finish(draft, [*draft.pool[-3:], *draw(st.lists(st.sampled_from(extras), max_size=3))], draw)


def finish(draft: Draft, outputs: list[Any], draw: Draw) -> Case:
    """The program of a draft, and what it yields on the CPU."""
    draft.graph.output(tuple(outputs))
    given = {node.name: tensor for node, tensor in draft.tensors.items()}
    annotate(draft.graph, "Generated")
    known: dict[str, Weight] = {}
    for name, node in draft.weights.items():
        tensor = draft.tensors[node]
        frozen = not tensor.requires_grad
        node.meta["weight"] = name
        known[name] = Weight(name, "parameter", tuple(tensor.shape), tensor.dtype, frozen=frozen)
    names = [node.name for node in draft.graph.find_nodes(op="placeholder") if not weight_name(node)]
    leaf = pytree.tree_structure(0)
    program = Program(
        name="Generated",
        graph=draft.graph,
        signature=Signature(
            positional=tuple(names),
            defaults={},
            names=tuple(names),
            specs=(leaf,) * len(names),
            leaves=tuple(TensorLeaf(n, tuple(given[n].shape), given[n].dtype, given[n].stride()) for n in names),
            out_spec=pytree.tree_structure([0] * len(outputs)),
        ),
        weights=known,
        rig=draw(rigs()),
    )
    places = st.sampled_from(program.devices)
    program.home = {name: draw(places) for name in program.weights}
    program.keep(draw(st.sampled_from(Residency)))
    others = draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
    program.residency |= {name: draw(st.sampled_from([Residency.HOST, Residency.DISK])) for name in sorted(others)}
    weights = {name: draft.tensors[node] for name, node in draft.weights.items()}
    return Case(program, weights, [given[name] for name in names], evaluate(draft))


def evaluate(draft: Draft) -> list[Any]:
    """What the graph yields when its nodes are run one after another on the CPU; rejects one that PyTorch refuses."""
    values: dict[Node, Any] = dict(draft.tensors)
    for node in draft.graph.nodes:
        if node.op == "call_function":
            try:
                values[node] = run(node, values.__getitem__, torch.device("cpu"))
            except RuntimeError as error:
                if "refer to a single memory location" not in str(error):
                    raise
                reject()
    return [values[leaf] if isinstance(leaf, Node) else leaf for leaf in draft.graph.output_node().args[0]]


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are the same to the bit, NaN included."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    dense = [value.cpu().flatten().clone(memory_format=torch.contiguous_format) for value in (one, other)]
    return torch.equal(*(value.view(torch.uint8) for value in dense))
