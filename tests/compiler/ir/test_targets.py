"""The operations that a program may name."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.fx import Node

import dovetail
from dovetail.compiler.errors import ProgramTextError, TraceError, VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir import targets
from dovetail.compiler.ir.targets import FUNCTIONS, find_target, name_of
from dovetail.passes.verify.verifier import verify

HOSTILE = [
    "operator.call", "operator.attrgetter", "operator.methodcaller", "operator.itemgetter", "operator.setitem",
    "operator.concat", "operator.__builtins__", "operator.lshift", "load_library.__self__.load_library",
    "__init__.__globals__.get", "aten.__class__.__init__", "aten.add.__class__", "aten.add.op", "aten.add._op",
    "aten.from_file.default", "aten.save.default", "aten._print.default", "aten.set_.source_Tensor",
    "aten.set_.source_Storage", "aten.resize_.default", "aten._resize_output_.default", "aten.set_data.default",
    "aten.manual_seed.default", "aten.seed.default", "aten.warn.default", "aten.record_stream.default",
    "aten.set_grad_enabled.default", "aten._cufft_set_plan_cache_max_size.default", "aten._backward.default",
    "aten.requires_grad_.default", "aten._sparse_coo_tensor_unsafe.default", "aten.add.out", "aten.as_strided_.default",
    "aten.dequantize.self", "aten.format.default", "prims.add.default", "quantized.linear.default",
    "prim.Print.default", "inductor._alloc_from_pool.default", "_test.leaky_relu.default", "c10d.barrier.default",
    "profiler._record_function_enter.default", "torch.load", "torch.sym_max.__globals__", "torch.ops.load_library",
    "math.factorial", "math.pow", "os.system", "builtins.eval", "aten.add", "", "aten..default",
    "aten.add.Tensor\n", "aten.ádd.Tensor",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_no_listed_operation_is_refused(name: str) -> None:
    with pytest.raises(ProgramTextError, match=r"no operation|may not have"):
        find_target(name)


UNCHECKED = [
    "aten._reshape_alias.default", "aten.segment_reduce.default", "aten.ctc_loss.Tensor", "aten.embedding_bag.default",
    "aten.embedding_bag.padding_idx", "aten.batch_norm_update_stats.default", "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit_no_training.default", "aten._weight_norm_interface.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default", "aten.slow_conv3d.default",
    "aten.slow_conv_transpose2d.default", "aten.fractional_max_pool2d.default", "aten._upsample_bilinear2d_aa.default",
    "aten._upsample_bicubic2d_aa.default", "aten._upsample_lanczos2d_aa.default",
]  # fmt: skip
"""Their kernels read or write outside their operands' memory where sizes or indices do not fit; seen to."""


@pytest.mark.parametrize("name", [name for name in UNCHECKED if hasattr(torch.ops.aten, name.split(".")[1])])
def test_an_operation_that_reaches_outside_its_operands_memory_is_refused(name: str) -> None:
    with pytest.raises(ProgramTextError, match="may not have"):
        find_target(name)


class Normed(nn.Module):
    """A convolution whose weight is a direction and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_weight_with_norms_compiles_and_one_whose_norms_are_too_few_is_refused() -> None:
    model, x = Normed().eval(), torch.ones(2, 3, 5)
    compiled = dovetail.compile(model, (x,), backend="cpu")
    assert torch.equal(compiled(x), model(x))
    (node,) = compiled.program.graph.find_nodes(op="call_function", target=torch.ops.aten._weight_norm.default)
    for wrong in ((*node.args[:2], 1), (node.args[0], node.args[0]), (node.args[1], node.args[0]), (*node.args[:2], 9)):
        right, node.args = node.args, wrong
        with pytest.raises(VerificationError, match="has no norm for each row"):
            verify(compiled.program)
        node.args = right
    verify(compiled.program)


@pytest.mark.slow
def test_no_operation_of_aten_that_may_be_named_touches_files_storages_streams_or_settings() -> None:
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        try:
            found = find_target(f"aten.{packet}.{overload or 'default'}") if name.startswith("aten::") else None
        except ProgramTextError:
            continue
        if found is None:
            continue
        kinds = {str(value.type) for value in (*found._schema.arguments, *found._schema.returns)}
        assert not any(word in kind for kind in kinds for word in ("Storage", "Stream", "class", "Any", "Dict"))
        texts = {argument.name for argument in found._schema.arguments if "str" in str(argument.type)}
        assert not texts & {"filename", "s", "a", "b", "api_name"}
        assert any("Tensor" in kind for kind in kinds) or "sym_constrain" in packet or packet == "_assert_scalar"


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, "aten.linear.default", "aten.__and__.Tensor", "dovetail.dequantize.default"]
)
def test_what_may_be_named_is_found_under_its_name(name: str) -> None:
    assert name_of(find_target(name)) == name


class Mine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.dovetail_test_library.twice(x)  # type: ignore[no-any-return]


def test_an_operation_of_another_library_needs_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.library.Library("dovetail_test_library", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("dovetail_test_library::twice", torch.empty_like, lib=library)
    with pytest.raises(TraceError, match=r"trust\('dovetail_test_library'\)"):
        trace(Mine(), (torch.ones(2),))
    monkeypatch.setattr(targets, "_TRUSTED", set())
    targets.trust("dovetail_test_library")
    compiled = dovetail.compile(Mine(), (torch.ones(2),), backend="cpu")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.undo()
    find_target.cache_clear()
    name_of.cache_clear()


def put(compiled: dovetail.CompiledModule, target: object, *args: object, value: object = None) -> Node:
    graph = compiled.program.graph
    with graph.inserting_before(compiled.program.output):
        node = graph.call_function(target, args)  # type: ignore[arg-type]
    node.meta["value"] = value
    return node


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (eval, ("1",)), (operator.call, (print,)), (operator.mul, ([0], 10**9)), (operator.mul, ("a", 10**9)),
        (operator.getitem, ([1], 0)), (operator.getitem, ()), (operator.add, ()), (torch.ops.aten.add, (1, 2)),
        (torch.ops.aten.relu.default, (1,)), (torch.ops.aten.from_file.default, ("x", True, 1)),
    ],
)  # fmt: skip
def test_a_program_made_by_hand_must_keep_the_rule_too(target: object, args: tuple[object, ...]) -> None:
    compiled = dovetail.compile(nn.ReLU(), (torch.ones(2),), backend="cpu")
    put(compiled, target, *args)
    with pytest.raises(VerificationError, match="rule targets: "):
        verify(compiled.program)
