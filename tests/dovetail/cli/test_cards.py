"""`dovetail devices --cards`: the cards that a rig may name, and what is known of them."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.devices.cards import CARDS


def test_the_cards_are_listed_within_eighty_columns() -> None:
    found = CliRunner().invoke(app, ["devices", "--cards"])
    lines = found.stdout.splitlines()
    assert found.exit_code == 0
    assert len(lines) == 1 + len(CARDS)
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(card.name) for line, card in zip(lines[1:], CARDS, strict=True))


def test_the_cards_are_data_too_with_the_source_of_what_they_reach() -> None:
    found = json.loads(CliRunner().invoke(app, ["devices", "--cards", "--json"]).stdout)["cards"]
    assert [one["name"] for one in found] == [card.name for card in CARDS]
    assert all(one["reached"]["source"] for one in found)
    assert all(0 < one["reached"]["attention"] <= 1 and 0 < one["reached"]["products"] <= 1 for one in found)


def test_a_rig_beside_the_cards_is_a_mistake() -> None:
    found = CliRunner().invoke(app, ["devices", "--cards", "--rig", "cuda0=8GiB"])
    assert found.exit_code == 2
    assert "takes no rig" in found.stderr
