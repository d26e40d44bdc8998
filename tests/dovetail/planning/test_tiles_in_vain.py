"""Tiles are not tried for what does not fit without what is decoded, and what is said then is what tiles would say."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.planning.making import Making
from dovetail.planning.planner import Planner

TWO = ("--backend", "cuda0&cuda1", "--params-backend", "device", "--no-auto-fit")
ASKED: dict[str, tuple[bool, tuple[str, ...]]] = {
    "weights that fit nowhere": (True, ("--rig", "cuda0=16MiB,cuda1=12MiB,cpu=4GiB", *TWO)),
    "a decoder": (False, ("--rig", "cuda0=1GiB,cuda1=16MiB,cpu=4GiB", *TWO, "--backend", "vae=cuda1,cuda0")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ASKED)
def test_what_is_refused_is_the_same_without_trying_tiles(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_in_vain, words = ASKED[case]
    runs: list[None] = []
    own = Planner.traced_somewhere

    def traced(*args: object) -> object:
        runs.append(None)
        return own(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "traced_somewhere", traced)
    quick = CliRunner().invoke(app, ["plan", "--steps", "1", "--size", "512", *words])
    count = len(runs)
    monkeypatch.setattr(Making, "_would_tiles_fail", lambda *_: False)
    tried = CliRunner().invoke(app, ["plan", "--steps", "1", "--size", "512", *words])
    assert quick.exit_code == tried.exit_code
    assert (count < len(runs) - count) == is_in_vain
    if is_in_vain:
        assert quick.exit_code == 3
        one, other = ([line for line in some.output.splitlines() if " so far" not in line] for some in (quick, tried))
        assert one == other
