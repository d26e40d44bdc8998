"""The page: it asks its own server alone, and is used by keys, in the dark, on a telephone, and with a key."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from dovetail.jobs.job import Job
from dovetail.serve.app import application
from testbed.browser import launched, why_not
from testbed.serving import Brush, running, served_by, wait

needs_browser = pytest.mark.skipif(bool(why_not()), reason=why_not())


def test_its_files_come_from_the_package_and_name_no_other_address() -> None:
    client = TestClient(application(served_by([Brush()])), base_url="http://localhost")
    html = client.get("/").text
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert named
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    ids = set(re.findall(r'id="([\w-]+)"', html))
    script = client.get("/assets/studio.js").text
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= ids
    assert not re.findall(r"<script>|<style>|onclick=|style=", html), "the policy allows nothing inline"


class View:
    """A page in a browser, what it said was wrong, and what it asked of others."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.errors: list[str] = []
        self.others: list[str] = []
        self.page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda one: self.note(one.url, address))
        self.page.goto(address)

    def note(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            self.others.append(url)

    def wait(self) -> Any:
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.mark.browser
@needs_browser
def test_a_prompt_is_painted_by_keys_and_stays_in_the_history(browser: Any) -> None:
    brush = Brush()
    with running(served_by([brush], model="demo")) as address:
        view = View(browser, address)
        page = view.wait()
        page.get_by_label("Prompt").fill("a red <b>circle</b>")
        page.get_by_label("Width").fill("32")
        page.get_by_label("Seed", exact=True).fill("77")
        page.get_by_label("blue", exact=True).check()
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#canvas img[src^='/pictures/']")
        assert brush.painted[0] == Job("a red <b>circle</b>", width=32, seed=77, loras=(("blue", 1.0),))
        assert "seed 77" in page.locator("#status").inner_text()
        page.reload()
        view.wait()
        page.get_by_role("button", name=re.compile("Show again: a red")).click()
        assert page.get_by_label("Seed", exact=True).input_value() == "77"
        assert page.locator("#canvas img").count() == 1
        assert (view.errors, view.others) == ([], [])


@pytest.mark.browser
@needs_browser
def test_progress_is_shown_and_escape_stops(browser: Any) -> None:
    brush = Brush(gate=threading.Semaphore(3))
    served = served_by([brush])
    with running(served) as address:
        view = View(browser, address, width=390, scheme="dark")
        page = view.wait()
        page.get_by_label("Prompt").fill("a")
        page.get_by_role("button", name="Paint").click()
        page.locator("#status", has_text="step 2 of 4").wait_for()
        page.locator("#queue", has_text="painting").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("Stopped.").wait_for()
        wait(lambda: all(one._is_left for one in served.queue.tickets()))  # the server sees it a little later
        assert brush.gate is not None
        brush.gate.release(9)
        served.queue.close()
        served.queue.join(10)
        assert brush.painted == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is cut off on a narrow screen"
        assert view.errors == []


@pytest.mark.browser
@needs_browser
def test_what_goes_wrong_is_said_and_the_key_is_asked_for(browser: Any) -> None:
    with running(served_by([Brush()], key="a long key")) as address:
        view = View(browser, address)
        page = view.page
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("This key is not right.").wait_for()
        page.get_by_label("API key").fill("a long key")
        page.keyboard.press("Enter")
        view.wait()
        assert page.locator("#devices .device").count() == 1
        page.get_by_label("Prompt").fill("a <lora:red:1>")
        page.keyboard.press("Control+Enter")
        page.get_by_text("no LoRA is called 'red': there are blue").wait_for()
        assert view.others == []
