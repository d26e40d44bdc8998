"""Every read of a generation out of files goes wrong in turn: it fails, is interrupted or returns too little."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import WeightError
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import numbers_drawn, slow_but

from .reads import Reads

REQUEST: dict[str, Any] = {"backend": "sim0", "params_backend": "disk", "max_vram": "sim0=300000B"}


class Read:
    """A pipeline in files that is compiled once: it keeps some weights for a phase, and others come block by block."""

    def __init__(self, folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        sim.enable()
        pipe, call = tiny_pipelines.sd()
        pipe.save_pretrained(folder)
        self.call = {**call, "num_inference_steps": 1}
        self.picture, self.reads = paint(pipe, self.call), Reads(monkeypatch)
        self.pipe = dovetail.load_pipeline(folder, rig="sim0=64MiB,cpu=8GiB", **REQUEST)
        self.paint()
        self.whole, self.held = self.reads.count, self.in_use()

    def paint(self, how: str = "", at: int = -1) -> torch.Tensor:
        self.reads.count, self.reads.how, self.reads.at = 0, how, at
        found: torch.Tensor = paint(self.pipe, self.call).cpu()
        return found

    def in_use(self) -> int:
        gc.collect()
        return sim.stats(0).in_use


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        read = Read(tmp_path_factory.mktemp("sd"), monkeypatch)
        gc.freeze()  # it is collected after each call
        yield read
        read.pipe.dovetail.undo()
        del read
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def interrupts(read: Read) -> Iterator[None]:
    """Has a read that stalls interrupt the main thread, and go on only when that was told."""
    told, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def interrupt(*_: Any) -> None:
        told.set()
        raise KeyboardInterrupt

    def stall() -> None:
        told.clear()
        signal.pthread_kill(main, signal.SIGINT)
        assert told.wait(10)

    before, read.reads.stall = signal.signal(signal.SIGINT, interrupt), stall
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("step", slow_but([60], [60, 6]))
def test_a_read_that_goes_wrong_ends_the_call_with_one_error_and_the_next_one_gives_the_picture(
    step: int, read: Read
) -> None:
    assert read.whole > 300
    for at in numbers_drawn(read.whole, step):
        try:
            with pytest.raises(WeightError, match="the disk is gone"):
                read.paint("fails", at)
            assert read.in_use() == read.held
            if at % 10 == 1:  # of the same kind for who reads on
                with pytest.raises(WeightError, match="it ends at byte"):
                    read.paint("ends", at)
                assert read.in_use() == read.held
            with pytest.raises(KeyboardInterrupt):
                read.paint("stalls", at)
            assert read.in_use() == read.held
            assert torch.equal(read.paint("short", at), read.picture)
            assert read.in_use() == read.held
        except Exception as error:
            raise AssertionError(f"read {at} of {read.whole} went wrong") from error
