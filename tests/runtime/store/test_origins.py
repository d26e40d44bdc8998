"""Weights out of files of another machine, by a table: the same bits, and no module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.origin_table import OriginTable
from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.components.weights.module_view import ModuleView
from dovetail.runtime.store.origin import HOST, MergedOrigin, RoundedOrigin, TensorOrigin
from dovetail.runtime.store.origins import located, origins_in, origins_of, to_send
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.stored_weight import Numbers, StoredWeight
from testbed import published
from testbed.zoo.everything import TINY
from testbed.zoo.wide import WIDE

from ...dovetail.weights.weight_files import save_gguf

CHILD, ROOT = Path(__file__).with_name("origins_case.py"), Path(__file__).parents[3]
Written = Callable[[nn.Module, Path], object]


def copied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.contiguous().clone() for name, one in state.items()}


def as_is(module: nn.Module, folder: Path) -> None:
    save_file(copied(module.state_dict()), folder / "model.safetensors")


def in_parts(module: nn.Module, folder: Path) -> None:
    """Two files of equal size count as two, though both are asked for by size alone first."""
    state = sorted(module.state_dict().items())
    for number in range(2):
        save_file(copied(dict(state[number::2])), folder / f"part-{number}.safetensors")


def as_published_q8(module: nn.Module, folder: Path) -> None:
    save_gguf(published.sd3(dict(module.state_dict())), folder / "model.gguf", "Q8_0")


@dataclass(frozen=True)
class Case:
    """A model of the zoo, how its weights are written, and how it is compiled."""

    name: str
    zoo: Any
    write: Written
    options: dict[str, Any]


SPREAD = {"backend": "sim0&sim1"}
CASES = {
    "layer split": Case("FluxTransformer2DModel", TINY, as_is, {**SPREAD, "tensor_split": "2,1"}),
    "row split": Case("SD3Transformer2DModel", WIDE, as_is, {**SPREAD, "split_mode": "row", "tensor_split": "9,7"}),
    "quantized": Case("SD3Transformer2DModel", TINY, as_published_q8, SPREAD),
    "quantized rows": Case(
        "SD3Transformer2DModel", WIDE, as_published_q8, {**SPREAD, "split_mode": "row", "tensor_split": "9,7"}
    ),
    "from disk": Case("UNet2DConditionModel", TINY, in_parts, {**SPREAD, "params_backend": "disk"}),
    "an encoder on the host": Case("CLIPTextModel", TINY, as_is, {"backend": "cpu"}),
}


@dataclass(frozen=True)
class Saved:
    """A compiled module, and what is in the folder that the other process is given."""

    compiled: CompiledModule
    call: dict[str, Any]
    table: OriginTable
    folder: Path


def compiled(case: Case, place: Path) -> Saved:
    """Saves the weights of a case, compiles it with them, and saves its text, table and inputs; moves the weights."""
    module, call = case.zoo[case.name].make(torch.float32)
    before, folder = place / "before", place / "there"
    for new in (before, folder):
        new.mkdir(parents=True)
    case.write(module, before)
    made = dovetail.compile(module, kwargs=call, weights=sorted(before.iterdir()), **case.options)
    assert made._weights is not None
    table = made._weights.origins()
    made.save(folder / "plan.json")
    (folder / "table.json").write_text(table.to_json())
    inputs = made.program.signature.flatten((), call)
    save_file({str(at): one.contiguous().clone() for at, one in enumerate(inputs)}, folder / "inputs.safetensors")
    shutil.copytree(before, folder / "files")
    return Saved(made, call, table, folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    """All cases, each run by one other process."""
    made = {name: compiled(case, tmp_path_factory.mktemp("case")) for name, case in CASES.items()}
    words = [sys.executable, str(CHILD), *(str(one.folder) for one in made.values())]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_another_process_computes_the_same_bits_from_text_table_and_files(saved: dict[str, Saved], name: str) -> None:
    one = saved[name]
    expected = [x for x in pytree.tree_leaves(one.compiled(**one.call)) if isinstance(x, torch.Tensor)]
    results = load_file(one.folder / "results.safetensors")
    found = [results[at] for at in sorted(results, key=int)]
    assert len(found) == len(expected)
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(expected, found, strict=True))


@pytest.mark.fifth
@pytest.mark.parametrize("name", CASES)
def test_what_no_file_has_is_listed_and_nothing_else(saved: dict[str, Saved], name: str) -> None:
    one = saved[name]
    sent = to_send(one.compiled.program, one.table)
    assert sent == [weight.name for weight in one.compiled.program.weights.values() if not weight.persistent]
    assert {*sent, *one.table.weights} == {*one.compiled.program.weights}


def test_cases_have_what_they_are_for(saved: dict[str, Saved]) -> None:
    packed = {name: {one.quant for one in saved[name].table.weights.values()} for name in saved}
    assert all(("Q8_0" in packed[name]) == name.startswith("quantized") for name in saved)
    assert all(bool(saved[name].compiled.program.bounds) == name.endswith(("row split", "rows")) for name in saved)
    assert any(len(one.pieces) > 1 or one.pieces[0][1] for one in saved["quantized"].table.weights.values())
    assert saved["from disk"].compiled.program.residency
    assert len(saved["from disk"].table.files) == 2
    assert to_send(saved["an encoder on the host"].compiled.program, saved["an encoder on the host"].table)


@pytest.fixture
def net(tmp_path: Path) -> tuple[nn.Module, Program, WeightIndex]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).eval()
    save_file(dict(module.state_dict()), tmp_path / "net.safetensors")
    program = dovetail.compile(module, (torch.ones(2, 4),), backend="cpu").program
    return module, program, WeightIndex.of_file(tmp_path / "net.safetensors")


def test_a_file_that_is_not_here_is_one_clear_error(net: Any, tmp_path: Path) -> None:
    _, program, index = net
    table = ProgramWeights.of_files(index, program).origins()
    nbytes = (tmp_path / "net.safetensors").stat().st_size
    with pytest.raises(WeightError, match=f"none of 0 files here is net.safetensors of {nbytes} bytes.*: copy it to"):
        ProgramWeights.of_origins(table, program, [])


def test_what_somebody_wrote_into_a_module_is_sent_and_not_read_from_the_file(net: Any) -> None:
    module, program, index = net
    assert to_send(program, ProgramWeights.of_module(module, program).origins()) == list(program.weights)
    module.to("meta")
    view = ModuleView(module, origins_of(index))
    weights = view.of_program(module, program)
    assert to_send(program, weights.origins()) == []
    for weight in program.weights.values():
        weights(weight, HOST)
    assert to_send(program, weights.origins()) == []
    with torch.no_grad():
        module[1].weight.mul_(2)
        module[0].bias.data.copy_(torch.full((4,), 9.0))
    assert to_send(program, weights.origins()) == ["0.bias", "1.weight"]


def test_numbers_that_are_rounded_are_read_so_and_those_that_are_merged_are_sent(net: Any, tmp_path: Path) -> None:
    _, _, index = net
    file = origins_of(index)["0.weight"]
    rounded = RoundedOrigin(file, (torch.bfloat16, torch.float16))
    origins = {
        "file": file,
        "rounded": rounded,
        "merged": MergedOrigin(file, ()),
        "tensor": TensorOrigin(torch.ones(4)),
    }
    origins["both"] = RoundedOrigin(MergedOrigin(file, ()), (torch.float16,))
    like = torch.empty(4, 4, device="meta")
    weights = {name: StoredWeight(name, like, Numbers(origin=one)) for name, one in origins.items()}
    table = OriginTable.of(located(weights))
    assert [*table.weights] == ["file", "rounded"]
    found = origins_in(table, [tmp_path / "net.safetensors"])
    for name, one in found.items():
        assert torch.equal(one.whole(torch.float32, HOST), origins[name].whole(torch.float32, HOST))


def test_files_of_any_index_give_a_table_and_the_table_gives_the_same_weights(net: Any, tmp_path: Path) -> None:
    _, program, index = net
    table = ProgramWeights.of_files(index, program).origins()
    assert {*table.weights} == {*program.weights}
    there = tmp_path / "there" / "other name"
    there.parent.mkdir()
    shutil.copy(tmp_path / "net.safetensors", there)
    found = ProgramWeights.of_origins(table, program, [there])
    for weight in program.weights.values():
        assert torch.equal(found(weight, HOST), ProgramWeights.of_files(index, program)(weight, HOST))
    assert found.origins() == table.model_copy(update={"files": (renamed(table, there.name),)})


def renamed(table: OriginTable, name: str) -> Any:
    (file,) = table.files
    return file.model_copy(update={"name": name})
