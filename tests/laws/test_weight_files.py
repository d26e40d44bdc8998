"""Weights that go from one file format to another and back are the same weights."""

import tempfile
from pathlib import Path

import torch
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape
from dovetail.convert import plan_conversion
from dovetail.runtime.store.reader import WeightReader

Weights = dict[str, torch.Tensor]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
PACKED = [quant for quant in QUANT_TYPES if block_of(quant)[0] > 1]

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=70).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)


@st.composite
def checkpoints(draw: st.DrawFn) -> Weights:
    """Some weights of any name, shape and dtype that both formats have."""
    seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    kinds = draw(st.dictionaries(names, st.tuples(shapes, st.sampled_from(FLOATS + INTEGERS)), min_size=1, max_size=6))
    return {name: (9 * torch.randn(shape, generator=seed)).to(dtype) for name, (shape, dtype) in kinds.items()}


def convert(source: Path, target: str, quant: str, *rules: str) -> Path:
    plan_conversion(source, source.with_name(target), quant, rules).run()
    return source.with_name(target)


def read(path: Path) -> Weights:
    """All weights of a file, through the index; packed ones as their bytes."""
    reader, found = WeightReader(), {}
    for name, entry in WeightIndex.of_file(path).items():
        entry = entry.packed() if entry.is_packed else entry
        found[name] = reader.read(entry, entry.dtype, torch.device("cpu")).clone()
    return found


def same(left: Weights, right: Weights) -> bool:
    alike = [left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left]
    return left.keys() == right.keys() and all(alike)


@settings(max_examples=60, deadline=None)
@given(checkpoints())
def test_wide_weights_survive_both_formats(weights: Weights) -> None:
    wide = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.safetensors"
        save_file(weights, source)
        assert same(read(source), weights)
        packed = convert(source, "out.gguf", "f32")
        assert same(read(packed), wide)
        back = convert(packed, "back.safetensors", "f32")
        assert same(load_file(back), wide)
        assert same(read(convert(back, "again.gguf", "f32")), wide)


@settings(max_examples=40, deadline=None)
@given(quant=st.sampled_from(PACKED), rows=st.integers(1, 9), blocks=st.integers(1, 3), data=st.data())
def test_packed_rows_are_where_the_index_says(quant: str, rows: int, blocks: int, data: st.DataObject) -> None:
    columns = 256 * blocks
    start, stop = sorted((data.draw(st.integers(0, rows)), data.draw(st.integers(0, rows))))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.safetensors"
        save_file({"before": torch.ones(3), "w": torch.randn(rows, columns)}, source)
        path = convert(source, "out.gguf", "f16", f"w={quant}")
        whole = torch.from_numpy(next(t for t in GGUFReader(path).tensors if t.name == "w").data.copy())
        entry = WeightIndex.of_file(path)["w"].slice(start, stop).packed()
        found = WeightReader().read(entry, torch.uint8, torch.device("cpu"))
        assert found.shape == packed_shape(quant, (stop - start, columns))
        assert torch.equal(found, whole.reshape(rows, -1)[start:stop])
