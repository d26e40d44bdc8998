"""The page in headless Chromium: folding, searching, hovering, keys, and that it asks for nothing."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dovetail.draw import page
from dovetail.draw.page.over_time import LAYERS
from testbed.browser import Opened, launched, opened, why_not
from tests.dovetail.draw.models import stack

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(page({"transformer": stack(split_mode="row").program, "vae": stack().program}), encoding="utf-8")
    found = opened(browser, file)
    yield found
    assert found.errors == []
    assert found.requests == []


@pytest.fixture
def view(shown: Opened) -> Opened:
    """The page as it is when it was opened: the first component, everything folded."""
    shown.page.get_by_role("tab", name="transformer").click()
    shown.page.get_by_role("button", name="Fold all", exact=True).click()
    shown.page.get_by_role("searchbox").fill("")
    return shown


def rows(view: Opened) -> list[str]:
    return [one.inner_text() for one in view.page.locator("[role=treeitem] > b").all()]


def test_blocks_unfold_into_operations_and_fold_again(view: Opened) -> None:
    folded = rows(view)
    assert folded == ["first", *(f"blocks.{number}" for number in range(6)), "last"]
    view.page.get_by_role("treeitem").nth(1).click()
    assert len(rows(view)) > len(folded)
    view.page.get_by_role("treeitem").nth(1).click()
    assert rows(view) == folded


def test_searching_finds_operations_by_what_they_are(view: Opened) -> None:
    view.page.locator("#title").click()
    view.page.keyboard.press("/")
    view.page.keyboard.type("relu")
    assert view.page.locator(".bar .found").inner_text().startswith("6 of ")
    assert all("relu" in row for row in rows(view))
    view.page.keyboard.press("Escape")
    assert rows(view)[0] == "first"


def test_hovering_tells_shape_type_weights_split_and_source(view: Opened) -> None:
    view.page.get_by_role("searchbox").fill("blocks.0.up.weight")
    view.page.get_by_role("treeitem").first.hover()
    told = view.page.locator(".details").inner_text()
    for word in ("float32[4, 512]", "blocks.0.up.weight [512, 256] float32", "sim0: 0–", "models.py", "aten.linear"):
        assert word in told


def test_the_tree_is_used_by_keys_alone(view: Opened) -> None:
    view.page.get_by_role("tree").focus()
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowDown"):
        view.page.keyboard.press(key)
    chosen = view.page.locator("[role=treeitem][aria-selected=true]")
    assert chosen.get_attribute("aria-level") == "2"
    view.page.keyboard.press("ArrowLeft")
    assert chosen.locator("b").inner_text() == "blocks.0"
    assert chosen.get_attribute("aria-expanded") == "true"
    view.page.keyboard.press("ArrowLeft")
    assert chosen.get_attribute("aria-expanded") == "false"


def test_an_operation_leads_to_those_that_it_reads(view: Opened) -> None:
    view.page.get_by_role("searchbox").fill("relu")
    view.page.get_by_role("treeitem").first.click()
    read = view.page.locator(".details .link").first
    name = read.inner_text()
    read.click()
    assert view.page.locator("[role=treeitem][aria-selected=true] > b").inner_text() == name


def test_a_block_of_the_ribbon_opens_in_the_tree(view: Opened) -> None:
    block = view.page.locator(".ribbon .block").nth(3)
    block.hover()
    assert "operations" in view.page.locator("#tip").inner_text()
    block.click()
    assert view.page.locator("[role=treeitem][aria-selected=true]").get_attribute("aria-expanded") == "true"


def test_blocks_are_gone_through_and_opened_by_keys_alone(view: Opened) -> None:
    view.page.locator(".ribbon").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        view.page.keyboard.press(key)
    told = view.page.locator("#tip").inner_text()
    assert view.page.locator(".block.now").count() == 1
    assert "operations" in told
    view.page.keyboard.press("Enter")
    opened_now = view.page.locator("[role=treeitem][aria-selected=true]")
    assert opened_now.locator("b").inner_text() == told.splitlines()[0]
    view.page.keyboard.press("Escape")
    assert view.page.locator("#tip").is_hidden()


def test_the_time_line_is_gone_through_and_zoomed_by_keys_and_by_dragging(view: Opened) -> None:
    def said() -> str:
        return str(view.page.locator(".timeline").get_attribute("aria-label"))

    whole = said()
    view.page.locator(".timeline").focus()
    view.page.keyboard.press("End")
    assert " to " in view.page.locator("#tip").inner_text()
    view.page.keyboard.press("+")
    assert said() != whole
    assert view.page.evaluate("document.activeElement.classList.contains('timeline')")
    for _ in range(60):
        view.page.keyboard.press("+")
    assert "NaN" not in view.page.locator(".timeline").inner_html()
    view.page.keyboard.press("0")
    assert said() == whole
    box = view.page.locator(".timeline").bounding_box()
    assert box is not None
    view.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 10)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 10)
    view.page.mouse.up()
    assert said() != whole
    view.page.locator(".timeline").dblclick(position={"x": 5, "y": 5})
    assert said() == whole


def test_components_are_chosen_by_arrow_keys(view: Opened) -> None:
    view.page.get_by_role("tab", name="transformer").focus()
    view.page.keyboard.press("ArrowRight")
    assert view.page.get_by_role("tab", name="vae").get_attribute("aria-selected") == "true"


def test_the_theme_is_switched(view: Opened) -> None:
    def background() -> str:
        return str(view.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    before = background()
    view.page.locator("#theme").click()
    assert background() != before
    view.page.locator("#theme").click()
    assert background() == before


def test_nothing_is_wider_than_a_phone(view: Opened) -> None:
    view.page.set_viewport_size({"width": 360, "height": 740})
    assert view.page.evaluate("document.documentElement.scrollWidth") == 360
    assert view.page.get_by_role("link", name="Devices").is_visible()
    view.page.set_viewport_size({"width": 1280, "height": 900})


def test_names_that_look_like_scripts_are_shown_as_they_are(browser: Any, tmp_path: Path) -> None:
    program = stack(2).program
    for node in program.graph.nodes:
        node.name = f"{HOSTILE}{node.name}"
    (tmp_path / "page.html").write_text(page({HOSTILE: program}, title=HOSTILE, line=HOSTILE), encoding="utf-8")
    found = opened(browser, tmp_path / "page.html")
    assert found.page.locator("#title").inner_text() == HOSTILE
    found.page.get_by_role("button", name="Unfold all", exact=True).click()
    assert HOSTILE in found.page.get_by_role("tree").inner_text()
    assert found.page.locator("img").count() == 0
    assert found.errors == []
    assert found.requests == []


def test_the_page_of_a_large_program_has_few_rows(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page({"model": stack(100).program}), encoding="utf-8")
    found = opened(browser, tmp_path / "page.html")
    found.page.get_by_role("button", name="Unfold all", exact=True).click()
    assert found.page.locator(".bar .found").inner_text() == "402 operations"
    assert 10 < found.page.get_by_role("treeitem").count() < 60


def with_data(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A page of which the data was changed."""
    text = page({"transformer": stack().program})
    start = text.index('id="data">') + len('id="data">')
    end = text.index("</script>", start)
    data = json.loads(text[start:end])
    change(data)
    (tmp_path / "page.html").write_text(
        text[:start] + json.dumps(data).replace("<", "\\u003c") + text[end:], encoding="utf-8"
    )
    return tmp_path / "page.html"


@pytest.mark.parametrize(
    ("part", "level", "said"),
    [(0.5, "", "to spare"), (0.99, "tight", "full, "), (1.5, "over", "too much"), (1e12, "over", "too much")],
)
def test_a_device_that_is_full_is_marked(browser: Any, tmp_path: Path, part: float, level: str, said: str) -> None:
    def fill(data: dict[str, Any]) -> None:
        data["devices"][0]["free"] = int(data["devices"][0]["peak"] / part)
        for device in data["devices"][1:]:
            device["free"] = 100 * device["peak"]

    found = opened(browser, with_data(tmp_path, fill)).page
    assert (found.locator(".device").first.get_attribute("class") or "").split() == ["card", "device", *level.split()]
    assert said in found.locator(".device .room").first.inner_text()
    assert found.locator(".tile").first.inner_text().startswith("does not fit" if level == "over" else "fits")


def test_a_bar_has_the_layers_that_its_chart_has_at_the_fullest_moment(shown: Opened) -> None:
    told = shown.page.locator(".device output").first.inner_text()
    layers = [one.get_attribute("title") or "" for one in shown.page.locator(".device").first.locator(".gauge i").all()]
    assert told.startswith("Fullest: ")
    assert [one for one in layers if not one.endswith(" 0 B")]
    for layer in layers:
        name = layer.rsplit(" ", 2)[0]
        assert (name in told) != layer.endswith(" 0 B")


def test_short_calls_have_a_least_width_and_other_plans_are_shown(browser: Any, tmp_path: Path) -> None:
    def add(data: dict[str, Any]) -> None:
        names, bounds = ("a", "b", "c"), (0.0, 0.001, 99.999, 100.0)
        marks = [[name, "sampling", *ends, 1] for name, ends in zip(names, pairwise(bounds), strict=True)]
        columns = {"x": list(bounds), **{name: [1, 2, 3, 4] for name in LAYERS}}
        device = data["devices"][0]["name"]
        data["picture"] = {"devices": {device: columns}, "marks": marks, "seconds": 100.0}
        data["others"] = [
            {"what": HOSTILE, "seconds": seconds, "takes": "1 s", "longer": longer}
            for seconds, longer in ((1.0, 0), (1.5, 50), (0.5, -50))
        ]

    view = opened(browser, with_data(tmp_path, add))
    assert "short calls are drawn longer" in view.page.locator(".legend").inner_text()
    rows = [one.inner_text() for one in view.page.locator(".others li").all()]
    assert [row.rsplit("1 s", 1)[1].strip() for row in rows] == ["", "50 % longer", "50 % shorter"]
    assert HOSTILE in rows[0]
    assert view.errors == []
