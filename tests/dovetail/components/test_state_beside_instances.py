"""What a user's code counts and collects in classes and globals is eager's: no plan and no trace leaves more there."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

from .small_pipeline import Block, Model, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

NUMBER = 0
ITEMS: list[Any] = []
TABLE: dict[str, Any] = {"inner": {"count": 0}, "latest": None}
QUEUE: deque[float] = deque(maxlen=3)
COUNTS: Counter[str] = Counter()
BOX = SimpleNamespace(count=0)


class Store:
    """A collector of the user's own, whose class counts."""

    total = 0
    maps: list[Tensor] = []  # noqa: RUF012
    by_name: dict[str, int] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.own = 0

    def note(self, x: Tensor) -> None:
        Store.total += 1
        type(self).by_name["x"] = self.by_name.get("x", 0) + 1
        self.maps.append(x.detach().mean())


STORE = Store()


class Kept(queue.Queue):  # type: ignore[type-arg]
    """An object of the user's that counts and collects by the code of its base."""


KEPT = Kept()


def _class(x: Tensor) -> None:
    Processor.count += 1
    Processor.kept.append(x.detach().mean())


def _global(x: Tensor) -> None:
    global NUMBER
    NUMBER += 1


def _list(x: Tensor) -> None:
    ITEMS.append(x.detach().mean())


def _table(x: Tensor) -> None:
    TABLE["inner"]["count"] += 1
    TABLE["latest"] = x.detach().mean()


def _queue(x: Tensor) -> None:
    QUEUE.append(float(len(QUEUE)))
    COUNTS["calls"] += 1


def _box(x: Tensor) -> None:
    BOX.count += 1


def _store(x: Tensor) -> None:
    STORE.note(x)
    STORE.own += 1


def _base(x: Tensor) -> None:
    KEPT.put(1)


def _alias(x: Tensor) -> None:
    items = ITEMS
    for one in (items,):
        one.append(x.detach().mean())


def _function(x: Tensor) -> None:
    _function.count = getattr(_function, "count", 0) + 1  # type: ignore[attr-defined]


def _default(x: Tensor, seen: list[int] = []) -> None:  # noqa: B006
    seen.append(1)


def _closed() -> Callable[[Tensor], None]:
    count, seen = 0, []

    def closed(x: Tensor) -> None:
        nonlocal count
        count += 1
        seen.append(1)

    closed.read = lambda: (count, len(seen))  # type: ignore[attr-defined]
    return closed


KEEPS: dict[str, Callable[[Tensor], None]] = {
    "class": _class, "global": _global, "list": _list, "table": _table, "queue": _queue, "box": _box,
    "store": _store, "base": _base, "alias": _alias, "function": _function, "default": _default, "closure": _closed(),
}  # fmt: skip


class Processor:
    """What computes in a block: it notes each call in one of these places."""

    count = 0
    kept: list[Tensor] = []  # noqa: RUF012

    def __init__(self, way: str) -> None:
        self.keep = KEEPS[way]

    def __call__(self, x: Tensor) -> Tensor:
        self.keep(x)
        return torch.relu(x)


class Noting(Block):
    """A block with a processor, whose class counts too."""

    calls = 0
    way = ""

    def __init__(self) -> None:
        super().__init__()
        self.processor = Processor(self.way)

    def between(self, x: Tensor) -> Tensor:
        return self.processor(x)


class Looking(Noting):
    """The same, and it looks at a value, so that it runs by its parts."""

    def between(self, x: Tensor) -> Tensor:
        Looking.calls += 1
        return super().between(x) if x.sum() < 1e9 else x


def _said() -> tuple[Any, ...]:
    """What is in all of these places."""
    closed: Any = KEEPS["closure"]
    return (
        NUMBER, [float(one) for one in ITEMS], TABLE["inner"]["count"], TABLE["latest"] and float(TABLE["latest"]),
        list(QUEUE), dict(COUNTS), BOX.count, Store.total, Store.by_name, [float(one) for one in Store.maps], STORE.own,
        getattr(_function, "count", 0), len((_default.__defaults__ or ((),))[0]), closed.read(),
        Processor.count, [float(one) for one in Processor.kept], Noting.calls, Looking.calls, vars(Store).keys(),
        KEPT.unfinished_tasks, KEPT.qsize(),
    )  # fmt: skip


def _clear() -> None:
    global NUMBER
    closed: Any = KEEPS["closure"]
    NUMBER = BOX.count = Store.total = STORE.own = Processor.count = Looking.calls = KEPT.unfinished_tasks = 0
    for one in (ITEMS, QUEUE, COUNTS, Store.maps, Store.by_name, Processor.kept, _default.__defaults__[0]):
        one.clear()
    KEPT.queue.clear()
    TABLE.update(inner={"count": 0}, latest=None)
    vars(_function).clear()
    KEEPS["closure"] = _closed()
    assert closed


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Has each test begin and end with nothing there."""
    _clear()
    yield
    _clear()


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "way"), [*((Noting, way) for way in KEEPS), *((Looking, way) for way in ("class", "table", "closure"))]
)
def test_what_a_call_leaves_in_classes_and_globals_is_what_eager_leaves(
    kind: type[Noting], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noting, "way", way)
    torch.manual_seed(0)
    models = [Model(kind).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model.blocks = model.blocks[:2]
    inputs = [torch.randn(rows, 32) for rows in (4, 4)]
    with torch.no_grad():
        wanted = [(models[0](x), _said()) for x in inputs]
    _clear()
    for block in models[1].blocks:
        block.processor.keep = KEEPS[way]
    pipe = Pipeline(models[1])
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    for x, (result, said) in zip(inputs, wanted, strict=True):
        assert torch.equal(pipe(x), result)
        assert _said() == said


class Counting(Pipeline):
    """A pipeline of the user's own whose code counts beside it."""

    calls = 0

    @torch.no_grad()
    def __call__(self, *args: Any) -> Any:
        Counting.calls += 1
        ITEMS.append(0.0)
        return self.unet(*args)


def test_what_the_code_of_a_pipeline_counts_in_its_class_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "calls", 0)
    pipe, x = Counting(Model().eval()), torch.randn(4, 32)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    for count in (1, 2):
        pipe(x)
        assert (Counting.calls, len(ITEMS)) == (count, count)


@pytest.mark.parametrize("kind", [Noting, Looking])
def test_compiling_a_module_leaves_nothing_in_classes_and_globals(
    kind: type[Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noting, "way", "class")
    module, x = kind().eval(), torch.randn(4, 32)
    before = _said()
    compiled = dovetail.compile(module, (x,), backend="sim0")
    assert _said() == before
    compiled(x)
    assert Processor.count == 1
