"""A module that every call changes anew is refused by the trace and runs as it is; one made ready once is compiled."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace

X = torch.ones(1, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.count, self.factor, self.last, self.table, self.seen = 0, 0.5, None, None, []
        self.store: dict[str, Any] = {}


class Counting(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.linear(x) * (0.5 if self.count % 2 else 1.0)


class Collecting(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.linear(x))
        return self.seen[-1] * 2


class Storing(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.last = self.linear(x)
        return self.last * 2


class Filing(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.store["last"] = self.linear(x)
        return self.store["last"] * 2


class Starting(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.begun = getattr(self, "begun", 0) + 1
        return self.linear(x) * (0.5 if self.begun % 2 else 1.0)


class Preparing(Net):
    """Makes a table once, clears a list at each call, and lends itself a factor."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
        self.seen, self.ready, self.store = [None, 0], True, {"size": x.shape[-1]}
        self.factor *= 3.7
        result = self.linear(x) * self.table * self.factor
        self.factor /= 3.7
        return result


CHANGING = [(Counting, "count"), (Collecting, "a list"), (Storing, "last"), (Filing, "last"), (Starting, "begun")]


@pytest.mark.fifth
@pytest.mark.parametrize(("kind", "what"), CHANGING)
def test_a_module_that_changes_at_each_call_is_refused_and_runs_as_it_is(kind: type[Net], what: str) -> None:
    module, eager = kind().eval(), kind().eval()
    with pytest.raises(TraceError, match=f"{kind.__name__} changes {what} at each call"):
        trace(module, (X,))
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(X).cpu(), eager(X))
    assert (module.count, module.seen, module.last, module.store) == (0, [], None, {})


def test_a_module_that_a_call_only_makes_ready_is_compiled() -> None:
    module = Preparing().eval()
    assert len(list(trace(module, (X,)).ops())) > 2
    assert module.table is None
    module(X)
    assert len(list(trace(module, (X,)).ops())) > 2


def test_a_scripted_module_is_refused_as_such() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(TraceError, match="ScriptModule is not supported"):
        trace(scripted, (X,))


class Complaining(Net):
    """Warns at each call, of which Python keeps a note in the globals of this file."""

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            warnings.warn("this layer is slow", stacklevel=1)
        return self.linear(x)


def test_a_warning_that_python_notes_is_no_change() -> None:
    warnings.warn_explicit("x", UserWarning, __file__, 1, registry=globals().setdefault("__warningregistry__", {}))
    assert trace(Complaining().eval(), (X,)).graph.nodes


class Buffered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))
        self.gain = nn.Parameter(torch.ones(1), requires_grad=False)


class Replacing(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + 1
        return self.linear(x) + self.total


class Registering(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("total", self.total + 1)
        return self.linear(x) + self.total


class Averaging(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        result = self.linear(x) + self.total
        self.total = 0.9 * self.total + 0.1 * x.mean()
        return result


class Reparametrizing(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.gain = nn.Parameter(self.gain * 2, requires_grad=False)
        return self.linear(x) * self.gain


@pytest.mark.parametrize("kind", [Replacing, Registering, Averaging, Reparametrizing])
def test_a_module_that_replaces_its_weights_at_each_call_runs_as_it_is(kind: type[Buffered]) -> None:
    module, eager = nn.Sequential(kind()).eval(), nn.Sequential(kind()).eval()
    with pytest.raises(TraceError, match=r"changes (total|gain) at each call"):
        trace(module, (X,))
    compiled = dovetail.compile(module, (X,), backend="sim0")
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(X).cpu(), eager(X))


class Tabulating(Net):
    """Registers a table once, makes one where there is none, and has one grow with what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("absent", None)
        self.register_buffer("growing", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.arange(4.0), persistent=False)
        if self.absent is None:
            self.absent = x.new_ones(4)
        if len(self.growing) < x.shape[-1]:
            self.growing = torch.arange(float(x.shape[-1]))
        return self.linear(x) * self.absent + self.late + self.growing[: x.shape[-1]]


def test_a_module_that_makes_a_buffer_once_is_compiled_and_left_as_it_was() -> None:
    module = nn.Sequential(Tabulating()).eval()
    names = list(module.state_dict()), [name for name, _ in module.named_buffers()]
    assert len(list(trace(module, (X,)).ops())) > 2
    assert (list(module.state_dict()), [name for name, _ in module.named_buffers()]) == names
    assert module[0].absent is None


class CountingBeside(Buffered):
    """Counts in a buffer, and keeps a tensor of each call besides."""

    def forward(self, x: Tensor) -> Tensor:
        self.total += 1
        self.last = x
        return self.linear(x) + self.total


def test_a_trace_counts_in_no_buffer() -> None:
    module, eager = CountingBeside().eval(), CountingBeside().eval()
    with pytest.raises(TraceError):
        trace(module, (X,))
    assert module.total.item() == 0
    compiled = dovetail.compile(nn.Sequential(module), (X,), backend="sim0")
    assert module.total.item() == 0
    with torch.no_grad():
        for _ in range(3):
            compiled(X), eager(X)
    assert eager.total.item() == 3


class CountingTwice(Buffered):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.total += 1
        return self.linear(x) + y + self.total


def test_a_trace_of_a_call_with_one_tensor_twice_counts_in_no_buffer() -> None:
    module = CountingTwice().eval()
    with pytest.raises(TraceError):
        trace(module, (X, X))
    assert module.total.item() == 0


class Skipping(Net):
    """Leaves its layer out where its input is near the one before, as a cache of steps does."""

    count = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.count == 0 or float((x - self.last).abs().mean()) > 0.1:
            self.result = self.linear(x)
        self.last, self.count = x, self.count + 1
        return self.result


def test_a_module_that_goes_by_what_it_kept_of_the_last_call_runs_as_it_is() -> None:
    module, eager = Skipping().eval(), Skipping().eval()
    with pytest.raises(TraceError, match=r"Skipping changes .* at each call"):
        trace(module, (X,))
    compiled = dovetail.compile(module, (X,), backend="sim0")
    with torch.no_grad():
        for x in (X, X + 0.01, X + 1, X + 1.01):
            assert torch.equal(compiled(x).cpu(), eager(x))


class Settling(Net):
    """Makes a table at the first call, and its factors at the second; reads values of both."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.tensor(4.0)
        elif self.last is None and float(self.table) == x.shape[-1]:
            self.last = torch.ones(4)
        return self.linear(x) * self.table


def test_a_module_that_is_made_ready_by_two_calls_is_compiled() -> None:
    assert len(list(trace(Settling().eval(), (X,)).ops())) > 1


class Checking(Net):
    """Keeps what it made, and looks at values of its input, on which nothing depends."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
        if not torch.compiler.is_compiling() and float(x.sum()) > 1e9:
            raise ValueError("too large")
        return self.linear(x) * self.table


def test_a_module_whose_every_call_looks_at_values_is_refused_for_what_is_sure_alone() -> None:
    assert len(list(trace(Checking().eval(), (X,)).ops())) > 1


class Warming(Net):
    """Goes by a count that stands still from the second call on."""

    def forward(self, x: Tensor) -> Tensor:
        self.count = min(self.count + 1, 2)
        return self.linear(x) * self.count


def test_a_module_whose_second_call_counts_on_runs_as_it_is() -> None:
    eager, model = Warming().eval(), Warming().eval()
    compiled = dovetail.compile(model, (X,), backend="sim0")
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(X), eager(X))


class Scripted(Net):
    """Has a part that TorchScript compiled, which no trace takes."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.part(self.linear(x)))


def test_a_trace_leaves_the_weights_of_a_scripted_part_in_their_places() -> None:
    model = Scripted().eval()
    before = dict(model.named_parameters())
    with pytest.raises(TraceError):
        trace(model, (X,))
    assert all(one is before[name] for name, one in model.named_parameters())
