"""Weights out of files, as a program asks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.weight import Weight
from dovetail.runtime import sim
from dovetail.runtime.store.origin import FileOrigin, MergedOrigin
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.reader import WeightReader
from dovetail.weights.files import types_of

from ...compiler.checkpoints.weight_files import packed, write_gguf

CPU = torch.device("cpu")
MATRIX = Weight("w", "parameter", (4, 256), torch.bfloat16)
TABLE = torch.arange(6.0)


def sim0() -> torch.device:
    sim.enable()
    return torch.device("sim", 0)


def program_of(*weights: Weight, device: torch.device = CPU) -> Any:
    """What a source wants to know of a program whose weights are all read on one device."""
    (home,) = Rig.parse(str(device).replace(":", "") + "=1GiB").devices
    return SimpleNamespace(
        name="net",
        weights={weight.name: weight for weight in weights},
        constants={"table": TABLE},
        devices=(home,),
        home=dict.fromkeys((weight.name for weight in weights), home),
        schedule=None,
        residency={},
        stages=lambda *_: False,
        weight_nodes=lambda: iter(()),
    )


class Source:
    """Gives weights of a file, each to a program of its own."""

    def __init__(self, path: Path) -> None:
        self.index = WeightIndex.of_file(path)

    def of(self, *weights: Weight, device: torch.device = CPU) -> ProgramWeights:
        return ProgramWeights.of_files(self.index, program_of(*weights, device=device))

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        return self.of(weight, device=device)(weight, device)


@pytest.fixture
def gguf(tmp_path: Path) -> tuple[Source, dict[str, np.ndarray]]:
    sim.enable()
    weights = {
        "w": packed("Q4_K", (4, 256)),
        "half": packed("F16", (4, 8)),
        "same": packed("BF16", (4, 8)),
        "bias": packed("F32", (8,)),
    }
    write_gguf(tmp_path / "a.gguf", weights)
    return Source(tmp_path / "a.gguf"), {name: data for name, (_, _, data) in weights.items()}


def test_packed_weights_and_their_rows_are_given_as_bytes(gguf: Any) -> None:
    source, data = gguf
    weight = Weight("w", "parameter", (4, 256), torch.bfloat16, quant="Q4_K")
    for device in (CPU, sim0()):
        assert np.array_equal(source(weight, device).cpu().numpy(), data["w"])
        assert np.array_equal(source(weight.part(0, [(1, 3)]), device).cpu().numpy(), data["w"][1:3])


def test_a_weight_is_found_under_any_of_its_names(gguf: Any) -> None:
    source, data = gguf
    weight = Weight("tied", "parameter", (4, 256), torch.bfloat16, aliases=("w",), quant="Q4_K")
    assert np.array_equal(source(weight, CPU).numpy(), data["w"])


def test_a_packed_weight_is_not_given_for_plain_numbers_nor_for_another_type(gguf: Any) -> None:
    source, _ = gguf
    with pytest.raises(WeightError, match=r"has w as Q4_K\[4, 256\], but the program was compiled for plain numbers"):
        source(MATRIX, CPU)
    with pytest.raises(WeightError, match=r"has w as Q4_K\[4, 256\], but the program was compiled for Q8_0"):
        source(Weight("w", "parameter", (4, 256), torch.bfloat16, quant="Q8_0"), CPU)


def test_floats_are_converted_unless_the_weight_rests_in_their_type(gguf: Any) -> None:
    source, data = gguf
    plain = Weight("half", "parameter", (4, 8), torch.float32)
    numbers = torch.from_numpy(data["half"]).view(torch.float16).reshape(4, 8)
    for device in (CPU, sim0()):
        assert torch.equal(source(plain, device).cpu().view(torch.int32), numbers.float().view(torch.int32))
        resting = Weight("half", "parameter", (4, 8), torch.float32, quant="F16")
        assert np.array_equal(source(resting, device).cpu().numpy(), data["half"])


def test_the_types_that_weights_rest_in_leave_out_what_is_read_as_plain_numbers(gguf: Any) -> None:
    source, _ = gguf
    named = [
        Weight("w", "parameter", (4, 256), torch.bfloat16),
        Weight("half", "parameter", (4, 8), torch.bfloat16),
        Weight("same", "parameter", (4, 8), torch.bfloat16),
        Weight("bias", "parameter", (8,), torch.bfloat16),
        Weight("table", "constant", (6,), torch.float32),
    ]
    assert types_of(program_of(*named), source.index) == {"w": "Q4_K", "half": "F16"}


def test_another_shape_is_refused(gguf: Any) -> None:
    source, _ = gguf
    with pytest.raises(WeightError, match=r"has bias as \[8\], where bias of \[9\] is needed"):
        source(Weight("bias", "parameter", (9,), torch.float32), CPU)
    with pytest.raises(WeightError, match=r"a weight of \[8\] has no rows 4 to 12"):
        source(Weight("bias", "parameter", (16,), torch.float32).part(0, [(4, 12)]), CPU)


def test_what_no_file_has_comes_from_the_others(gguf: Any) -> None:
    source, _ = gguf
    constant = Weight("table", "constant", (6,), torch.float32)
    assert torch.equal(source(constant, sim0()).cpu(), TABLE)
    assert source.of(constant, MATRIX).missing(program_of(constant, MATRIX)) == []
    lost = Weight("lost", "parameter", (6,), torch.float32)
    assert source.of(constant, lost, MATRIX).missing(program_of(constant, lost, MATRIX)) == ["lost"]
    with pytest.raises(WeightError, match="weight lost is not among the weights given"):
        source(lost, CPU)


def test_two_files_with_equal_names_and_shapes_give_each_its_own(tmp_path: Path) -> None:
    weight = Weight("w", "parameter", (3,), torch.float32)
    for number in (1, 2):
        save_file({"w": torch.full((3,), float(number))}, tmp_path / f"{number}.safetensors")
    sources = [Source(tmp_path / f"{number}.safetensors") for number in (1, 2)]
    assert [source(weight, CPU).tolist() for source in sources] == [[1.0] * 3, [2.0] * 3]


def test_a_tensor_is_filled_with_rows_and_what_is_next_is_advised(gguf: Any) -> None:
    files, data = gguf
    rows = Weight("w", "parameter", (4, 256), torch.bfloat16, quant="Q4_K").part(0, [(2, 4)])
    constant = Weight("table", "constant", (6,), torch.float32)
    target = torch.empty(rows.stored[0], dtype=torch.uint8, device=sim0())
    source = files.of(rows, constant)
    source.advise([rows, constant])
    WeightReader().read_into(files.index["w"].slice(2, 4).packed(), target)
    assert np.array_equal(target.cpu().numpy(), data["w"][2:4])
    assert torch.equal(source(constant, sim0()).cpu(), TABLE)
    source.release([rows, constant])
    assert np.array_equal(source(rows, CPU).numpy(), data["w"][2:4])


@dataclass(frozen=True)
class Ones:
    """An update that adds one to every number."""

    width: int

    def part(self, part: Part | None) -> torch.Tensor:
        whole = torch.ones(4, self.width)
        return whole if part is None else part.of(whole)


def test_what_is_merged_is_added_to_what_a_file_has_and_to_its_rows(gguf: Any) -> None:
    files, data = gguf
    merged = MergedOrigin(FileOrigin(files.index["half"], WeightReader(), files.index.where), (Ones(8), Ones(8)))
    weight = Weight("half", "parameter", (4, 8), torch.float32)
    numbers = torch.from_numpy(data["half"]).view(torch.float16).reshape(4, 8).float() + 1 + 1
    for device in (CPU, sim0()):
        assert torch.equal(merged.read(weight, device).cpu(), numbers)
        assert torch.equal(merged.read(weight.part(0, [(1, 3)]), device).cpu(), numbers[1:3])
        assert torch.equal(merged.whole(torch.float32, device).cpu(), numbers)


def test_what_is_merged_into_a_matrix_of_another_width_is_not_lost_with_its_type(gguf: Any) -> None:
    files, _ = gguf
    base = FileOrigin(files.index["half"], WeightReader(), files.index.where)
    weight = Weight("half", "parameter", (4, 8), torch.bfloat16)
    assert base.quant_of(weight) == "F16"
    assert MergedOrigin(base, (Ones(8),)).quant_of(weight) == ""
    with pytest.raises(WeightError, match="has adapters merged into it, and the program was compiled for F16"):
        MergedOrigin(base, (Ones(8),)).read(replace(weight, quant="F16"), CPU)
