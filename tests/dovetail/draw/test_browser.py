"""A page is opened where there is a browser, and never in a test."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from types import SimpleNamespace

import pytest

from dovetail.cli.output import results
from dovetail.compiler.errors import UsageError
from dovetail.draw.page import browser
from dovetail.draw.page.page import Page


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were opened in the browser of a desk."""
    found: list[str] = []
    monkeypatch.setattr(browser, "_IN_TESTS", ("SOME_TEST_RUNS",))
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(found.append(address)) or True)
    return found


def test_a_page_opens_in_the_browser(opened: list[str]) -> None:
    path = Page("<p>all</p>").open()
    assert opened == [path.as_uri()]
    assert path.read_text() == "<p>all</p>"
    path.unlink()


def test_no_browser_opens_in_a_test_or_without_a_display(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert browser.has_browser()
    monkeypatch.setenv("SOME_TEST_RUNS", "this")
    assert not browser.has_browser()
    monkeypatch.delenv("SOME_TEST_RUNS")
    monkeypatch.setattr(browser.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY")
    assert not browser.has_browser()
    with pytest.raises(UsageError, match="no browser can be opened here"):
        Page("").open()
    assert opened == []


def test_this_is_a_test() -> None:
    assert not browser.has_browser()


def test_a_notebook_is_told_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not browser.is_notebook()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(browser.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert browser.is_notebook()


def test_the_text_of_a_page_is_not_what_an_interpreter_prints() -> None:
    page = Page("<html>" * 10_000)
    assert len(repr(page)) < 100
    assert str(page) == "<html>" * 10_000


def test_a_page_fills_no_terminal(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results.put_page("<p>all</p>")
    assert capsys.readouterr().out == "<p>all</p>\n", "which another program reads"
    monkeypatch.setattr(results, "is_terminal", lambda: True)
    results.put_page("<p>all</p>")
    path = Path(capsys.readouterr().out.strip())
    assert path.read_text() == "<p>all</p>"
    assert opened == [path.as_uri()]
    path.unlink()


def test_a_script_and_a_browser_in_the_terminal_open_no_window(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not browser.is_watched()
    monkeypatch.setattr(browser.sys, "ps1", ">>> ", raising=False)
    assert browser.is_watched()
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    assert not browser.has_browser()
