"""What the cards of this machine reach is measured in seconds, and lies near what the table of cards says of them."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.devices.cards import card_of
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import of_card
from dovetail.runtime.devices.card_speeds import measure_card, measure_peer, measured_cards
from testbed.gpu import accelerators, groups

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("cards", groups(accelerators()), ids=" and ".join)
def test_a_card_is_measured(cards: list[str]) -> None:
    device, *others = (Device.named(name) for name in cards)
    found = measure_card(device.torch)
    print(device, found)
    kinds = found.flops, found.attention, found.convolution
    numbers = (*(rate for kind in kinds for rate in kind.values()), found.bandwidth, found.link, found.launch)
    assert all(one > 0 for one in numbers)
    assert "float16" in found.flops
    assert not others or measure_peer(device.torch, others[0].torch) > 0
    card = card_of(Rig.detect(cards)[device].label)
    if card is not None:
        assert 0.3 < found.rate("float16") / of_card(card).rate("float16") < 3


def test_every_card_of_this_machine_has_a_measured_speed_afterwards() -> None:
    rig = Rig.detect()
    found = measured_cards(rig)
    assert set(found) == {device for device in rig if not device.is_host}
    assert all(torch.device(device.kind).type == device.kind and one.spread == 0 for device, one in found.items())
