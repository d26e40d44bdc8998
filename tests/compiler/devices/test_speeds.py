"""What is known of the speed of devices."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dovetail.compiler.devices import measured_speeds
from dovetail.compiler.devices.cards import CARDS, Card, card_of, card_of_size, joined_name
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.measured_speeds import keep_speed, measured_before, measured_host, read_speeds
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import HOST_SPEED, Speed, of_card, speeds_of
from dovetail.compiler.errors import SpecError


@pytest.fixture(autouse=True)
def _measure_anew() -> None:
    measured_host.cache_clear()


SLOW = Speed({"float32": 1e9, "bfloat16": 2e9, "float16": 3e9}, 4e9, 2e9, 1e-6, "measured")


def test_weights_come_to_several_devices_at_once_but_by_one_root_and_from_one_memory() -> None:
    rig = Rig.parse("2x RTX 3090,64GiB")
    cards, host = [one for one in rig if one != rig.host], rig.host
    speeds = speeds_of(rig)
    link = speeds[cards[0]].link
    wide = replace(speeds, devices={**speeds.devices, host: replace(speeds[host], bandwidth=2 * link)})
    seconds = {cards[0]: 3.0, cards[1]: 2.0}
    assert wide.bringing(host, seconds) == 3.0
    assert replace(wide, roots=dict.fromkeys(cards, "root0")).bringing(host, seconds) == 5.0
    narrow = replace(speeds, devices={**speeds.devices, host: replace(speeds[host], bandwidth=link / 2)})
    assert narrow.bringing(host, seconds) == pytest.approx(5.0)
    assert narrow.bringing(host, {cards[0]: 3.0}) == pytest.approx(3.0)
    assert speeds.bringing(host, {}) == 0


@pytest.mark.parametrize(("cards", "rate"), [(1, 40e9), (2, 40e9), (4, 80e9), (8, 160e9)])
def test_a_host_that_is_not_here_has_memory_for_the_slots_of_its_board(cards: int, rate: float) -> None:
    rig = Rig.parse(f"{cards}x RTX 3090,256GiB")
    assert speeds_of(rig)[rig.host].bandwidth == rate


def test_every_listed_card_is_found_by_its_name() -> None:
    assert [card_of(f"NVIDIA GeForce {card.name}") for card in CARDS] == list(CARDS)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla T4", "T4"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("Tesla P40", "P40"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("AMD Instinct MI300A", "MI300A"),
        ("Apple M2 Max", "Apple M2 Max"),
    ],
)
def test_pytorchs_names_of_cards_are_known(label: str, name: str) -> None:
    found = card_of(label)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("RTX3090", "RTX 3090"),
        ("rtx4090 24GB", "RTX 4090 24GB"),
        ("2xrtx4090", "2x RTX 4090"),
        ("2xRTX4070TiSuper,64GiB", "2x RTX 4070 Ti SUPER,64GiB"),
        ("rx7900xtx + Rtx3060", "RX 7900 XTX + RTX 3060"),
        ("rtx2060 12gb", "RTX 2060 12 GB"),
        ("2xRTX3090 NVLink", "2x RTX 3090 NVLink"),
        ("cuda0=24GiB@rtx3090 no p2p", "cuda0=24GiB@RTX 3090 no P2P"),
        ("ArcA770", "Arc A770"),
    ],
)
def test_names_of_cards_may_be_typed_without_blanks(text: str, same: str) -> None:
    assert str(Rig.parse(text)) == str(Rig.parse(same))
    assert "@" in str(Rig.parse(text))


def test_no_two_cards_have_one_name_without_blanks() -> None:
    assert len({joined_name(card.name) for card in CARDS}) == len(CARDS)


def test_an_unnamed_gpu_that_shares_the_hosts_memory_is_no_card() -> None:
    rig = Rig.parse("mps=32GiB")
    speed = speeds_of(rig)[Device("mps")]
    assert speed.label == "like Apple M2 Pro"
    assert speed.rate("float16") < 10e12
    assert speed.link == of_card(card_of_size(32, "mps")).link, "it has no slot"


def test_an_unnamed_card_is_taken_for_a_common_one_of_its_size() -> None:
    assert [card_of_size(size).name for size in (8, 10, 11, 12, 16, 23.6, 24, 500)] == [
        "RTX 3070", "RTX 3080", "RTX 2080 Ti", "RTX 4070", "RTX 4070 Ti SUPER", "RTX 3090", "RTX 3090", "MI300X",
    ]  # fmt: skip


def test_a_typed_rig_has_a_slow_link_and_the_stated_host() -> None:
    rig = Rig.parse("cuda0=24GiB,cpu=64GiB,cuda1=1GiB")
    speeds = speeds_of(rig, SLOW)
    assert speeds[Device("cuda")].link == 12e9
    assert speeds[Device("cpu")] == HOST_SPEED
    assert speeds.crossing(Device("cuda"), Device("cpu")) == 12e9
    assert speeds.loading(Device("cuda"), from_disk=True) == speeds.disk


def test_a_rig_may_name_a_card() -> None:
    rig = Rig.parse("cuda0=23GiB/24GiB@RTX 3090, cuda1=12GiB@rtx-3060")
    assert [memory.label for memory in rig.memory.values()] == ["RTX 3090", "RTX 3060"]
    assert speeds_of(rig)[Device("cuda")].label == "RTX 3090"
    assert str(rig) == "cuda0=23GiB/24GiB@RTX 3090,cuda1=12GiB@RTX 3060"
    assert Rig.parse(str(rig)) == rig


def test_a_detected_card_is_known_by_its_label_and_the_host_here_as_measured() -> None:
    memory = {Device("cuda"): Memory(24 << 30, 20 << 30, label="NVIDIA GeForce RTX 3090"), Device("cpu"): Memory(1, 1)}
    speeds = speeds_of(Rig(memory), SLOW)
    assert speeds[Device("cuda")].flops["bfloat16"] == pytest.approx(0.9 * 71.2e12)
    assert speeds[Device("cpu")] == SLOW


def test_simulated_devices_rehearse_cards_of_their_size() -> None:
    speeds = speeds_of(Rig.parse("sim0=16GiB,cuda0=16GiB"), SLOW)
    assert speeds[Device("sim")] == speeds[Device("cuda")]


def test_a_card_without_units_for_bfloat16_computes_it_as_float32() -> None:
    speed = speeds_of(Rig.parse("cuda0=11GiB@RTX 2080 Ti"))[Device("cuda")]
    assert speed.seconds(1e12, 0, "bfloat16") == speed.seconds(1e12, 0, "float32") > speed.seconds(1e12, 0, "float16")


def test_an_operation_takes_as_long_as_the_slower_of_arithmetic_and_memory() -> None:
    speed = Speed({"float32": 100.0}, 10.0, 1.0, 0.5)
    assert speed.seconds(1000, 10, "float32") == 10.5
    assert speed.seconds(10, 1000, "float32") == 100.5


@pytest.mark.parametrize(
    "name",
    "P40|P100|GTX 1070|GTX 1080|GTX 1660|RTX 2060 12 GB|RTX 2070|RTX 3060 Ti|RTX 3070 Ti|RTX 5000 Ada|RTX 4500 Ada|"
    "RTX 4000 Ada|RTX PRO 6000|RX 9070 XT|RX 7800 XT|Radeon PRO W7900|MI50|MI100|MI210|MI300A|GB10|GH200|Apple M4 Max|"
    "Arc A770|iGPU".split("|"),
)
def test_a_rig_may_name_cards_old_and_new(name: str) -> None:
    rig = Rig.parse(f"cuda0=8GiB@{name}")
    assert rig[Device("cuda")].label == name
    assert Rig.parse(str(rig)) == rig


def test_an_unknown_card_is_answered_with_where_the_names_are() -> None:
    with pytest.raises(SpecError, match="dovetail devices --cards"):
        Rig.parse("cuda0=8GiB@Voodoo 2")


def test_an_integrated_card_beside_another_one_is_planned_and_comes_last() -> None:
    rig = Rig.parse("xpu0=16GiB@iGPU,cuda0=12GiB,cpu=32GiB")
    assert rig[Device("xpu")].integrated
    assert not rig[Device("cuda")].integrated
    assert rig.gpus == (Device("cuda"), Device("xpu"))
    slow, fast = (speeds_of(rig)[one] for one in (Device("xpu"), Device("cuda")))
    assert slow.rate("float16") < 0.1 * fast.rate("float16")


def test_convolutions_have_a_rate_of_their_own_where_it_was_measured() -> None:
    speed = replace(SLOW, flops={"float32": 1e12, "float16": 8e12}, convolution={"float16": 2e12})
    assert speed.rate("float16", convolution=True) == 2e12
    assert speed.rate("float32", convolution=True) == 1e12
    assert speed.rate("float16") == replace(speed, convolution={}).rate("float16", convolution=True) == 8e12


def test_attention_has_a_rate_of_its_own() -> None:
    speed = speeds_of(Rig.parse("cuda0=80GiB@H100"))[Device("cuda")]
    product, attention = (speed.seconds(1e15, 0, "bfloat16", one) for one in (False, True))
    assert product < 0.7 * attention


def test_two_cards_reach_each_other_by_nvlink_by_the_slot_or_through_the_host() -> None:
    rates = []
    for name in ("H100", "L40S", "RTX 4090"):
        speeds = speeds_of(Rig.parse(f"cuda0=24GiB@{name},cuda1=24GiB@{name}"))
        one, other = Device("cuda"), Device("cuda", 1)
        rates.append((speeds.crossing(one, other), speeds[one].link))
    (nvlink, slot), (direct, pcie), (around, own) = rates
    assert nvlink > 5 * slot
    assert direct == pcie
    assert around == own / 2, "there and back"


def test_a_rig_may_say_how_its_cards_reach_each_other() -> None:
    rates = []
    for way in (" NVLink", " P2P", "", " no P2P"):
        rig = Rig.parse(f"2x RTX 3090{way},64GiB")
        assert Rig.parse(str(rig)) == rig
        assert str(Rig.parse(str(rig))) == str(rig)
        speeds = speeds_of(rig)
        rates.append(speeds.crossing(Device("cuda"), Device("cuda", 1)) / speeds[Device("cuda")].link)
    bridge, slot, usual, around = rates
    assert bridge == pytest.approx(56.2 / 31.5)
    assert slot == 1
    assert usual == around == 0.5
    assert str(rig) == "cuda0=24GiB@RTX 3090 no P2P,cuda1=24GiB@RTX 3090 no P2P,cpu=64GiB"
    assert Rig.parse("24GiB RTX 3090 nvlink, RTX 3090 NVLink 23GiB")[Device("cuda", 1)].way == "NVLink"


def test_a_bridge_that_no_two_cards_of_a_kind_have_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"no NVLink joins two RTX 4090[\s\S]*P2P, no P2P, or a card that has it: RTX 3090"
    ):
        Rig.parse("2x RTX 4090 NVLink,64GiB")
    assert speeds_of(Rig.parse("2x H100 NVLink,64GiB"))[Device("cuda")].peer == of_card(card_of("H100")).peer  # type: ignore[arg-type]


def test_what_a_rig_says_of_its_links_counts_before_what_was_measured() -> None:
    rig = Rig(dict(Rig.parse("2x RTX 3090 no P2P,64GiB").memory))
    measured = {device: replace(SLOW, peer=5e9) for device in rig.gpus}
    assert speeds_of(rig, SLOW, measured=measured)[Device("cuda")].peer == 0


def test_cards_of_two_models_copy_through_the_host_unless_both_may_use_the_slot() -> None:
    speeds = speeds_of(Rig.parse("cuda0=24GiB@RTX 3090,cuda1=12GiB@RTX 3060,cuda2=48GiB@L40S,cuda3=80GiB@H100"))
    assert speeds.crossing(Device("cuda"), Device("cuda", 1)) < speeds[Device("cuda")].link
    assert speeds.crossing(Device("cuda", 2), Device("cuda", 3)) == speeds[Device("cuda", 2)].link


def test_only_what_was_measured_is_certain() -> None:
    rig = Rig.parse("cuda0=24GiB@RTX 3090,cpu=64GiB")
    speeds = speeds_of(rig)
    assert 0 < speeds.spread(rig.devices) <= 0.25
    here = Rig({Device("cuda"): Memory(24 << 30, 1, label="RTX 3090"), Device("cpu"): Memory(1, 1)})
    measured = speeds_of(here, SLOW, measured={Device("cuda"): SLOW})
    assert measured.spread(here.devices) == 0
    assert measured[Device("cuda")] == SLOW
    assert speeds_of(rig, SLOW, measured={Device("cuda"): SLOW})[Device("cuda")] != SLOW, "the rig is elsewhere"


def test_a_card_without_bfloat16_says_so_by_its_rates() -> None:
    rig = Rig.parse("cuda0=11GiB@RTX 2080 Ti,cuda1=24GiB@RTX 3090,cuda2=8GiB@GTX 1080,cpu=64GiB")
    assert [speeds_of(rig)[device].lacks_bfloat16 for device in rig] == [True, False, False, False]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_no_card_is_slower_in_float16_than_in_float32(card: Card) -> None:
    speed = of_card(card)
    assert speed.rate("float16") >= speed.rate("float32") >= speed.rate("float32", True)
    assert speed.rate("float16", True) >= speed.rate("float32", True)


def test_what_was_measured_of_a_card_is_kept_with_its_links_and_attention(tmp_path: Path) -> None:
    file, convolution = tmp_path / "speeds.json", {"float16": 4e9}
    speed = replace(SLOW, attention={"float16": 5e9}, peer=7e9, convolution=convolution)
    assert keep_speed(file, "card", speed)
    kept = measured_before("card", file)
    assert kept is not None
    assert (kept.flops, kept.attention, kept.peer, kept.link) == (SLOW.flops, {"float16": 5e9}, 7e9, SLOW.link)
    assert kept.convolution == convolution
    assert measured_before("another", file) is None


def test_the_host_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "speeds.json"
    first = measured_host(file)
    monkeypatch.setattr(measured_speeds, "measure_host", lambda: pytest.fail("measured again"))
    measured_host.cache_clear()
    again = measured_host(file)
    assert (dict(again.flops), again.bandwidth) == (dict(first.flops), first.bandwidth)
    assert all(value > 0 for value in first.flops.values())


def test_a_processor_is_timed_at_no_larger_products_than_show_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without units for a dtype takes a thousand times as long in it."""
    sizes: list[torch.Size] = []

    def timed(work: Callable[[], object], *_: object) -> float:
        made = work()
        sizes.extend([made.shape] if isinstance(made, torch.Tensor) and made.ndim == 2 else [])
        return 1.0

    monkeypatch.setattr(measured_speeds, "best_of", timed)
    measured_speeds.measure_host()
    assert sizes == [torch.Size([8, 1024])] * 3


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"float32": "x"}}', "[" * 100_000, " " * 70_000])
def test_a_damaged_file_counts_as_empty(text: str, tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    file.write_text(text)
    assert read_speeds(file) == {}


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan"), float("inf")])
def test_an_impossible_speed_is_not_taken(value: float, tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    entry = {"float32": 1.0, "bfloat16": 1.0, "float16": value, "bandwidth": 1.0, "launch": 1.0}
    file.write_text(json.dumps({"host": entry}))
    assert read_speeds(file) == {}


GOOD: dict[str, object] = {"float32": 1e11, "bandwidth": 1e10, "launch": 1e-5}


@pytest.mark.parametrize(
    "bad",
    [
        None,
        3,
        [],
        "x",
        {},
        {**GOOD, "float32": 0},
        {**GOOD, "float32": 1e-300},
        {**GOOD, "bandwidth": 1e300},
        {**GOOD, "launch": 1e300},
        {**GOOD, "launch": True},
        {**GOOD, "link": 1e-300},
        {**GOOD, "peer": float("nan")},
        {**GOOD, "peer": -5},
        {**GOOD, "attention": 3},
        {**GOOD, "convolution": {"float16": "much"}},
        {**GOOD, "attention": {"float16": 1e-9}},
    ],
)
def test_one_bad_entry_leaves_the_good_ones(bad: object, tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    file.write_text(json.dumps({"first": GOOD, "bad": bad, "last": {**GOOD, "peer": 0}}))
    assert list(read_speeds(file)) == ["first", "last"]


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_speeds, "measure_host", lambda: SLOW)
    for number in range(40):
        monkeypatch.setattr(measured_speeds, "_key", lambda number=number: f"host {number}")
        measured_host.cache_clear()
        measured_host(tmp_path / "speeds.json")
    kept = read_speeds(tmp_path / "speeds.json")
    assert len(kept) == 32
    assert "host 39" in kept


def test_a_place_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_speeds, "measure_host", lambda: SLOW)
    (tmp_path / "file").write_text("")
    assert measured_host(tmp_path / "file" / "speeds.json") == SLOW
