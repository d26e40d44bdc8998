"""Devices and rigs as other programs and people write them."""

import pytest

from dovetail.compiler.devices.device import Device, canonical_name
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import SpecError
from dovetail.compiler.spec import parse_backend
from dovetail.conventions.request import Request
from dovetail.fitting.asked import budgets_of


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("1x24GiB,64GiB", "cuda0=24GiB,cpu=64GiB"),
        ("4x24GiB", "cuda0=24GiB,cuda1=24GiB,cuda2=24GiB,cuda3=24GiB"),
        ("2x24GiB,64GiB", "cuda0=24GiB,cuda1=24GiB,cpu=64GiB"),
        ("2 x RTX 3090, 64GiB", "cuda0=24GiB@RTX 3090,cuda1=24GiB@RTX 3090,cpu=64GiB"),
        ("RTX 4090 + RTX 3060", "cuda0=24GiB@RTX 4090,cuda1=12GiB@RTX 3060"),
        ("RTX 4090,RTX 3060,64GiB", "cuda0=24GiB@RTX 4090,cuda1=12GiB@RTX 3060,cpu=64GiB"),
        ("24GB,24GB", "cuda0=24GB,cuda1=24GB"),
        ("16GiB+10GiB,cpu=64GiB", "cuda0=16GiB,cuda1=10GiB,cpu=64GiB"),
        ("cuda0:24GiB", "cuda0=24GiB"),
        ("cuda:1:24GiB@RTX 3090", "cuda1=24GiB@RTX 3090"),
        ("cuda0=24GiB,16GiB", "cuda0=24GiB,cuda1=16GiB"),
        ("RTX 3060 8GiB,32GiB", "cuda0=8GiB@RTX 3060,cpu=32GiB"),
        ("2x12GiB@RTX 3060", "cuda0=12GiB@RTX 3060,cuda1=12GiB@RTX 3060"),
        ("20GiB/24GiB", "cuda0=20GiB/24GiB"),
        ("sim0=1GiB,RTX 3090", "sim0=1GiB,cuda0=24GiB@RTX 3090"),
        ("ROCm0=24GiB,cpu=8GiB", "cuda0=24GiB,cpu=8GiB"),
    ],
)
def test_a_rig_may_be_written_as_people_write_it(typed: str, means: str) -> None:
    found, meant = Rig.parse(typed), Rig.parse(means)
    assert (found, str(found)) == (meant, str(meant))


@pytest.mark.parametrize(
    "typed", ["4x", "x24GiB", "0x24GiB", "100x24GiB", "1000x24GiB", "24", "RTX 9999", "2xsim0=1GiB", "4x4x24GiB"]
)
def test_what_nobody_understands_in_a_rig_is_pointed_at(typed: str) -> None:
    with pytest.raises(SpecError) as error:
        Rig.parse(f"cuda5=1GiB,{typed}")
    assert error.value.text[error.value.start :].startswith(typed[:1])


@pytest.mark.parametrize(
    ("name", "device"), [("ROCm0", "cuda0"), ("HIP1", "cuda1"), ("SYCL0", "xpu0"), ("Metal", "mps"), ("MTL0", "mps")]
)
def test_names_of_other_programs_are_those_of_pytorch(name: str, device: str) -> None:
    assert canonical_name(name) == device
    rig = Rig.parse(f"{device}=8GiB")
    assert rig.find(name) == Device.named(device)
    with pytest.raises(SpecError, match=f"which PyTorch calls {device}"):
        Rig.parse("sim0=1GiB").find(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Vulkan0", "does not use Vulkan"),
        ("sequential", "device map of accelerate"),
        ("balanced_low_0", "device map of accelerate"),
        ("ram", "host memory is called cpu"),
    ],
)
def test_what_pytorch_does_not_have_is_answered_with_what_it_has(name: str, told: str) -> None:
    rig = Rig.parse("cuda0=8GiB")
    with pytest.raises(SpecError, match=told):
        parse_backend(name).devices_for("vae", "vae", rig)


def test_vulkan_and_ram_are_answered_in_a_rig_too() -> None:
    with pytest.raises(SpecError, match="does not use Vulkan"):
        Rig.parse("Vulkan0=8GiB")
    with pytest.raises(SpecError, match="host memory is called cpu"):
        Rig.parse("cuda0=8GiB,RAM=64GiB")


def test_a_rig_that_cannot_exist_is_refused_in_one_sentence() -> None:
    with pytest.raises(SpecError, match="no machine has mps and cuda0"):
        Rig.parse("cuda0=12GiB,mps=16GiB,cpu=32GiB")
    assert len(Rig.parse("1/cuda0=12GiB,mps=16GiB").devices) == 2, "which are of two machines"


def test_the_memory_of_a_mac_in_a_rig_is_the_hosts_too() -> None:
    rig = Rig.parse("mps=64GiB")
    assert rig[rig.host].total == rig[rig.host].free == 64 * 2**30
    named = Rig.parse("mps=64GiB,cpu=32GiB")
    assert named[named.host].total == 32 * 2**30


@pytest.mark.parametrize("rig", ["mps=64GiB", "Radeon 8060S", "mps=4GiB"])
@pytest.mark.parametrize("budget", [None, "cpu=2GiB"])
def test_the_host_of_shared_memory_has_one_size_for_the_search_and_for_the_check(rig: str, budget: str | None) -> None:
    request = Request.parse(rig=rig, max_vram=budget)
    found, granted = budgets_of(request)[0], request.granted
    host = granted.host
    assert found.of(host) == granted[host].free
    assert found.of(host) <= (2 * 2**30 if budget else request.rig[host].total)


def test_a_size_in_the_name_of_a_card_is_no_size_of_its_own() -> None:
    rig = Rig.parse("RTX 2060 12 GB,Iris Xe")
    (card, other) = rig.devices
    assert (rig[card].label, rig[card].total) == ("RTX 2060 12 GB", 12 * 2**30)
    assert other.kind == "xpu"
