"""The options that ask for the placement that programs have, for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ...compiler.ir.program import Program
from ...compiler.spec.residency import Residency
from ...passes.rewrites.chunk import chunks_of


def command_for(programs: Mapping[str, Program], folder: str = "MODEL_FOLDER") -> str:
    """The command that makes these placements of a pipeline in a folder; programs are named by their components."""
    settings = settings_of(programs)
    words = [word for option, value in settings.items() for word in (option, value)]
    return " ".join(["dovetail plan", shlex.quote(folder), *map(shlex.quote, words)])


def settings_of(programs: Mapping[str, Program]) -> dict[str, str]:
    """The options, as far as they differ from what is done without them."""
    parts = {name.partition(".")[0]: one for name, one in programs.items()}
    resting = {name: one.kept for name, one in parts.items() if one.kept is not Residency.DEVICE}
    chunks = {name: chunks_of(one) for name, one in parts.items()}
    rows = {name: "row" for name, one in parts.items() if one.is_sliced}
    found = {
        "--backend": {name: "&".join(map(str, one.devices)) for name, one in parts.items()},
        "--split-mode": rows,
        "--params-backend": {name: one.value for name, one in resting.items()},
        "--chunk": {name: str(count) for name, count in chunks.items() if count > 1},
    }
    settings = {option: ",".join(f"{k}={v}" for k, v in values.items()) for option, values in found.items() if values}
    rigs = {str(device): str(one.rig.only((device,))) for one in parts.values() for device in one.devices}
    return settings | {"--rig": ",".join(rigs.values())}
