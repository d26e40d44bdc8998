"""What an op does to memory is as `alias_class` says, found by running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.ir.aliasing import Alias, alias_class
from dovetail.compiler.ir.targets import name_of

aten = torch.ops.aten
RETURNING: dict[Any, tuple[Any, ...]] = {
    aten.conj_physical.default: (),
    aten.cartesian_prod.default: (),
    aten.dropout.default: (0.5, False),
    aten.feature_dropout.default: (0.5, False),
    aten.alpha_dropout.default: (0.5, False),
    aten.feature_alpha_dropout.default: (0.5, False),
    aten.atleast_1d.default: (),
    aten.atleast_2d.default: (),
    aten.atleast_3d.default: (),
    aten.unsafe_chunk.default: (2,),
    aten.unsafe_split.Tensor: (2,),
    aten.unsafe_split_with_sizes.default: ([1, 3],),
    aten._unsafe_view.default: ([2, 2],),
    aten._cast_Float.default: (),
    aten.sum_to_size.default: ([4],),
    aten.to_dense.default: (),
    aten.lift.default: (),
    aten.type_as.default: (torch.ones(1),),
    aten.einsum.default: (),
    aten.meshgrid.default: (),
    aten.broadcast_tensors.default: (),
}
"""Ops of which no schema says that they may return their operand, and what they take beside it."""


def called(op: Any, x: Tensor, *more: Any) -> list[Tensor]:
    """The results of an op on a tensor."""
    first: tuple[Any, ...] = ("i->i", [x]) if op is aten.einsum.default else (x,)
    kind = str(op._schema.arguments[0].type)
    found = pytree.tree_leaves(op(*([x],) if kind == "List[Tensor]" else first, *more))
    return [one for one in found if isinstance(one, Tensor)]


@pytest.mark.parametrize("op", RETURNING, ids=str)
def test_what_may_return_its_operand_is_not_said_to_make_memory_of_its_own(op: Any) -> None:
    x = torch.ones(4)
    shares = {
        one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for one in called(op, x, *RETURNING[op])
    }
    assert shares == {True}
    assert alias_class(op) is Alias.MAYBE


def test_each_op_that_torch_says_to_alias_is_known() -> None:
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None) if name.startswith("aten::") else None
        if op is not None and torch.Tag.maybe_aliasing_or_mutating in op.tags and name_of(op):
            tagged.add(op)
    assert tagged - RETURNING.keys() <= {aten.batch_norm.default}
    x, one = torch.rand(2, 3, 4), torch.ones(3)
    normed = aten.batch_norm.default(x, None, None, one * 0, one, False, 0.1, 0.0, True)
    assert normed.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert alias_class(aten.batch_norm.default) is Alias.COMPUTE


class Returned(nn.Module):
    """Reads a view of what an op returned as it was, after computing with the result."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        view = h[:2]
        z = called(self.op, h, *RETURNING[self.op])[0] + 1
        return z.sum() * view


@pytest.mark.parametrize("op", [one for one in RETURNING if one is not aten.lift.default], ids=str)
def test_a_view_of_an_operand_that_an_op_returned_is_not_computed_over(op: Any) -> None:
    torch.manual_seed(0)
    module, x = Returned(op).eval(), torch.randn(4)
    compiled = dovetail.compile(module, (x,), backend="sim0")
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), module(x))
