"""Printing and parsing a spec gives the same spec, and no text does anything but parse or get a SpecError."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import SpecError
from dovetail.compiler.spec import (
    MODES,
    ROLES,
    Amount,
    Backend,
    Budget,
    ParamsBackend,
    SplitMode,
    TensorSplit,
    Word,
    parse_backend,
    parse_budget,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)

COMPONENTS = {
    "transformer": "diffusion",
    "text_encoder": "te",
    "text_encoder_2": "te",
    "vae": "vae",
    "vocoder": "vocoder",
}

keys = st.sampled_from([*ROLES, *COMPONENTS])
devices = st.sampled_from(
    ["cpu", "cuda0", "cuda1", "xpu0", "mps", "sim0", "sim12", "1/cuda0", "cu", "0", "rank1.cuda0"]
)
words = devices.map(Word)
choosers = st.sampled_from(["auto", "gpu", "balanced"]).map(Word)
targets = choosers.map(lambda word: (word,)) | st.lists(words, min_size=1, max_size=4, unique=True).map(tuple)
places = words | st.sampled_from(["auto", "gpu", "disk"]).map(Word)
shares = st.lists(st.floats(0, 1e6), min_size=2, max_size=4).map(tuple).filter(sum)
sizes = st.integers(-(2**50), 2**50).map(lambda size: Amount(bytes=size))
percents = st.floats(-100, 100).map(lambda percent: Amount(percent=percent))


def named(values: st.SearchStrategy[object], names: st.SearchStrategy[object] = keys) -> st.SearchStrategy[object]:
    """Keyed values, each key once."""
    return st.dictionaries(names, values, max_size=4).map(lambda items: tuple(items.items()))


def specs(
    kind: type, values: st.SearchStrategy[object], names: st.SearchStrategy[object] = keys
) -> st.SearchStrategy[object]:
    return st.builds(kind, st.none() | values, named(values, names))


@given(specs(Backend, targets))
def test_a_backend_is_read_back_from_its_text(backend: Backend) -> None:
    assert parse_backend(str(backend), COMPONENTS) == backend


@given(specs(ParamsBackend, places))
def test_resting_places_are_read_back_from_their_text(resting: ParamsBackend) -> None:
    assert parse_params_backend(str(resting), COMPONENTS) == resting


@given(specs(SplitMode, st.sampled_from(MODES)))
def test_split_modes_are_read_back_from_their_text(modes: SplitMode) -> None:
    assert parse_split_mode(str(modes), COMPONENTS) == modes


@given(specs(TensorSplit, shares))
def test_shares_are_read_back_from_their_text(split: TensorSplit) -> None:
    assert parse_tensor_split(str(split), COMPONENTS) == split


@given(specs(Budget, sizes | percents, words))
def test_a_budget_is_read_back_from_its_text(budget: Budget) -> None:
    assert parse_budget(str(budget)) == budget


PARSERS = [
    lambda text: parse_backend(text, COMPONENTS),
    lambda text: parse_params_backend(text, COMPONENTS),
    lambda text: parse_split_mode(text, COMPONENTS),
    lambda text: parse_tensor_split(text, COMPONENTS),
    parse_budget,
    Rig.parse,
]
NAMES = ["te", "text_encoder_2", "cuda0", "CUDA:1", "cpu", "sim0", "auto", "balanced", "all", "disk", "row", "layer"]
PIECES = [*NAMES, *"=,& :-%*/", "", "3", "1.5", "GiB"]
texts = st.lists(st.sampled_from(PIECES), max_size=9).map("".join) | st.text(max_size=12)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=texts)
def test_what_is_accepted_prints_as_a_text_that_stays_the_same(parse: Callable[[str], object], text: str) -> None:
    try:
        spec = parse(text)
    except SpecError as error:
        assert error.problem
        assert 0 <= error.start <= error.end <= len(error.text)
        return
    printed = str(spec)
    assert parse(printed) == spec
    assert str(parse(printed)) == printed
