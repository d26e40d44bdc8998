"""Device names, rigs and sizes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device, canonical_name
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.probe import Probed, probe_host
from dovetail.compiler.devices.rig import Rig, _found, reserve_of
from dovetail.compiler.errors import NotHereError, SpecError
from dovetail.compiler.spec import parse_backend, parse_budget
from dovetail.compiler.units import GIB, MIB, exact_bytes, format_bytes, parse_bytes
from dovetail.conventions.request import Request, one_backend

TWO_CARDS = Rig.parse("cuda0=24GiB,cuda1=16GiB")

devices = st.builds(Device, st.sampled_from(["cpu", "mps"]), st.just(0), st.integers(0, 9)) | st.builds(
    Device, st.sampled_from(["cuda", "xpu", "sim"]), st.integers(0, 99), st.integers(0, 9)
)
names = devices.map(str)


@st.composite
def rigs(draw: st.DrawFn) -> Rig:
    """Rigs of a few devices with any memory."""
    sizes = {}
    drawn = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    macs = {one.process for one in map(Device.named, drawn) if one.kind == "mps"}
    for name in (
        one for one in drawn if Device.named(one).process not in macs or ("cuda" not in one and "xpu" not in one)
    ):
        total = draw(st.integers(1, 2**45))
        sizes[name] = draw(st.just(total) | st.integers(0, total)), total
    return Rig.of(**sizes)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("cuda:0", "cuda0"),
        ("CUDA0", "cuda0"),
        ("cuda", "cuda0"),
        ("Cuda:1", "cuda1"),
        ("sim3", "sim3"),
        ("sim", "sim0"),
        ("mps", "mps"),
        ("mps:0", "mps"),
        ("xpu1", "xpu1"),
        ("CPU", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda01", "cuda1"),
        (torch.device("cuda", 1), "cuda1"),
        (torch.device("cpu"), "cpu"),
        (" cuda0 ", "cuda0"),
        ("1/CUDA:2", "1/cuda2"),
        ("0/cuda2", "cuda2"),
        ("2/cpu", "2/cpu"),
        ("cu", "cu"),
        (1, "1"),
    ],
)
def test_a_device_has_one_name_and_many_spellings(spelling: object, name: str) -> None:
    assert canonical_name(spelling) == name


@given(st.text(max_size=12) | names)
def test_canonical_names_stay_as_they_are(text: str) -> None:
    once = canonical_name(text)
    assert canonical_name(once) == once


@given(devices)
def test_a_device_is_read_back_from_its_name_whatever_its_process(device: Device) -> None:
    assert Device.named(device.name) == device
    assert canonical_name(device) == device.name
    rig = Rig({device: Memory(GIB, GIB)})
    assert rig.find(device.name.upper()) == device
    assert parse_backend(device.name).devices_for("", "", rig) == (device,)
    assert parse_budget({device.name: "1MiB"}).limits(rig) == {device: MIB}


def test_a_device_of_another_process_is_not_here() -> None:
    rig = Rig.parse("sim0=16MiB,1/sim0=32MiB,1/cpu=64MiB")
    assert not rig.present
    assert [rig[device].total for device in rig] == [16 * MIB, 32 * MIB, 64 * MIB]
    with pytest.raises(SpecError, match="no device is called '2/sim0'"):
        rig.find("2/sim0")
    with pytest.raises(SpecError, match="1/sim1 has no size"):
        Rig.parse("1/sim1")


@given(rigs())
def test_a_rig_is_read_back_from_its_text(rig: Rig) -> None:
    assert Rig.parse(str(rig)) == rig


def test_the_rig_of_this_machine_ends_with_the_host_and_is_present() -> None:
    rig = Rig.detect()
    assert rig.devices[-1].is_host
    assert rig.present
    assert 0 < rig[rig.host].free <= rig[rig.host].total
    assert Rig.parse(str(rig)).present


def test_the_hosts_free_memory_is_a_part_of_all_of_it() -> None:
    total, free = probe_host()
    assert total > 256 * MIB
    assert 0 <= free <= total


def test_a_rig_of_the_host_and_simulated_devices_can_run_here() -> None:
    assert Rig.parse("sim0=2GiB,sim1=1GiB,cpu").present


def test_a_rig_with_a_device_that_is_not_here_is_for_planning_only() -> None:
    assert not Rig.parse("cuda0=24GiB,xpu99=1GiB").present
    assert not Rig.parse("sim0=1GiB").with_device(Device("xpu", 99), Memory(GIB, GIB)).present


def test_a_rig_may_say_how_much_of_the_memory_is_free() -> None:
    assert Rig.parse("cuda0=9.5GiB/24GiB")[Device("cuda")] == Memory(24 * GIB, 9728 * MIB)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cuda1", "cuda1"),
        ("CUDA:1", "cuda1"),
        ("cuda", "cuda0"),
        ("1", "cuda1"),
        (0, "cuda0"),
        ("cp", "cpu"),
        ("sim7", "sim7"),
        (torch.device("cuda:1"), "cuda1"),
        (Device("cuda", 1), "cuda1"),
    ],
)
def test_devices_are_found_by_spelling_beginning_and_number(text: object, name: str) -> None:
    assert TWO_CARDS.find(text).name == name


def test_a_unique_beginning_is_enough() -> None:
    rig = Rig.parse("cuda0=8GiB,xpu0=8GiB,cpu")
    assert [rig.find(text).name for text in ("x", "cud", "CP")] == ["xpu0", "cuda0", "cpu"]


def test_an_ambiguous_beginning_names_the_candidates() -> None:
    with pytest.raises(SpecError, match="'cud' may be cuda0 or cuda1"):
        TWO_CARDS.find("cud")


def test_an_unknown_device_is_answered_with_what_is_there_and_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        TWO_CARDS.find("cuda7")
    assert "cuda0 (24.0 GiB), cuda1 (16.0 GiB)" in str(caught.value)
    assert caught.value.nearest in ("cuda0", "cuda1")
    assert caught.value.exit_code == 2


def test_simulated_devices_are_as_large_as_the_host_unless_told() -> None:
    assert TWO_CARDS[TWO_CARDS.find("sim0")].total == TWO_CARDS[TWO_CARDS.host].total
    assert Rig.parse("sim0=1GiB")[Device("sim")].total == GIB


def test_a_device_is_added_to_a_rig_once() -> None:
    rig = TWO_CARDS.with_device("sim0").with_device("sim0").with_device("cuda1")
    assert [device.name for device in rig] == ["cuda0", "cuda1", "sim0"]


def test_the_automatic_device_is_a_gpu_then_an_integrated_one_then_the_host() -> None:
    card, chip, host = Device("cuda", 1), Device("cuda"), Device("cpu")
    rig = Rig({host: Memory(8, 8), chip: Memory(8, 8, integrated=True), card: Memory(8, 8)})
    assert rig.auto == card
    assert rig.only((host, chip)).auto == chip
    assert rig.only((host,)).auto == host


@pytest.mark.parametrize("name", ["1/cuda0", "2/cpu", "1/sim3"])
def test_a_device_of_another_process_has_no_torch_device_here(name: str) -> None:
    with pytest.raises(NotHereError, match=f"{name} is a device of process {name[0]}"):
        _ = Device.named(name).torch


def test_a_device_knows_its_torch_device() -> None:
    assert Device("cpu").torch == torch.device("cpu")
    assert Device("cuda", 1).torch == torch.device("cuda", 1)
    assert Device("mps").torch == torch.device("mps", 0)


def test_a_device_is_the_same_whatever_its_memory_and_another_one_in_another_process() -> None:
    (first,), (second,) = Rig.parse("cuda0=1GiB/24GiB"), Rig.parse("cuda0=8GiB")
    assert first == second == Device.named("cuda0")
    assert hash(first) == hash(second)
    assert Device("cuda", process=1) != first
    assert Device("cuda", process=1).name != first.name


def test_what_may_be_used_of_a_device_says_what_keeps_the_rest() -> None:
    memory = Memory(24 * GIB, 20 * GIB, reserve=2 * GIB)
    assert memory.within(30 * GIB) == Memory(24 * GIB, 18 * GIB)
    assert memory.within(6 * GIB).why == "a budget leaves 6.0 GiB of 20.0 GiB"
    assert memory.within(6 * GIB).less(GIB, "1.0 GiB are held by others") == Memory(24 * GIB, 5 * GIB)
    assert memory.within(6 * GIB).less(GIB, "others").why == "a budget leaves 6.0 GiB of 20.0 GiB, others"


@pytest.mark.parametrize(
    ("text", "start", "message"),
    [
        ("", 0, "no devices"),
        ("cuda0", 0, "cuda0 has no size"),
        ("cuda0=24GiB,gpu1=2", 12, "'gpu1' is not the name"),
        ("cuda0=lots", 6, "'lots' is not a size"),
        ("cuda0=0", 6, "cannot have '0'"),
        ("cuda0=9/8", 6, "cannot have '9/8'"),
        ("cuda0=1,CUDA:0=2", 8, "cuda0 stands twice"),
        ("mps1=4GiB", 0, "'mps1' is not the name"),
        ("cuda0=-4", 6, "not a size"),
    ],
)
def test_a_wrong_rig_is_refused_at_the_place(text: str, start: int, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        Rig.parse(text)
    assert caught.value.start == start


@given(st.integers(0, 2**60))
def test_exact_sizes_are_read_back(size: int) -> None:
    assert parse_bytes(exact_bytes(size)) == size
    assert len(exact_bytes(size)) <= len(f"{size}B")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6", 6 * GIB),
        ("6GiB", 6 * GIB),
        ("800MiB", 800 * MIB),
        ("0.5g", GIB // 2),
        ("10GB", 10**10),
        ("7 kb", 7000),
        (".5", GIB // 2),
    ],
)
def test_sizes_are_read_with_and_without_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "6 apples", "1e9999", "0x10", "6,5", "-1", "²"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a size"):
        parse_bytes(text)


def test_sizes_are_printed_for_people_to_one_decimal() -> None:
    assert [format_bytes(size) for size in (0, 1023, 2048, 11.3 * GIB, 2**41)] == [
        "0 B",
        "1023 B",
        "2.0 KiB",
        "11.3 GiB",
        "2.0 TiB",
    ]


class FakeCards:
    """What torch.cuda answers on a machine with four cards; notes whose memory was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 4

    def get_device_properties(self, index: int) -> object:
        return SimpleNamespace(total_memory=24 * GIB, name="card", is_integrated=False)

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.asked.append(index)
        return 8 * GIB, 24 * GIB

    def memory_reserved(self, index: int) -> int:
        return 5 * GIB

    def memory_allocated(self, index: int) -> int:
        return 2 * GIB


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> FakeCards:
    cards = FakeCards()
    monkeypatch.setattr(torch, "cuda", cards)
    return cards


@pytest.mark.parametrize(
    ("backend", "asked"),
    [
        ("cpu", []),
        ("cuda2", [2]),
        ("auto", [0]),
        ("sim0", []),
        ("te=cpu,cuda0&cuda3", [0, 3]),
        ("balanced", [0, 1, 2, 3]),
    ],
)
def test_only_cards_that_are_named_are_asked_for_their_memory(cards: FakeCards, backend: str, asked: list[int]) -> None:
    Request.parse(backend=backend)
    assert cards.asked == asked


def test_a_rig_of_real_names_asks_no_card_for_its_memory(cards: FakeCards) -> None:
    assert Rig.parse("cuda0=24GiB,cuda1=16GiB").present
    assert cards.asked == []


def offered(**limits: int) -> int:
    (free,) = Request.parse(backend="cuda1", **limits).rig_for().free.values()
    return free


def test_what_pytorch_caches_counts_as_free_and_a_part_is_kept_for_kernels(
    cards: FakeCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Rig.detect()[Device("cuda", 1)].free == 11 * GIB
    assert offered() == 11 * GIB - 24 * GIB // 20 - 6 * GIB // 10
    monkeypatch.setenv("DOVETAIL_RESERVE", "1GiB")
    assert offered() == 10 * GIB
    monkeypatch.setenv("DOVETAIL_RESERVE", "0")
    assert offered(max_vram=4) == 4 * GIB


def test_the_host_and_simulated_devices_keep_nothing_for_kernels() -> None:
    assert reserve_of("cpu", GIB) == reserve_of("sim", GIB) == 0


def test_device_map_auto_means_that_a_placement_is_searched() -> None:
    assert one_backend(None, "auto") == "auto"
    assert one_backend("auto", None) == "auto"


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "cpu", "sim"])
def test_one_rule_says_what_is_reserved_of_a_device_that_is_found_typed_or_given(kind: str) -> None:
    found = _found(Probed(kind, 0, 24 * GIB, 20 * GIB, "card", False))[1]
    typed = Rig.parse(f"{kind}0=20GiB/24GiB" if kind not in ("cpu", "mps") else f"{kind}=20GiB/24GiB")
    given = Rig.of(**{kind: (20 * GIB, 24 * GIB)})
    (device,) = given
    assert found.reserve == typed[device].reserve == given[device].reserve
    assert found.within(24 * GIB).free == typed[device].within(24 * GIB).free == given[device].within(24 * GIB).free


def test_a_rig_that_is_printed_and_read_back_offers_what_was_found(cards: FakeCards) -> None:
    found = Rig.detect()
    again = Rig.parse(str(found))
    assert {one: size.within(size.free).free for one, size in again.memory.items()} == {
        one: size.within(size.free).free for one, size in found.memory.items()
    }


def test_the_reserve_of_the_environment_holds_for_a_typed_rig_and_not_for_the_host_or_simulated_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = "cuda0=24GiB,sim0=1GiB,cpu=32GiB"

    def offers() -> list[int]:
        request = Request.parse(backend="cuda0&sim0&cpu", rig=rig)
        return list(request.rig_for().free.values())

    assert offers() == [24 * GIB - 24 * GIB // 20 - 6 * GIB // 10, GIB, 30 * GIB]
    monkeypatch.setenv("DOVETAIL_RESERVE", "2GiB")
    assert offers() == [22 * GIB, GIB, 30 * GIB]


def test_a_small_device_keeps_a_quarter_and_a_budget_is_what_it_says() -> None:
    request = Request.parse(backend="cuda0&cpu", rig="cuda0=80MiB,cpu=4GiB", max_vram="cuda0=16MiB,cpu=2GiB")
    assert list(request.rig_for().free.values()) == [16 * MIB, 2 * GIB]
    request = Request.parse(backend="cuda0&cpu", rig="cuda0=80MiB,cpu=4GiB")
    assert list(request.rig_for().free.values()) == [80 * MIB - 24 * MIB, 3 * GIB]


def test_a_card_in_the_place_of_a_size_has_its_own() -> None:
    """As it has without the name of a device: `RTX 4090,64GiB`."""
    assert str(Rig.parse("cuda0=RTX 4090,cpu=64GiB")) == str(Rig.parse("cuda0=24GiB@RTX 4090,cpu=64GiB"))
    assert str(Rig.parse("cuda1=rtx 3090 nvlink")) == str(Rig.parse("cuda1=24GiB@RTX 3090 NVLink"))
    assert Rig.parse("xpu0=iGPU,cpu=32GiB")[Device("xpu")].integrated
    with pytest.raises(SpecError, match="'RTX 4095' is not a size"):
        Rig.parse("cuda0=RTX 4095")


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("2x RTX 3090 NVLnk,64GiB", "NVLnk"),
        ("cuda0=24GiB@RTX 3090 NVLnk", "NVLnk"),
        ("4x RTX 3090 banana NVLink", "banana"),
        ("RTX 3090 Super", "Super"),
    ],
)
def test_a_word_beside_a_card_that_means_nothing_is_refused(text: str, odd: str) -> None:
    with pytest.raises(SpecError, match=f"'{odd}' means nothing beside the name of a card"):
        Rig.parse(text)


@pytest.mark.parametrize("text", ["2 RTX 3090,64GiB", "2x RTX 3090,64GiB", "2 × NVIDIA GeForce RTX 3090 24GiB,64GiB"])
def test_a_number_before_a_card_is_how_many_there_are(text: str) -> None:
    assert Rig.parse(text) == Rig.parse("cuda0=24GiB@RTX 3090,cuda1=24GiB@RTX 3090,cpu=64GiB")
