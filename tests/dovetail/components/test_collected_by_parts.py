"""What a module collects, keeps or hands to a hook beside its result is eager's, and no trace leaves a fake there."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor

import dovetail
from dovetail.cache import traces
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.components.arguments.collecting import collecting
from testbed.results import differences, fakes_within
from testbed.zoo.of_transformers import CASES

COLLECTED: ContextVar[Any] = ContextVar("collected", default=None)
GLOBAL: list[Tensor] = []
LAST: Tensor | None = None
BACKEND = "sim0&sim1"


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, box: Any = None) -> Tensor:
        global LAST
        x = self.inner(x).tanh()
        if self.kind == "context" and COLLECTED.get() is not None:
            COLLECTED.get().append(x)
        if self.kind == "set":
            COLLECTED.set(x)
        if self.kind == "global":
            GLOBAL.append(x)
        if self.kind == "rebound":
            LAST = x
        if self.kind == "list":
            box.append(x)
        return x


class Net(nn.Module):
    """Looks at a value, so that it runs by its parts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(4))

    def forward(self, x: Tensor, box: Any = None) -> Tensor:
        if x.sum() > 1000:
            return x
        for layer in self.layers:
            x = layer(x, box)
        return x


def collected(kind: str) -> list[Tensor]:
    if kind == "context":
        return list(COLLECTED.get())
    return {"set": [COLLECTED.get()], "global": GLOBAL, "rebound": [LAST]}[kind]


def start(kind: str) -> None:
    global LAST
    COLLECTED.set([] if kind == "context" else None)
    GLOBAL.clear()
    LAST = None


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["context", "set", "global", "rebound"])
def test_what_a_part_leaves_elsewhere_is_eagers(kind: str) -> None:
    net, x = Net(kind).eval(), torch.randn(2, 4)
    start(kind)
    with torch.no_grad():
        net(x)
        expected = list(collected(kind))
        start(kind)
        compiled = dovetail.compile(net, (x,), backend=BACKEND)
        assert not fakes_within(net, GLOBAL, LAST)
        for _ in range(2):
            start(kind)
            compiled(x)
            assert not fakes_within(net, GLOBAL, LAST)
            assert not list(differences([one.cpu() for one in collected(kind)], expected))
    start("")


@pytest.mark.fifth
def test_a_list_that_is_handed_in_gets_what_eager_puts_there() -> None:
    net, x = Net("list").eval(), torch.randn(2, 4)
    with torch.no_grad():
        expected: list[Tensor] = []
        net(x, expected)
        compiled = dovetail.compile(net, (x, []), backend=BACKEND)
        for _ in range(2):
            found: list[Tensor] = []
            compiled(x, found)
            assert not list(differences([one.cpu() for one in found], expected))


class Taking(nn.Module):
    def forward(self, x: Tensor, box: list[Tensor]) -> Tensor:
        while box:
            x = x + box.pop(0)
        return x


def test_a_module_that_takes_its_arguments_out_of_a_list_is_traced_whole() -> None:
    x = torch.ones(2)
    compiled = dovetail.compile(Taking(), (x, [x, x]), backend="sim0")
    assert not isinstance(compiled, CompiledByParts)
    assert torch.equal(compiled(x, [x, x]), 3 * x)


@pytest.mark.fifth
@pytest.mark.parametrize("at", ["layers.1", "layers.1.inner", ""])
def test_a_hook_that_keeps_what_it_gets_is_handed_what_eager_hands_it(at: str) -> None:
    net, x, kept = Net("").eval(), torch.randn(2, 4), list[Tensor]()
    net.get_submodule(at).register_forward_hook(lambda *found: kept.append(found[-1]))
    with torch.no_grad():
        net(x)
        expected = [kept.pop()]
        compiled = dovetail.compile(net, (x,), backend=BACKEND)
        assert not fakes_within(net, kept)
        for _ in range(2):
            kept.clear()
            compiled(x)
            assert not fakes_within(net, kept)
            assert not list(differences([one.cpu() for one in kept], expected))


def test_a_hook_in_a_module_that_traces_whole_is_handed_no_fake() -> None:
    net, x, last = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval(), torch.randn(2, 4), {}
    net[1].register_forward_hook(lambda *found: last.update(last=found[-1]))
    with torch.no_grad():
        net(x)
        expected = last.pop("last")
        compiled = dovetail.compile(net, (x,), backend=BACKEND)
        assert not fakes_within(net, last)
        compiled(x)
        assert torch.equal(last["last"].cpu(), expected)


def test_calls_that_collect_under_other_names_are_told_apart() -> None:
    before = collecting()
    for value in ({}, None, 3, "a request's number"):
        token = COLLECTED.set(value)
        assert collecting() == before
        COLLECTED.reset(token)
    seen = []
    for value in ({"states": []}, {"attentions": []}, []):
        token = COLLECTED.set(value)
        seen.append(collecting())
        COLLECTED.reset(token)
    assert len({before, *seen}) == 4


def test_what_pytorch_keeps_for_itself_tells_no_calls_apart() -> None:
    """Its compiler leaves such a set in the thread in which it worked, so that another thread would trace again."""
    variable = next(one for one in vars(proxy_tensor).values() if isinstance(one, ContextVar))
    before, token = collecting(), variable.set({1})
    assert collecting() == before
    variable.reset(token)


class Sharing(Layer):
    def forward(self, x: Tensor, box: Any = None) -> Tensor:
        box["last"] = self.inner(x + box["last"][0] if "last" in box else x), x
        return box["last"][0].tanh()


class Own(dict[str, Any]):
    """A mapping of a class that PyTorch does not know."""


class Sharers(Net):
    """Its layers hand on what they keep in a mapping, from device to device."""

    def __init__(self, kind: Any) -> None:
        super().__init__("")
        self.kind = kind
        self.layers = nn.ModuleList(Sharing("") for _ in range(4))

    def forward(self, x: Tensor, box: Any = None) -> Tensor:
        return super().forward(x, self.kind())


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, Own])
def test_what_layers_of_several_devices_share_in_a_mapping_goes_with_them(kind: Any) -> None:
    net, x = Sharers(kind).eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = dovetail.compile(net, (x,), backend=BACKEND)
        assert isinstance(compiled, CompiledByParts)
        for _ in range(2):
            assert torch.equal(compiled(x), net(x))


class Looking(nn.Module):
    """Looks at a value, so that no trace takes what contains it whole."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 1e9 else self.inner(x)


@pytest.mark.slow
def test_an_encoder_by_parts_returns_the_hidden_states_and_attentions_of_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    case = CASES["LlamaModel"]
    config = {**case.config, "num_hidden_layers": 2}
    module = transformers.LlamaModel(transformers.LlamaConfig(**config, attn_implementation="eager")).eval()
    module.layers[1].mlp = Looking(module.layers[1].mlp)
    more = {"use_cache": False, "output_hidden_states": True}
    with torch.no_grad():
        for _ in ("cold", "warm"):
            compiled = dovetail.compile(module, (), case.call(1, 0) | more, backend=BACKEND)
            assert isinstance(compiled, CompiledByParts)
            for seed, size, attentions in ((1, 0, False), (2, 1, False), (3, 1, True), (4, 0, False)):
                call = case.call(seed, size) | more | {"output_attentions": attentions}
                found, expected = compiled(**call), module(**call)
                assert len(expected.hidden_states) == 3
                assert not list(differences(found, expected))
                assert not fakes_within(module, call, found)
            traces.wait()
