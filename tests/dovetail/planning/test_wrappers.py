"""Code of somebody's own that lies around components, the scheduler or the pipeline counts real calls alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.planning.kinds import kind_of
from dovetail.planning.own_code import kept_around, own_code
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

STEPS = 2
KIND = diffusers.UNet2DModel
COUNTS = {"calls": 0}


def _weighed(found: Any, count: int) -> Any:
    """A result that depends on how often something was called."""
    kind: Any = type(found)
    return kind(found[0] * (1 + 0.1 * count), found[1]) if len(found) > 1 else kind(found[0] * (1 + 0.1 * count))


def _closure(pipe: Any) -> Callable[[], int]:
    own, log = pipe.unet.forward, []

    def forward(*args: Any, **kwargs: Any) -> Any:
        log.append(1)
        return _weighed(own(*args, **kwargs), len(log))

    pipe.unet.forward = forward
    return lambda: len(log)


def _global(pipe: Any) -> Callable[[], int]:
    own = pipe.unet.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        COUNTS["calls"] += 1
        return _weighed(own(*args, **kwargs), COUNTS["calls"])

    COUNTS["calls"] = 0
    pipe.unet.forward = forward
    return lambda: COUNTS["calls"]


def _attribute(pipe: Any) -> Callable[[], int]:
    own = pipe.unet.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return _weighed(own(*args, **kwargs), self.count)

    pipe.unet.count = 0
    pipe.unet.forward = MethodType(forward, pipe.unet)
    return lambda: int(pipe.unet.count)


def _class_forward(pipe: Any) -> Callable[[], int]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return _weighed(KIND.forward(self, *args, **kwargs), self.count)

    pipe.unet.count = 0
    pipe.unet.forward = MethodType(forward, pipe.unet)
    return lambda: int(pipe.unet.count)


def _class_of_a_library(_: Any) -> Callable[[], int]:
    own = KIND.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        kind.count += 1
        return _weighed(own(self, *args, **kwargs), kind.count)

    KIND.count, KIND.forward = 0, forward
    return lambda: int(KIND.count)


def _closed_over_class(_: Any) -> Callable[[], int]:
    kind, own = KIND, KIND.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind.count += 1
        return _weighed(own(self, *args, **kwargs), kind.count)

    kind.count, kind.forward = 0, forward
    return lambda: int(kind.count)


def _step(pipe: Any) -> Callable[[], int]:
    own, log = pipe.scheduler.step, []

    def step(*args: Any, **kwargs: Any) -> Any:
        log.append(1)
        return _weighed(own(*args, **kwargs), len(log))

    pipe.scheduler.step = step
    return lambda: len(log)


def _bar(pipe: Any) -> Callable[[], int]:
    own, log = pipe.progress_bar, []

    def progress_bar(steps: Any) -> Any:
        log.append(1)
        return own(steps[: 1 + len(log) % 2])

    pipe.progress_bar = progress_bar
    return lambda: len(log) * STEPS


class Tokenizer:
    """Counts in its class."""

    calls = 0

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["own"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Splits a text."""
        Tokenizer.calls += 1
        return self.own(*args, **kwargs)


def _tokenizer(pipe: Any) -> Callable[[], int]:
    Tokenizer.calls, pipe.tokenizer = 0, Tokenizer(pipe.tokenizer)
    return lambda: Tokenizer.calls


WRAPS: list[Callable[[Any], Callable[[], int]]] = [
    _closure, _global, _attribute, _class_forward, _class_of_a_library, _closed_over_class, _step, _bar,
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Gives the library's class its own forward back."""
    own = KIND.forward
    yield
    KIND.forward = own
    if "count" in vars(KIND):
        del KIND.count


def _small() -> Any:
    """A pipeline of a library's classes alone, with one small component."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
    unet = KIND(sample_size=8, norm_num_groups=4, layers_per_block=1, add_attention=False, **blocks).eval()
    pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _picture(pipe: Any, seed: int, **call: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = pipe(**{**call, "num_inference_steps": STEPS, "generator": generator, "return_dict": False})[0]
    return torch.as_tensor(found).cpu()


@pytest.mark.fifth
@pytest.mark.few(4, quick=2)
@pytest.mark.parametrize("wrap", WRAPS, ids=lambda one: one.__name__.strip("_"))
def test_what_a_wrapper_counts_is_what_was_called(wrap: Callable[[Any], Callable[[], int]]) -> None:
    eager, pipe, own = _small(), _small(), KIND.forward
    wrap(eager)
    expected = [_picture(eager, seed, output_type="np") for seed in (1, 2)]
    KIND.forward = own
    dovetail.compile_pipeline(pipe, "unet=sim0")
    count = wrap(pipe)
    for seed, wanted in zip((1, 2), expected, strict=True):
        assert torch.equal(_picture(pipe, seed, output_type="np"), wanted)
    assert count() == 2 * STEPS
    plan = pipe.dovetail.plan(num_inference_steps=STEPS)
    assert (plan is None) == (wrap in (_class_of_a_library, _closed_over_class))  # which ends the plan of a call
    if plan is not None and wrap is not _class_forward:  # which calls parts
        assert sum(call.times for call in plan.calls) == STEPS  # the steps of the scheduler were taken
    assert count() == 2 * STEPS


def test_a_tokenizer_that_counts_is_not_asked_for_the_lengths_of_a_text() -> None:
    pipe, call = tiny_pipelines.sd()
    count = _tokenizer(pipe)
    kind_of(pipe, (), call)
    assert count() == 0


class App:
    """What a program keeps on a pipeline, to which its other threads write."""

    def __init__(self) -> None:
        self.log: list[int] = []


def test_what_is_put_into_other_objects_of_a_pipeline_meanwhile_stays() -> None:
    pipe = _small()
    pipe.app, own = App(), pipe.scheduler.step
    pipe.scheduler.step = lambda *args, **kwargs: own(*args, **kwargs)
    code = own_code(pipe, type(pipe), ())
    assert code
    kept = kept_around(pipe, code)
    pipe.app.log.append(1)
    kept.give_back()
    assert pipe.app.log == [1]


class Lazy:
    """An object that raises when anybody looks at it."""

    @property
    def __class__(self) -> Any:
        raise ValueError("not loaded yet")


def test_an_object_that_cannot_be_looked_at_ends_the_plan_and_not_the_call() -> None:
    pipe, expected = _small(), _picture(_small(), 1, output_type="np")
    dovetail.compile_pipeline(pipe, "unet=sim0")
    vars(pipe)["lazy"] = Lazy()
    assert torch.equal(_picture(pipe, 1, output_type="np"), expected)
