"""`dovetail serve` as it is typed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx2
import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.commands.serve import Listening
from dovetail.serve.server import bound
from dovetail.serve.work.settings import Settings
from testbed.processes import children_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--host", "0.0.0.0"), "DOVETAIL_API_KEY or with --api-key-file FILE"),
        (("--api-key-file", "/nowhere"), "--api-key-file: cannot read /nowhere"),
        (("--api-key-file", os.devnull), f"--api-key-file {os.devnull} has no key in it: write one"),
        (("--cors", "*"), "--cors * is no origin: write one as browsers send it"),
        (("--cors", "http://good.example/"), "--cors http://good.example/ is no origin"),
        (("--cors", "Http://good.example"), "--cors Http://good.example is no origin"),
        (("--cors", "https://Good.example"), "--cors https://Good.example is no origin"),
        (("--cors", "https://good.example:443"), "--cors https://good.example:443 is no origin"),
        (("--cors", "http://good.example:99999"), "--cors http://good.example:99999 is no origin"),
        (("--cors", "https://["), "--cors https://[ is no origin"),
        (("--cors", "null"), "--cors null is no origin"),
        (("--allow-host", "["), "--allow-host [ is no name of a host"),
        (("--allow-host", "[abc]"), "--allow-host [abc] is no name of a host"),
        (("--name", "caf\udce9"), r"'caf\udce9' has half of a character, which no answer can say: give --name another"),
        (("--allow-host", "my.box:18931"), "--allow-host my.box:18931 is no name of a host"),
        (("--port", "70000"), "--port"),
        (("/nowhere",), "there is no folder /nowhere"),
        (("--lora-model-dir", "/nowhere"), "there is no folder /nowhere"),
        (("--max-steps", "0"), "--max-steps"),
        (("--replicas", "0"), "--replicas 0 is no number of processes"),
    ],
)
def test_what_is_typed_wrongly_is_one_error_before_anything_is_loaded(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *([] if "--port" in words else ["--port", "0"]), *words])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(("key", "told"), [("", "$DOVETAIL_API_KEY has no key in it"), ("  \n", "has no key in it")])
def test_a_key_that_was_meant_and_is_empty_leaves_no_server_open(key: str, told: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0"], env={"DOVETAIL_API_KEY": key})
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_origins_and_hosts_of_all_kinds_can_be_named() -> None:
    origins = (
        "https://example.org", "http://localhost:3000", "http://[::1]:443", "http://my_box", "vscode-webview://1AbC",
        "chrome-extension://abc", "tauri://localhost", "file://",
    )  # fmt: skip
    Settings(origins=origins, hosts=("box", "my_box.local", "192.168.0.7", "::1", "[::1]")).check()


def test_a_key_of_the_environment_is_read_without_the_spaces_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_API_KEY", " secret123\n")
    assert Listening().key() == "secret123"


def test_a_key_of_a_file_is_read_without_the_mark_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbfsecret123\r\n")
    assert Listening(api_key_file=tmp_path / "key").key() == "secret123"


def test_a_port_that_is_taken_is_said() -> None:
    with bound(Settings(port=0)) as taken:
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2
    assert "name another with --port" in " ".join(result.stderr.split())


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else own(name, *more)
    )
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 1
    assert "serve needs uvicorn, which is not installed: pip install 'dovetail-diffusion[serve]'" in result.stderr


def test_other_commands_import_nothing_of_it() -> None:
    code = "import sys, dovetail.cli.app; print({'fastapi', 'uvicorn', 'starlette'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], str]]:
    """The demo's server, started in a folder and ready: its process, what it writes from then on, and its address."""
    command = [sys.executable, "-m", "dovetail", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"at (http://\S+) ", line) for line in process.stderr)))
        yield process, process.stderr, found[1]


@pytest.mark.slow
def test_the_demo_is_served_until_a_signal_ends_it(tmp_path: Path) -> None:
    with served(tmp_path) as (process, errors, address):
        body = {"prompt": "a red circle", "seed": 7}
        answer = httpx2.post(f"{address}/v1/images/generations", json=body, timeout=60)
        assert answer.json()["data"][0]["seed"] == 7
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert errors.read() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_is_painted_when_a_signal_comes_is_finished_and_that_is_said(tmp_path: Path) -> None:
    with served(tmp_path) as (process, errors, address):
        body = {"prompt": "a red circle", "seed": 7, "steps": 200, "n": 4}
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(httpx2.post, f"{address}/v1/images/generations", json=body, timeout=120)
            while not httpx2.get(f"{address}/sdapi/v1/progress").json()["state"]["sampling_step"]:
                assert not asked.done()
            process.send_signal(signal.SIGTERM)
            assert len(asked.result().json()["data"]) == 4
        assert process.wait(30) == 0
        assert "the server ends when what is painted is finished (1 job)" in errors.read()


@pytest.mark.slow
def test_a_replica_that_is_killed_is_replaced_and_no_answer_is_lost(tmp_path: Path) -> None:
    with served(tmp_path, "--replicas", "2", "--backend", "sim0+sim1") as (process, errors, address):
        replicas = children_of(process.pid)
        assert len(replicas) == 2
        body = {"prompt": "a red circle", "seed": 7, "size": "32x32"}
        with ThreadPoolExecutor(6) as clients:
            asked = [clients.submit(httpx2.post, f"{address}/v1/images/generations", json=body, timeout=120)]
            asked[0].result()
            asked += [
                clients.submit(httpx2.post, f"{address}/v1/images/generations", json=body, timeout=120)
                for _ in range(6)
            ]
            os.kill(replicas[0], signal.SIGKILL)
        pictures = {one.result().json()["data"][0]["b64_json"] for one in asked}
        assert len(pictures) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "another one takes its place" in errors.read()
