from __future__ import annotations

import pytest

from dovetail.cli.options.shared import Where
from dovetail.jobs.replicas.automatic import automatic
from dovetail.jobs.replicas.sharing import names_of
from dovetail.jobs.runner import Opening

CALL = {"prompt": "a cat", "num_inference_steps": 1}


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(("where", "devices"), [
    (Where(rig=f"{','.join(f'sim{index}=18MiB' for index in range(5))},cpu=64GiB"), ["sim0 & sim1", "sim2 & sim3"]),
    (Where(rig="sim0=64MiB,sim1=18MiB,sim2=18MiB,cpu=64GiB"), ["sim0", "sim1 & sim2"]),
    (Where(rig="sim0=10MiB,sim1=10MiB,cpu=64GiB"), ["sim0 & sim1"]),  # where weights come and go
    (Where(rig="cpu=64GiB"), ["cpu"]),
    (Where(rig="sim0=64MiB,cpu=64GiB"), ["sim0"]),
    (Where(backend="sim0+sim1+sim2"), ["sim0", "sim1", "sim2"]),
    (Where(backend="sim0+sim1", clip_on_cpu=True, rig="sim0=64MiB,sim1=64MiB,sim2=64MiB,cpu=64GiB"), ["sim0", "sim1"]),
])  # fmt: skip
def test_there_are_as_many_replicas_as_cards_hold_whole_copies(where: Where, devices: list[str]) -> None:
    each = automatic(Opening(where=where), CALL)
    assert names_of(each) == [f"replica {number} on {name}" for number, name in enumerate(devices, start=1)]
