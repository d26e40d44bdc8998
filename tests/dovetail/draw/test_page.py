"""The page of pictures, read as text: what is in it, that it needs nothing else, and that names in it are data."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import dovetail
from dovetail import demo
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.errors import PassError
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.draw import page
from dovetail.draw.page.head import others_of
from dovetail.draw.page.nodes import graph_of
from dovetail.draw.page.over_time import LAYERS, of_call
from dovetail.fitting.others import Other
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.simulate.profile import profile
from dovetail.planning.packed import InType
from dovetail.planning.table import Account
from tests.dovetail.draw.models import stack

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "]]>\u2028a",
]


class Read(HTMLParser):
    """The scripts of a page, its elements, and every address that it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def data_of(text: str) -> list[Any]:
    return [json.loads(script) for script in Read(text).scripts[:-1]]


@pytest.mark.parametrize("options", [{}, {"split_mode": "row"}, {"params_backend": "cpu"}], ids=str)
def test_the_page_has_every_operation_and_every_byte_that_crosses(options: dict[str, str]) -> None:
    program = stack(**options).program
    data, graph = data_of(page({"model": program}))
    names = [node.name for segment in program.segments for node in segment.nodes]
    assert graph["name"] == names
    assert data["programs"][0]["operations"] == len(names)
    crosses = sum(crossing["bytes"] for crossing in dovetail.draw.document(program)["crossings"])
    assert data["programs"][0]["crosses"] == sum(one[-1] for one in graph["crossings"]) == crosses


def test_segments_and_blocks_of_the_page_cover_the_operations_once() -> None:
    program = stack().program
    graph = graph_of(program, speeds_of(program.rig))
    for ranges in (graph["segments"], graph["blocks"]):
        assert [one[2] for one in ranges] == [0, *(one[3] for one in ranges[:-1])]
        assert ranges[-1][3] == len(graph["name"])


def test_an_operation_has_shape_weights_split_and_source() -> None:
    program = stack(split_mode="row").program
    graph = graph_of(program, speeds_of(program.rig))
    texts = graph["texts"]
    at = next(i for i, split in enumerate(graph["split"]) if texts[split])
    assert texts[graph["split"][at]].startswith("sim0: 0–")
    assert texts[graph["type"][at]].startswith("float32[4, ")
    assert texts[graph["weights"][at][0]].startswith("blocks.0.up.weight [512, 256] float32")
    assert "models.py" in texts[graph["source"][at]]


def test_no_peak_is_lost_in_the_drawing_of_memory() -> None:
    program = stack(8, params_backend="cpu").program
    drawn = of_call(program, profile(program, speeds_of(program.rig)))
    for device, usage in simulate(program).items():
        columns = drawn[device.name]
        assert max(map(sum, zip(*(columns[layer] for layer in LAYERS), strict=True))) == usage.total


def test_the_page_needs_no_other_file_and_allows_no_other_script() -> None:
    text = page({"model": stack().program})
    found = Read(text)
    assert not [1 for tag, given in found.elements if "src" in given or (tag == "link")]
    assert not re.search(r"url\(|@import", text)
    policy = next(given["content"] for tag, given in found.elements if "http-equiv" in given)
    digest = base64.b64encode(hashlib.sha256(found.scripts[-1].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_data(name: str) -> None:
    program = stack(2).program
    plain = [tag for tag, _ in Read(page({"model": program})).elements]
    for node in program.graph.nodes:
        node.name = f"{name}{node.name}"
    text = page({name: program}, title=name, line=name)
    assert [tag for tag, _ in Read(text).elements] == plain
    data, graph = data_of(text)
    assert data["title"] == data["line"] == data["programs"][0]["name"] == name
    assert graph["name"][0].startswith(name)


def test_a_program_that_was_not_cut_is_refused() -> None:
    program = stack(2).base
    assert program is not None
    with pytest.raises(PassError, match="run the passes up to cut first"):
        page({"model": program})


@pytest.mark.slow
def test_a_compiled_pipeline_shows_a_call_of_it(tmp_path: Path) -> None:
    pipe = dovetail.load_pipeline(demo.folder(), backend="sim0&sim1", rig="sim0=64MiB,sim1=64MiB")
    shown = pipe.dovetail.show("a red circle", **{**demo.CALL_DEFAULTS, "num_inference_steps": 3})
    data = data_of(shown)[0]
    calls = {one["name"]: one["calls"] for one in data["programs"]}
    assert data["head"]["words"] == ["64 × 64", "3 steps", "float32"]
    assert data["head"]["step"].endswith("s")
    assert data["others"] == [], "nothing was searched"
    assert [*calls][:3] == ["text_encoder", "text_encoder_2", "transformer"]
    assert sum(count for name, count in calls.items() if name.startswith("transformer")) == 2 * 3
    assert calls["vae.decode"] == 1
    assert data["picture"]["marks"][-1][0] == "vae"
    for device in data["devices"]:
        columns = data["picture"]["devices"][device["name"]]
        assert max(map(sum, zip(*(columns[layer] for layer in LAYERS), strict=True))) == device["peak"]
    assert shown._repr_html_().startswith("<iframe srcdoc=")
    assert "<script" not in shown._repr_html_()
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shown


def test_the_head_says_in_which_types_weights_are_and_who_planned() -> None:
    data = data_of(page({"model": stack().program}))[0]
    assert data["head"]["words"] == ["float32"]
    assert data["head"]["step"] == ""
    assert data["head"]["made"].startswith(f"dovetail {dovetail.__version__}, 20")
    assert data["others"] == []


def test_other_plans_stand_beside_the_one_that_was_taken_the_quickest_first() -> None:
    found = [Other(f"over cuda{number}", 10.0 + number) for number in range(1, 8)]
    decision = SimpleNamespace(solution=SimpleNamespace(seconds=10.0), others=found[::-1], choices=(), quicker=None)
    packed = [InType(("transformer",), "Q8_0", 5.0)]
    account = SimpleNamespace(decision=decision, seconds=20.0, spread=0.0, packed=packed)
    rows = others_of(cast("Account", account))
    assert [one["what"] for one in rows[:3]] == ["this plan", "transformer in Q8_0", "over cuda1"]
    assert [(one["takes"], one["longer"]) for one in rows[:3]] == [("20 s", 0), ("10 s", -50), ("22 s", 10)]
    assert len(rows) == 6
    account.packed, decision.others = [], []
    assert others_of(cast("Account", account)) == [], "a plan alone is compared with nothing"


def test_weights_of_a_phase_are_no_weights_that_stay() -> None:
    program = stack(8, params_backend="cpu", rig="sim0=1GiB,sim1=1GiB").program
    program.keeps_staged = True
    Lower().run(program)
    drawn = of_call(program, profile(program, speeds_of(program.rig)))
    loads = [one for one in program.schedule or () if isinstance(one, Load)]
    assert {one.lifetime for one in loads} == {Lifetime.PHASE}
    for columns in drawn.values():
        assert max(columns["resident"]) == 0
        assert columns["phase"][-1] > 0


@pytest.mark.slow
def test_weights_that_two_calls_of_a_component_read_count_once() -> None:
    pipe = dovetail.load_pipeline(demo.folder(), backend="sim0", dtype=demo.DTYPE)
    generation = pipe.dovetail.plan("a red circle", **demo.CALL_DEFAULTS)
    calls, account = generation.calls, pipe.dovetail.account(generation)
    once, twice = (
        page({f"{n} {call.title}": call.program for n, call in enumerate(some)}, account)
        for some in (calls, calls + calls)
    )
    assert data_of(twice)[0]["weights"] == data_of(once)[0]["weights"] > 0
