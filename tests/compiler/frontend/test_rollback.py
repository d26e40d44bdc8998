from __future__ import annotations

import functools
import time
from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.rollback import containers_of
from dovetail.compiler.frontend.trace import trace
from dovetail.runtime import sim


@functools.lru_cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32)


@functools.cache
def tables(size: int) -> dict[str, tuple[torch.Tensor, ...]]:
    return {"both": (torch.ones(size), torch.arange(size))}


@functools.lru_cache
def length(size: int) -> int:
    return size


class Cached(nn.Module):
    @staticmethod
    @functools.lru_cache
    def own(size: int) -> torch.Tensor:
        return torch.full((size,), 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = length(x.shape[-1])
        return x + table(size) + tables(size)["both"][0] + self.own(size)


def test_a_functions_cache_serves_eager_and_the_next_trace_as_if_nothing_had_been_traced() -> None:
    module, x = Cached(), torch.randn(2, 4)
    length.cache_clear()
    for _ in range(2):
        compiled = dovetail.compile(module, (x,), backend="cpu")
        assert type(table(4)) is torch.Tensor
        assert torch.equal(compiled(x), module(x))
    assert length.cache_info().currsize == 1


class Remembers:
    """What attention processors and embedders that are no modules do."""

    def __init__(self) -> None:
        self.last: Any = None


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None
        self.by_size: dict[Any, Any] = {"kept": {"deep": []}}
        self.history: list[Any] = [torch.ones(2)]
        self.names: set[str] = {"a"}
        self.processor = Remembers()
        self.pair = (Remembers(),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.later = x * 2
        self.by_size[x.shape] = self.seen
        self.by_size["kept"]["deep"].append(self.seen)
        self.history[0] = self.seen
        self.names.add("b")
        self.processor.last = self.pair[0].last = [self.seen]
        return self.seen + 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_forward_keeps_while_it_is_traced_is_forgotten(fails: bool) -> None:
    module = Keeping()
    first = module.history[0]
    if fails:
        module.register_forward_hook(lambda *_: torch.ones(1).nonzero().shape[0] and fail())
    with pytest.raises(TraceError, match="cannot be traced" if fails else "changes .* at each call"):
        trace(module, (torch.ones(2),))
    held = [leaf for container in containers_of(module) for leaf in pytree.tree_leaves(container)]
    assert not [leaf for leaf in held if isinstance(leaf, FakeTensor)]
    assert module.seen is None
    assert not hasattr(module, "later")
    assert module.by_size == {"kept": {"deep": []}}
    assert module.history == [first]
    assert module.names == {"a"}
    assert module.processor.last is module.pair[0].last is None


def fail() -> None:
    raise RuntimeError("in a hook")


class Elsewhere(nn.Module):
    """Keeps tables of its own where it ran last, as models that fill a cache at their first call do."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.freqs = torch.arange(4.0).to(device)
        self.cache = {"rope": (torch.ones(4).to(device), [torch.full((4,), 3.0).to(device)])}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, rest = self.cache["rope"]
        return x + self.freqs.to(x.device) * first.to(x.device) - rest[0].to(x.device)


def test_a_tensor_that_is_no_weight_may_lie_on_any_device() -> None:
    sim.enable({0: 2**20, 1: 2**20})
    module, x = Elsewhere("sim:1"), torch.randn(2, 4)
    freqs = module.freqs
    compiled = dovetail.compile(module, (x,), backend="sim0")
    assert torch.equal(compiled(x), Elsewhere("cpu")(x))
    assert module.freqs is freqs
    assert module.cache["rope"][0].device == torch.device("sim:1")


class Ordered(nn.Module):
    """Keeps what it computed in a cache that forgets the oldest, and in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: OrderedDict[str, Any] = OrderedDict(a=1, b=2, c=3)
        self.queue: deque[Any] = deque([1], maxlen=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache["new"] = x * 2
        self.cache.move_to_end("a")
        del self.cache["b"]
        self.queue.append(x)
        return x + self.cache["new"]  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_ordered_dicts_and_queues_hold_after_a_trace_what_they_held_before_it_in_that_order() -> None:
    module = Ordered()
    with pytest.raises(TraceError, match="changes a deque at each call"):
        trace(module, (torch.ones(2),))
    assert list(module.cache.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert module.cache.popitem(last=False) == ("a", 1)
    assert list(module.queue) == [1]
    assert module.queue.maxlen == 4


class Linked:
    """One of many objects of a script that lead to each other."""

    near: list[Linked]


LINKED: list[Linked] = []


def test_globals_that_lead_to_each_other_are_looked_into_once() -> None:
    nodes = [Linked() for _ in range(400)]
    for index, one in enumerate(nodes):
        one.near = [nodes[(7 * index + step) % len(nodes)] for step in range(30)]
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    trace(Cached(), (x,))
    LINKED.extend(nodes)
    begin = time.perf_counter()
    try:
        trace(Cached(), (x,))
    finally:
        LINKED.clear()
    assert time.perf_counter() - begin < 5
    assert torch.equal(dovetail.compile(module, (x,), backend="cpu")(x), module(x))


def _with_an_empty_variable() -> tuple[Any, Any]:
    def hook(_: nn.Module, __: Any, out: torch.Tensor) -> None:
        nonlocal kept
        kept = out

    kept: Any = None
    del kept
    return hook, hook.__closure__


def test_a_variable_of_a_hook_that_had_no_value_has_none_after_a_trace() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    hook, (cell,) = _with_an_empty_variable()
    module[0].register_forward_hook(hook)
    with pytest.raises(TraceError, match="at each call"):
        trace(module, (torch.randn(2, 4),))
    with pytest.raises(ValueError, match="empty"):
        _ = cell.cell_contents
