"""What a process runs that has a program's text, a table of its weights and files of its own: no module, no model code.

It is given folders, and writes the results into each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dovetail.compiler.checkpoints.origin_table import OriginTable
from dovetail.compiler.ir.schedule import Schedule
from dovetail.compiler.text.plan_file import load_plan
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.lowering.verification import Verify
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights


def run(folder: Path) -> None:
    """Runs a saved program on saved inputs."""
    program, _, tensors = load_plan(folder / "plan.json")
    PassManager((Lower(), Verify())).run(program)
    schedule = program.schedule
    assert isinstance(schedule, Schedule)
    table = OriginTable.of_json((folder / "table.json").read_bytes())
    weights = ProgramWeights.of_origins(table, program, sorted((folder / "files").iterdir()), tensors)
    assert weights.missing(program) == []
    executor = Executor(program, schedule)
    executor.bind(weights)
    inputs = load_file(folder / "inputs.safetensors")
    found = executor([inputs[str(number)].to(program.main.torch) for number in range(len(inputs))])
    results = {str(at): one.cpu().contiguous() for at, one in enumerate(found) if isinstance(one, torch.Tensor)}
    save_file(results, folder / "results.safetensors")


if __name__ == "__main__":
    sim.enable()
    for name in sys.argv[1:]:
        run(Path(name))
    foreign = {name.split(".")[0] for name in sys.modules} & {"diffusers", "transformers", "testbed", "accelerate"}
    own = {name.split(".")[1] for name in sys.modules if name.startswith("dovetail.")}
    assert not foreign, foreign
    assert own <= {"compiler", "passes", "runtime"}, own
