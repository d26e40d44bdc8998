"""The thread that brings weights: started again where the system refused it once, and anew in a forked process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiler.errors import DovetailError
from dovetail.runtime.store.lane import Lane
from dovetail.runtime.store.reader import WeightReader

X = torch.linspace(-1, 1, 4 * 64).reshape(4, 64)


def streamed(folder: Path, backend: str) -> tuple[dovetail.CompiledModule, torch.Tensor]:
    """A module whose weights come from a file for each call, and what it returns."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).eval()
    save_file(module.state_dict(), folder / "w.safetensors")
    options = {"weights": folder / "w.safetensors", "params_backend": "disk"}
    with torch.no_grad():
        return dovetail.compile(module, (X,), backend=backend, **options), module(X)  # type: ignore[arg-type]


def test_a_thread_that_could_not_be_started_once_is_started_for_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    lane, done = Lane("test"), threading.Event()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            lane.submit(lambda: pytest.fail("its caller was told that it is not done"))
    lane.submit(done.set)
    assert done.wait(10)


def test_a_call_whose_thread_could_not_be_started_fails_and_the_next_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, expected = streamed(tmp_path, "sim0")
    refused: list[Lane] = []
    submit = Lane.submit

    def refuse(self: Lane, job: object) -> None:
        if not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        submit(self, job)  # type: ignore[arg-type]

    monkeypatch.setattr(Lane, "submit", refuse)
    with pytest.raises((DovetailError, RuntimeError), match="can't start"):
        compiled(X)
    assert torch.equal(compiled(X), expected)


if hasattr(os, "fork"):

    @pytest.mark.parametrize("backend", ["sim0", "cpu"])
    def test_a_process_that_is_forked_while_another_thread_streams_calls_on_its_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
    ) -> None:
        compiled, expected = streamed(tmp_path, backend)
        compiled(X)
        begun, go_on = threading.Event(), threading.Event()
        parent = os.getpid()
        read_into = WeightReader.read_into

        def held(self: WeightReader, entry: object, target: object) -> None:
            if os.getpid() == parent:
                begun.set()
                go_on.wait(30)
            read_into(self, entry, target)  # type: ignore[arg-type]

        monkeypatch.setattr(WeightReader, "read_into", held)
        monkeypatch.setattr(WeightReader, "bring_view", lambda *_: None)
        caller = threading.Thread(target=compiled, args=(X,))
        caller.start()
        assert begun.wait(30)
        child = os.fork()
        if not child:
            answer: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: answer.append(compiled(X)), daemon=True)
            thread.start()
            thread.join(30)
            os._exit(0 if answer and torch.equal(answer[0], expected) else 1)
        go_on.set()
        caller.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
