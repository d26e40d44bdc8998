"""Results computed in the memory of an operand that dies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.ir.aliasing import in_place, overwrites
from dovetail.compiler.ir.program import tensors_of
from dovetail.passes.simulate.memory import simulate
from dovetail.runtime import sim
from dovetail.runtime.in_place import Look

aten = torch.ops.aten
Layers = nn.ModuleList
Body = Callable[[Layers, torch.Tensor], object]


class Module(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.body = body

    def forward(self, x: torch.Tensor) -> object:
        return self.body(self.layers, x)


X = torch.linspace(-2, 2, 24).reshape(3, 8)


def targets(body: Body, backend: str = "cpu") -> list[str]:
    """The operations after reuse, with an underscore where they may be in place.

    The results of the call that looks and of the next must be the eager ones, and the input what it was.
    """
    torch.manual_seed(0)
    module = Module(body).eval()
    compiled = dovetail.compile(module, (X,), backend=backend)
    with torch.no_grad():
        expected = module(X)
    kept = X.clone()
    for _ in range(2):
        found = compiled(X)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        assert all(torch.equal(a, b) for a, b in pairs)
        assert torch.equal(X, kept)
    nodes = [node for node in compiled.program.ops() if isinstance(node.target, torch._ops.OpOverload)]
    return [node.target.overloadpacket.__name__ + "_" * overwrites(node) for node in nodes]  # type: ignore[union-attr]


def test_an_activation_whose_operand_dies_is_computed_in_place() -> None:
    assert targets(lambda layers, x: layers[1](torch.nn.functional.gelu(layers[0](x)))) == ["linear", "gelu_", "linear"]


def test_a_chain_of_elementwise_operations_uses_one_piece_of_memory() -> None:
    names = targets(lambda layers, x: (layers[0](x).sigmoid() * 2 + 1).neg())
    assert names == ["linear", "sigmoid_", "mul_", "add_", "neg_"]


@pytest.mark.parametrize("body", [lambda layers, x: x.sigmoid() + 1, lambda layers, x: layers[0].bias.sigmoid()])
def test_inputs_and_weights_are_not_overwritten(body: Body) -> None:
    assert "sigmoid" in targets(body)


def test_an_operand_that_is_read_later_is_kept() -> None:
    def body(layers: Layers, x: torch.Tensor) -> object:
        y = layers[0](x)
        return y.sigmoid() + y

    assert targets(body) == ["linear", "sigmoid", "add_"]


def test_an_operand_of_which_a_view_is_read_later_is_kept() -> None:
    def body(layers: Layers, x: torch.Tensor) -> object:
        y = layers[0](x)
        row = y[1]
        return y.sigmoid(), row

    assert "sigmoid" in targets(body)


def test_a_slice_of_larger_memory_is_not_kept_alive_for_a_smaller_result() -> None:
    def body(layers: Layers, x: torch.Tensor) -> object:
        left, right = layers[0](x).chunk(2, -1)
        return torch.cat([left.sigmoid(), right], -1)

    assert "sigmoid" in targets(body)


def test_an_operand_that_is_read_twice_by_one_operation_is_kept() -> None:
    def squared(layers: Layers, x: torch.Tensor) -> object:
        y = layers[0](x)
        return y * y

    assert targets(squared) == ["linear", "mul"]


def test_a_result_of_another_dtype_or_shape_is_not_computed_in_place() -> None:
    assert targets(lambda layers, x: layers[0](x) > 0) == ["linear", "gt"]
    assert targets(lambda layers, x: layers[0](x)[:1] + layers[1](x))[-1] == "add"


def test_a_value_that_crosses_is_neither_overwritten_nor_written_into() -> None:
    def body(layers: Layers, x: torch.Tensor) -> object:
        y = layers[0](x).sigmoid()  # crosses to the second device
        return layers[1](y).sigmoid() + 1, y

    assert targets(body, backend="sim0&sim1")[:3] == ["linear", "sigmoid", "linear"]


def test_what_an_op_that_may_return_a_view_reads_is_one_piece_with_its_result() -> None:
    def body(layers: Layers, x: torch.Tensor) -> object:
        y = layers[0](x).t()
        flat = y.reshape(-1)  # a copy here, a view where strides differ
        return flat.sigmoid(), y

    assert "sigmoid" in targets(body)


def test_the_operand_and_the_result_are_never_held_together() -> None:
    torch.manual_seed(0)
    large = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 64)).eval()
    x = torch.randn(256, 64)

    def peak(passes: str) -> int:
        compiled = dovetail.compile(large, (x,), backend="sim0", passes=passes)
        compiled.load()
        there = x.to("sim:0")
        sim.reset_peak(0)
        before = sim.stats(0).in_use
        compiled(there)
        return sim.stats(0).peak - before

    hidden, result = 256 * 4096 * 4, 256 * 64 * 4
    assert peak("simplify,blocks,place,pin,hoist,cut,schedule") == hidden + hidden
    assert peak("simplify,blocks,place,pin,hoist,cut,reuse,schedule") == hidden + result


def test_views_of_the_result_lie_in_the_reused_memory() -> None:
    module = Module(lambda layers, x: layers[1](layers[0](x).sigmoid()[:, :8])).eval()
    program = dovetail.compile(module, (X,), backend="cpu").program
    storages = [tensors_of(node)[0].storage for node in program.ops()]
    assert storages[0] == storages[1]


@pytest.mark.parametrize(
    ("target", "twin"),
    [
        (aten.gelu.default, aten.gelu_.default),
        (aten.add.Tensor, aten.add_.Tensor),
        (aten.linear.default, None),
        (aten.unsqueeze.default, None),
        (aten.bernoulli.default, None),
        (len, None),
    ],
)
def test_only_elementwise_operations_have_a_form_in_place(target: object, twin: object) -> None:
    assert in_place(target) is twin


class Residual(nn.Module):
    """The strides of a sum decide which kernel convolves next."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).sigmoid()
        return self.second(torch.nn.functional.silu(y * 2 + x))


def pictures(batch: int = 2) -> list[torch.Tensor]:
    x = torch.randn(batch, 8, 6, 6)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    return [x, x.to(memory_format=torch.channels_last), turned, x[:1].expand(batch, 8, 6, 6)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("first", range(4))
def test_a_call_in_other_strides_is_looked_at_anew(batch: int, first: int) -> None:
    torch.manual_seed(0)
    module, calls = Residual().eval(), pictures(batch)
    compiled = dovetail.compile(module, (calls[0],), backend="sim0")
    for x in [calls[first], *calls, *calls]:
        with torch.no_grad():
            found, expected = compiled(x), module(x)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_what_was_found_stands_in_the_source() -> None:
    module = Module(lambda layers, x: layers[1](layers[0](x).sigmoid())).eval()
    compiled = dovetail.compile(module, (X,), backend="cpu")
    assert "look(0, aten_sigmoid, aten_sigmoid_, linear)" in compiled.source()
    compiled(X)
    assert "= aten_sigmoid_(linear)" in compiled.source()
    assert "look" not in compiled.source()


def test_what_would_have_other_strides_in_place_is_computed_apart() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.exp() + y

    turned = torch.randn(5, 4, 1, 2).permute(3, 2, 1, 0)  # it decides the stride of the dimension of size 1
    module, call = Sum(), (torch.randn(2, 1, 4, 5), turned)
    compiled = dovetail.compile(module, call, backend="cpu")
    for y in (turned, turned, torch.randn(2, 1, 4, 5)):
        found, expected = compiled(call[0], y), module(call[0], y)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert ("aten_add__Tensor" in compiled.source()) == (y is not turned)


@pytest.mark.fifth
def test_dynamic_sizes_are_looked_at_each() -> None:
    torch.manual_seed(0)
    module = Residual().eval()
    batch = torch.export.Dim("b", min=2, max=64)
    compiled = dovetail.compile(module, (pictures()[0],), backend="sim0", dynamic_shapes={"x": {0: batch}})
    for size in (2, 5, 3, 5):
        for x in pictures(size):
            with torch.no_grad():
                assert torch.equal(compiled(x), module(x))


def test_first_calls_in_several_threads_give_the_same_bits() -> None:
    torch.manual_seed(0)
    module, calls = Residual().eval(), pictures() * 4
    with torch.no_grad():
        expected = [module(x) for x in calls]
    compiled = dovetail.compile(module, (calls[0],), backend="cpu")
    compiled.load()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(compiled, calls))
    assert all(map(torch.equal, found, expected))


ELEMENTWISE = [
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.atan2.default,
    aten.sigmoid.default, aten.silu.default, aten.gelu.default, aten.relu.default, aten.tanh.default, aten.exp.default,
    aten.neg.default, aten.mish.default, aten.elu.default,
    *(one for one in [aten.leaky_relu.default] if torch.Tag.pointwise in one.tags),  # which PyTorch 2.11 does not say
]  # fmt: skip
SHAPES = [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1), (1, 3, 1, 5), (1, 1, 4, 5)]


@pytest.mark.parametrize("target", ELEMENTWISE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_look_takes_for_certain_without_comparing_is_so(
    target: torch._ops.OpOverload, shape: tuple[int, ...]
) -> None:
    """Whatever the strides of the other operand, and whatever is broadcast."""
    x = torch.rand(shape)
    others: list[torch.Tensor] = [
        torch.rand(shape),
        torch.rand(()),
        torch.rand(shape).to(memory_format=torch.channels_last),
        torch.rand(shape[1], 1, 1),
        torch.rand(1, 1, 1, 1),
        torch.rand(shape[::-1]).permute(3, 2, 1, 0),
        torch.rand(shape[:1]).view(-1, 1, 1, 1).expand(shape),
    ]
    binary = len(target._schema.arguments) > 1 and target._schema.arguments[1].name in ("other", "exponent")
    for given in [[other] for other in others] if binary else [[]]:
        look, mine = Look(), x.clone()
        result = look(0, target, in_place(target), mine, *given)
        expected = target(x, *given)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
        assert (result is mine) <= bool(look.found)
    assert look.found or binary


class Wide(nn.Module):
    """Two linear layers with an activation between them, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers[1](torch.nn.functional.gelu(self.layers[0](x)) * 2)


@pytest.mark.parametrize("mode", ["sequence", "tensor", "batch"])
def test_devices_that_compute_together_compute_over_the_parts_that_they_have(mode: str, clean_sims: None) -> None:
    torch.manual_seed(0)
    module, x = Wide().eval(), torch.randn(2, 128, 64)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode=mode)
    assert sum(map(overwrites, compiled.program.ops())) >= 2, "the activation, and what it is multiplied by"
    with torch.no_grad():
        expected = module(x)
    kept = x.clone()
    for _ in range(2):
        for index in (0, 1):
            sim.reset_peak(index)
        found = compiled(x)
        assert torch.allclose(found, expected, atol=1e-6)
        assert torch.equal(x, kept)
        planned = [one.total for one in simulate(compiled.program).values()]
        assert [sim.stats(index).peak for index in (0, 1)] == planned


class Cast(Wide):
    """One whose activation is computed in another dtype, as rotations of queries are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers[1]((self.layers[0](x).float() * 2).neg().to(x.dtype))


@pytest.mark.parametrize("mode", ["sequence", "tensor", "batch"])
def test_what_was_cast_is_overwritten_on_devices_that_compute_together_too(mode: str, clean_sims: None) -> None:
    torch.manual_seed(0)
    module, x = Cast().bfloat16().eval(), torch.randn(2, 128, 64, dtype=torch.bfloat16)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode=mode)
    over = [node.target.overloadpacket.__name__ for node in compiled.program.ops() if overwrites(node)]  # type: ignore[union-attr]
    assert over[:2] == ["mul", "neg"], "in the memory that the cast has made"
    with torch.no_grad():
        expected = module(x)
    kept = x.clone()
    for _ in range(2):
        for index in (0, 1):
            sim.reset_peak(index)
        assert torch.allclose(compiled(x), expected, atol=0.04)
        assert torch.equal(x, kept)
        planned = [one.total for one in simulate(compiled.program).values()]
        assert [sim.stats(index).peak for index in (0, 1)] == planned
