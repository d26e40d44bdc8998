"""Numbers packed into the types of GGUF, and what the gguf package makes of the bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape
from dovetail.compiler.errors import WeightError
from dovetail.runtime.packing import pack

Floats = NDArray[np.float32]

# The error on numbers of a normal distribution, as a part of their size: what docs/weights.md states, rounded up.
BOUNDS = {
    "F32": 0.0, "F16": 0.0003, "BF16": 0.002, "Q8_0": 0.0055, "Q4_0": 0.087, "Q4_1": 0.079, "Q5_0": 0.043,
    "Q5_1": 0.0385, "Q2_K": 0.272, "Q3_K": 0.145, "Q4_K": 0.072, "Q5_K": 0.036, "Q6_K": 0.0168, "IQ4_NL": 0.075,
    "IQ4_XS": 0.076,
}  # fmt: skip
PACKED = [quant for quant in QUANT_TYPES if block_of(quant)[0] > 1]


def unpacked(packed: NDArray[np.uint8], quant: str) -> Floats:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: Floats = dequantize(packed, GGMLQuantizationType[quant])
    return values


def error(values: Floats, quant: str) -> float:
    there_and_back = unpacked(pack(values, quant), quant)
    return float(np.linalg.norm(there_and_back - values) / np.linalg.norm(values))


@pytest.fixture(scope="module")
def normal() -> Floats:
    return np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_what_is_packed_comes_back_within_the_error_of_its_type(quant: str, normal: Floats) -> None:
    assert error(normal, quant) <= BOUNDS[quant]
    assert error(1e-3 * normal, quant) <= BOUNDS[quant] * 1.02
    assert error(normal + 3, quant) <= BOUNDS[quant]


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_packed_rows_have_the_shape_that_the_type_says(quant: str, normal: Floats) -> None:
    packed = pack(normal.reshape(2, 32, 1024), quant)
    assert packed.dtype == np.uint8
    assert packed.shape == packed_shape(quant, (2, 32, 1024))


@pytest.mark.parametrize("quant", PACKED)
def test_a_row_is_packed_alike_with_other_rows_and_alone(quant: str, normal: Floats) -> None:
    assert np.array_equal(pack(normal, quant)[5:7], pack(normal[5:7], quant))


@pytest.mark.parametrize("quant", PACKED)
def test_zeros_stay_zeros(quant: str) -> None:
    zeros = np.zeros((2, 512), np.float32)
    assert np.array_equal(unpacked(pack(zeros, quant), quant), zeros)


@pytest.mark.parametrize("quant", PACKED)
@pytest.mark.parametrize("constant", [1.0, -1.0, 0.02, -300.0])
def test_a_constant_comes_back_nearly(quant: str, constant: float) -> None:
    values = np.full((1, 256), constant, np.float32)
    assert error(values, quant) < 0.04


@pytest.mark.parametrize("quant", PACKED)
def test_packing_what_was_unpacked_loses_little_more(quant: str, normal: Floats) -> None:
    once = unpacked(pack(normal, quant), quant)
    assert error(once, quant) < 0.35 * BOUNDS[quant]


@pytest.mark.parametrize("quant", PACKED)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_finite_numbers_never_come_back_as_something_else(quant: str, data: st.DataObject) -> None:
    number = st.one_of(
        st.floats(-65504, 65504, width=32), st.sampled_from([0.0, -0.0, 65504.0, -65504.0, 1e-45, 1e-38, -1e-8, 6e-8])
    )
    few = data.draw(st.lists(number, min_size=1, max_size=40))
    values = np.resize(np.array(few, np.float32), (1, 256))
    back = unpacked(pack(values, quant), quant)
    assert np.isfinite(back).all()
    size = block_of(quant)[0]
    largest = np.abs(values.reshape(-1, size)).max(axis=1)
    away = np.abs((back - values).reshape(-1, size)).max(axis=1)
    assert (away <= 1.1 * largest + 1e-5).all()


@pytest.mark.parametrize("quant", [*PACKED, "F16"])
def test_what_a_type_cannot_hold_is_refused(quant: str) -> None:
    values = np.ones((1, 256), np.float32)
    values[0, 3] = 7e4
    with pytest.raises(WeightError, match=rf"up to 7e\+04, and {quant} reaches 65504"):
        pack(values, quant)


@pytest.mark.parametrize("quant", PACKED)
@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_packed(quant: str, strange: float) -> None:
    values = np.ones((1, 256), np.float32)
    values[0, 3] = strange
    with pytest.raises(WeightError, match="not finite"):
        pack(values, quant)


@pytest.mark.parametrize("quant", ["F16", "BF16", "F32"])
def test_plain_types_keep_numbers_that_are_not_finite(quant: str) -> None:
    values = np.array([[1.0, np.inf, -np.inf, np.nan]], np.float32)
    assert np.array_equal(unpacked(pack(values, quant), quant), values, equal_nan=True)


@pytest.mark.parametrize("quant", PACKED)
def test_rows_that_do_not_fit_are_refused(quant: str) -> None:
    with pytest.raises(WeightError, match="no whole number"):
        pack(np.zeros((2, 100), np.float32), quant)


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_a_weight_without_rows_is_packed_into_nothing(quant: str) -> None:
    assert pack(np.zeros((0, 256), np.float32), quant).shape == packed_shape(quant, (0, 256))
