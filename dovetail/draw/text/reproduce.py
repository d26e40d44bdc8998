"""The command that paints with a placement, to be copied: that of a plan, or of programs."""

from __future__ import annotations

from collections.abc import Mapping

from ...compiler.ir.program import Program
from ...compiler.spec.residency import Residency
from ...conventions.copied import FOLDER, generate_line
from ...passes.batches.divide import micro_batches_asked
from ...passes.rewrites.chunk import chunks_of
from ...passes.states.states import has_short_terms, split_mode_of


def command_for(programs: Mapping[str, Program], folder: str = FOLDER) -> str:
    """The command that paints with these placements of a pipeline; programs are named by their components."""
    return generate_line(folder, settings_of(programs))


def settings_of(programs: Mapping[str, Program]) -> dict[str, str]:
    """The options, as far as they differ from what is done without them."""
    parts = {name.partition(".")[0]: one for name, one in programs.items()}
    resting = {name: one.kept for name, one in parts.items() if one.kept is not Residency.DEVICE}
    chunks = {name: chunks_of(one) for name, one in parts.items()}
    parts_of = {name: micro_batches_asked(one) for name, one in parts.items()}
    modes = {name: split_mode_of(one) for name, one in parts.items()}
    found = {
        "--backend": {name: "&".join(map(str, one.devices)) for name, one in parts.items()},
        "--split-mode": {name: mode for name, mode in modes.items() if mode != "layer"},
        "--params-backend": {name: one.value for name, one in resting.items()},
        "--chunk": {name: str(count) for name, count in chunks.items() if count > 1},
        "--micro-batches": {name: str(count) for name, count in parts_of.items() if count > 1},
    }
    is_short = any(map(has_short_terms, parts.values()))
    settings = {option: ",".join(f"{k}={v}" for k, v in values.items()) for option, values in found.items() if values}
    rigs = {str(device): str(one.rig.only((device,))) for one in parts.values() for device in one.devices}
    is_here = all(one.rig.present for one in parts.values())
    settings |= {"--bf16-partials": ""} if is_short else {}
    return settings | ({"--rig": ",".join(rigs.values())} if is_here else {})
