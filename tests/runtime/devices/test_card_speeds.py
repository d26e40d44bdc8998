"""Cards that are here are measured once: on a simulated device, and with a stand-in for the measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.measured_speeds import measured_before
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed
from dovetail.runtime import sim
from dovetail.runtime.devices import card_speeds
from dovetail.runtime.devices.card_speeds import key_of, labels_here, measure_card, measure_peer, measured_cards, scaled

GIB = 2**30
FOUND = Speed({"float32": 1e12, "float16": 4e12}, 5e11, 2e10, 1e-5, "measured", {"float16": 3e12}, 1e10)


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    card_speeds.forget()
    yield
    card_speeds.forget()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.device, torch.device | None]]:
    """A stand-in for the measurement, which notes what it was asked for."""
    found: list[tuple[torch.device, torch.device | None]] = []

    def measure(device: torch.device) -> Speed:
        found.append((device, None))
        return replace(FOUND, peer=0.0)

    def measure_peer(device: torch.device, twin: torch.device) -> float:
        found.append((device, twin))
        return PEERS[device.index, twin.index]

    monkeypatch.setattr(card_speeds, "measure_card", measure)
    monkeypatch.setattr(card_speeds, "measure_peer", measure_peer)
    monkeypatch.setattr(card_speeds, "labels_here", lambda: LABELS)
    return found


PEERS = {(0, 1): 4e10, (0, 2): 1e10, (0, 3): 0.0, (2, 3): 2e10}
"""The bytes a second of a copy between two cards, by their numbers."""

LABELS: dict[Device, str] = {}
"""What the drivers call the cards that are here: those of the last rig."""


def rig_of(*labels: str, free: int = 8 * GIB) -> Rig:
    cards = {Device("cuda", index): Memory(24 * GIB, free, label=label) for index, label in enumerate(labels)}
    LABELS.clear()
    LABELS.update({device: memory.label for device, memory in cards.items()})
    return Rig({**cards, Device("cpu"): Memory(64 * GIB, 64 * GIB), Device("sim"): Memory(GIB, GIB)})


def test_a_device_is_measured_in_all_that_predictions_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_speeds, "_LARGE", 2**16)
    monkeypatch.setattr(card_speeds, "_SIZES", (64,))
    sim.enable()
    before = torch.get_device_module("sim").memory_allocated(0)
    found = measure_card(torch.device("sim", 0))
    assert set(found.flops) == {"float32", "bfloat16", "float16"}
    assert set(found.attention) == {"bfloat16", "float16"}
    numbers = (*found.flops.values(), *found.attention.values(), found.bandwidth, found.link, found.launch)
    assert all(one > 0 for one in numbers)
    assert found.peer == 0
    assert measure_peer(torch.device("sim", 0), torch.device("sim", 1)) > 0
    assert found.spread == 0
    assert torch.get_device_module("sim").memory_allocated(0) == before


def test_cards_of_one_name_are_measured_once_and_kept(calls: list[object]) -> None:
    rig = rig_of("RTX 3090", "RTX 3090", "RTX 3060")
    found = measured_cards(rig)
    assert set(found) == {Device("cuda", index) for index in range(3)}
    first, second, third = (torch.device("cuda", index) for index in range(3))
    pairs = [(first, None), (first, second), (third, None)]
    assert calls == pairs
    assert found[Device("cuda")].label == "RTX 3090"
    card_speeds.forget()
    assert measured_cards(rig)[Device("cuda")].flops == FOUND.flops
    assert calls == pairs, "the file has them"
    assert measured_before(key_of("RTX 3060")) is not None


def test_the_rate_between_two_cards_is_that_of_these_two(calls: list[object]) -> None:
    rig = rig_of(*["RTX 3090"] * 4)
    assert [speed.peer for speed in measured_cards(rig).values()] == [4e10, 4e10, 1e10, 0.0]
    card_speeds.forget()
    calls.clear()
    pair = Rig({device: rig[device] for device in rig if device.index >= 2 or device.is_host})
    assert [speed.peer for speed in measured_cards(pair).values()] == [2e10, 2e10]
    assert calls == [(torch.device("cuda", 2), torch.device("cuda", 3))]
    alone = Rig({device: rig[device] for device in rig if device.index == 1 or device.is_host})
    assert [speed.peer for speed in measured_cards(alone).values()] == [0.0]


def test_what_cards_are_called_is_asked_of_drivers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    monkeypatch.setattr(Rig, "detect", lambda measured=None: asked.append(None) or Rig())
    labels_here.cache_clear()
    assert (labels_here(), labels_here()) == ({}, {})
    assert len(asked) == 1
    labels_here.cache_clear()


@pytest.mark.parametrize("value", ["0", "off"])
def test_nothing_is_measured_where_that_was_switched_off(
    value: str, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_MEASURE", value)
    assert measured_cards(rig_of("RTX 3090")) == {}
    assert not calls


def test_a_card_that_nobody_named_is_not_measured_but_what_is_kept_of_it_counts(calls: list[object]) -> None:
    unasked = rig_of("RTX 3090", free=24 * GIB)
    assert measured_cards(unasked) == {}
    assert not calls
    measured_cards(rig_of("RTX 3090"))
    card_speeds.forget()
    assert measured_cards(unasked)[Device("cuda")].flops == FOUND.flops


def test_a_full_card_a_foreign_one_and_a_rig_elsewhere_are_predicted(calls: list[object]) -> None:
    assert measured_cards(rig_of("RTX 3090", free=0)) == {}
    assert measured_cards(Rig.parse("cuda0=24GiB@RTX 3090")) == {}
    assert measured_cards(Rig({Device("cuda", 0, 1): Memory(GIB, GIB, label="RTX 3090")})) == {}
    assert not calls


def test_a_driver_that_raises_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Speed:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(card_speeds, "measure_card", broken)
    monkeypatch.setattr(card_speeds, "labels_here", lambda: LABELS)
    assert measured_cards(rig_of("RTX 3090")) == {}


def test_a_card_that_is_typed_where_another_one_is_here_is_predicted(calls: list[object]) -> None:
    rig = rig_of("RTX 3090", "RTX 3060")
    LABELS.update({Device("cuda", 0): "NVIDIA H100 80GB HBM3", Device("cuda", 1): "NVIDIA GeForce RTX 3060"})
    assert list(measured_cards(rig)) == [Device("cuda", 1)]
    assert measured_before(key_of("NVIDIA GeForce RTX 3060")) is not None, "kept under what it is called here"
    assert len(calls) == 1


def test_a_speed_scales_by_what_a_profile_found() -> None:
    slower = scaled(FOUND, 2.0, 4.0)
    assert (slower.flops["float32"], slower.attention["float16"], slower.link) == (5e11, 1.5e12, 5e9)
    assert slower.seconds(1e12, 0, "float32") == pytest.approx(2 * FOUND.seconds(1e12, 0, "float32"))
    with pytest.raises(ValueError, match="cannot be"):
        scaled(FOUND, 0.0)
