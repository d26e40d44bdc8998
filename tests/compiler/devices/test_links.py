"""How the devices of a rig reach one another, as its text says it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.links import Links, Way
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rates import Rates
from dovetail.compiler.devices.rig import Rig, joined_links
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.errors import SpecError

TWO = "cuda0=24GiB@RTX 3090,cuda1=24GiB@RTX 3090"
CARDS = [Device("cuda", index, process) for process in (0, 1) for index in (0, 1, 2)]
FIRST, SECOND, THIRD, FAR = CARDS[0], CARDS[1], CARDS[2], CARDS[3]

ways = st.sampled_from(["NVLink", "P2P", "no P2P"]).map(Way) | st.floats(1e-3, 1e5).map(lambda rate: Way(rate=rate))

teras = st.floats(1e-3, 1e5)


@st.composite
def rigs(draw: st.DrawFn) -> Rig:
    """Six cards of two processes, some of whose pairs have ways, and some of which share roots."""
    within = [(one, other) for one, other in combinations(CARDS, 2) if one.process == other.process]
    pairs = draw(st.lists(st.sampled_from(within), unique=True, max_size=5))
    roots = {one: f"{draw(st.sampled_from('ab'))}{one.process}" for one in CARDS} if draw(st.booleans()) else {}
    network = {frozenset((0, 1)): Way(rate=draw(st.floats(1e-3, 1e3)))} if draw(st.booleans()) else {}
    rates = draw(st.dictionaries(st.sampled_from(CARDS), st.builds(Rates, teras, teras), max_size=3))
    links = Links({frozenset(pair): draw(ways) for pair in pairs}, network, roots, rates)
    return Rig({one: Memory(2**34, 2**34, label="RTX 3090") for one in CARDS}, links=links.only(CARDS))


@given(rigs())
def test_a_rig_with_links_reads_back(rig: Rig) -> None:
    assert Rig.parse(str(rig)) == rig
    assert str(Rig.parse(str(rig))) == str(rig)


@given(rigs(), st.sets(st.sampled_from(CARDS), min_size=1))
def test_a_part_of_a_rig_has_the_links_within_it(rig: Rig, some: set[Device]) -> None:
    part = rig.only(sorted(some, key=CARDS.index))
    assert part.links.ways == {pair: way for pair, way in rig.links.ways.items() if pair <= some}
    assert set(part.links.roots) <= some
    assert all(list(part.links.roots.values()).count(root) > 1 for root in part.links.roots.values())
    assert Rig.parse(str(part)) == part


@given(rigs(), st.sets(st.sampled_from(CARDS), min_size=1))
def test_links_of_several_rigs_are_joined(rig: Rig, some: set[Device]) -> None:
    assert joined_links([rig.only(sorted(some, key=CARDS.index)), rig]) == rig.links


@given(rigs())
def test_a_way_is_the_same_in_both_directions_and_none_is_slower_than_by_the_host(rig: Rig) -> None:
    known = speeds_of(rig)
    for one, other in combinations(CARDS, 2):
        assert known.crossing(one, other) == known.crossing(other, one) > 0
        said = rig.links.ways.get(frozenset((one, other)))
        if said is not None and said.rate:
            assert known.crossing(one, other) == pytest.approx(said.rate * 1e9)


@given(st.text("cuda01-+=@;,r NVLinkP2GBbits/s.5TFLOPS", max_size=40))
def test_any_text_is_a_rig_or_gets_an_error_of_ours(text: str) -> None:
    try:
        rig = Rig.parse(f"{TWO};{text}")
    except SpecError:
        return
    assert Rig.parse(str(rig)) == rig


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("cuda1-cuda0=nvlink", "cuda0-cuda1=NVLink"),
        ("CUDA:0 - cuda:1 = no p2p", "cuda0-cuda1=no P2P"),
        ("cuda0-cuda1=10Gbit", "cuda0-cuda1=1.25GB/s"),
        ("cuda0-cuda1=10 gbit/s", "cuda0-cuda1=1.25GB/s"),
        ("cuda0-cuda1=1GiB/s", "cuda0-cuda1=1.073741824GB/s"),
        ("cuda0-cuda1=5E1GBps", "cuda0-cuda1=50GB/s"),
        ("cuda0 & cuda1 @ Root0", "cuda0+cuda1@root0"),
        ("cuda0@60 tflops", "cuda0@60TFLOPS"),
        ("cuda1 + cuda0 @ 6e1 / 45.5 TFLOP/s", "cuda1+cuda0@60/45.5TFLOPS"),
        ("", ""),
        (";;", ""),
    ],
)
def test_spellings(typed: str, written: str) -> None:
    assert str(Rig.parse(f"{TWO};{typed}")) == TWO + (f";{written}" if written else "")


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ("x", "'x' is no link"),
        ("cuda0-cuda2=P2P", "the rig has no cuda2"),
        ("cuda0-gpu7=P2P", "'gpu7' is not the name of a device"),
        ("cuda0-cuda0=P2P", "does not name two devices"),
        ("cuda0-cuda1-cuda0=P2P", "does not name two devices"),
        ("cuda0=P2P", "does not name two devices"),
        ("cuda0-cpu=1GB/s", "the rig has no cpu"),
        ("cuda0-cuda1=P2P;cuda1-cuda0=NVLink", "stands twice"),
        ("cuda0-cuda1=fast", "'fast' is no way"),
        ("cuda0-cuda1=", "'' is no way"),
        ("cuda0-cuda1=0GB/s", "no link has 0GB/s"),
        ("cuda0-cuda1=1e-310GB/s", "no link has"),
        ("cuda0-cuda1=10Gb/s", "10Gb/s may mean bits or bytes"),
        ("cuda0-cuda1=100 gbps", "may mean bits or bytes"),
        (f"cuda0-cuda1={'9' * 5000}GB/s", "is no way between"),
        ("cuda0-cuda1=1e300TB/s", "no link has"),
        ("r0-r1=10Gbit", "no device of the rig is of process 1"),
        ("r0-r0=10Gbit", "does not name two processes"),
        ("r0-r0=NVLink", "does not name two processes"),
        ("cuda0@root0", "a root is shared by two"),
        ("cuda0+cuda0@root0", "a root is shared by two"),
        ("cuda0+cuda1@", "is no name of a root"),
        ("cuda0+cuda1@a;cuda0+cuda1@b", "stands twice among the roots"),
        ("cuda0@0TFLOPS", "no card computes 0TFLOPS"),
        ("cuda0@1e9TFLOPS", "no card computes"),
        ("cuda0@60TFLOPS;cuda0@50TFLOPS", "what cuda0 computes stands twice"),
        ("cuda2@60TFLOPS", "the rig has no cuda2"),
        ("cuda0@60", "is no name of a root"),
        *((f"cuda0+cuda1@{one}", f"'{one}' is no rate") for one in ("TFLOPS", "nanTFLOPS", "fastTFLOPS", "gflops100")),
    ],
)
def test_what_is_no_link_is_refused_in_our_words(links: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        Rig.parse(f"{TWO};{links}")


def test_a_rate_without_a_number_is_told_how_one_is_typed() -> None:
    with pytest.raises(SpecError, match=r"cuda0\+cuda1@92/104TFLOPS"):
        Rig.parse(f"{TWO};cuda0+cuda1@tflops")


@pytest.mark.parametrize("link", ["cuda0-1/cuda0=50GB/s", "cuda0+1/cuda0@root0"])
def test_devices_of_two_processes_have_a_network_and_nothing_else(link: str) -> None:
    with pytest.raises(SpecError, match=r"by their network|of a process"):
        Rig.parse(f"cuda0=24GiB,1/cuda0=24GiB;{link}")


def test_a_network_is_a_rate() -> None:
    with pytest.raises(SpecError, match="NVLink joins no two processes"):
        Rig.parse("cuda0=24GiB,1/cuda0=24GiB;r0-r1=NVLink")


def test_a_host_has_no_way_of_its_own() -> None:
    with pytest.raises(SpecError, match="the way to the host is that of a card's slot"):
        Rig.parse(f"{TWO},cpu=64GiB;cuda0-cpu=10GB/s")


@pytest.mark.parametrize(
    "cards",
    [
        "cuda0=24GiB,cuda1=24GiB",
        "cuda0=24GiB@RTX 4090,cuda1=24GiB@RTX 4090",
        "cuda0=80GiB@H100,cuda1=80GiB@A100",  # which have NVLink, and none between them
    ],
)
def test_a_bridge_that_cards_do_not_have_is_refused(cards: str) -> None:
    with pytest.raises(SpecError, match="it is not known how fast NVLink is between"):
        Rig.parse(f"{cards};cuda0-cuda1=NVLink")


def test_a_pair_is_joined_and_others_are_not() -> None:
    known = speeds_of(Rig.parse(f"{TWO},cuda2=24GiB@RTX 3090;cuda0-cuda1=NVLink"))
    assert known.crossing(FIRST, SECOND) == pytest.approx(0.76 * 56.2e9)
    assert known.crossing(FIRST, THIRD) == pytest.approx(known[FIRST].link / 2)  # there and back by the host


def test_no_p2p_goes_by_the_host() -> None:
    known = speeds_of(Rig.parse("2x H100;cuda0-cuda1=no P2P"))
    assert known.way(FIRST, SECOND) == 0
    assert known.crossing(FIRST, SECOND) == pytest.approx(known[FIRST].link / 2)


def test_processes_are_joined_by_their_network() -> None:
    without, known = (speeds_of(Rig.parse(f"cuda0=24GiB,1/cuda0=24GiB{end}")) for end in ("", ";r0-r1=10Gbit"))
    assert 1 / known.crossing(FIRST, FAR) == pytest.approx(1 / without.crossing(FIRST, FAR) + 1 / 1.25e9)


def test_devices_of_a_root_share_their_way_to_the_host() -> None:
    rig = Rig.parse(f"{TWO},cuda2=24GiB@RTX 3090;cuda0+cuda1@root0;cuda0-cuda1=P2P")
    known = speeds_of(rig)
    assert known.lanes(rig.host, FIRST) == known.lanes(rig.host, SECOND) == ["to root0"]
    assert known.lanes(FIRST, rig.host) == ["from root0"]
    assert known.lanes(rig.host, THIRD) == known.lanes(FIRST, SECOND) == []
    assert known.lanes(FIRST, THIRD) == ["from root0"]


def test_copies_through_slots_take_roots_where_these_differ_and_bridges_take_none() -> None:
    known = speeds_of(Rig.parse("4x RTX A5000;cuda0+cuda1@root0;cuda2+cuda3@root1;cuda1-cuda2=NVLink"))
    fourth = Device("cuda", 3)
    assert known.lanes(FIRST, SECOND) == []
    assert known.lanes(FIRST, THIRD) == known.lanes(SECOND, fourth) == ["from root0", "to root1"]
    assert known.lanes(SECOND, THIRD) == []


def test_all_copies_out_of_a_device_and_into_one_share_a_way_there_but_those_of_the_host_none() -> None:
    rig = Rig.parse("2x L20,64GiB;cuda0+cuda1@root0")
    known = speeds_of(rig)
    assert known.taken(FIRST, SECOND) == ["out of cuda0", "into cuda1"]
    assert known.taken(rig.host, SECOND) == ["into cuda1", "to root0"]
    assert known.taken(FIRST, rig.host) == ["out of cuda0", "from root0"]


def test_what_a_card_computes_is_what_the_rig_says_of_it() -> None:
    rig = Rig.parse("2x L20,RTX 2080 Ti,64GiB;cuda0+cuda2@60/45TFLOPS")
    known = speeds_of(rig)
    for dtype in ("float16", "bfloat16"):
        assert (known[FIRST].rate(dtype), known[FIRST].rate(dtype, True)) == (60e12, 45e12)
        assert known[FIRST].rate("float32") == known[SECOND].rate("float32")
        assert known[SECOND].rate(dtype) > 60e12
    assert known[THIRD].rate("float16") == 60e12 > known[THIRD].rate("bfloat16")  # which it has no units for
    with pytest.raises(SpecError, match="what the host computes is measured"):
        Rig.parse(f"{TWO},cpu=64GiB;cpu@1TFLOPS")
