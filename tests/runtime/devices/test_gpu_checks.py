"""The checks for real devices, on simulated ones: they can pass there, and fail where they should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dovetail.runtime import launching
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.devices.transfers import Arrival
from dovetail.runtime.quantized import kernels
from testbed import gpu, gpu_checks, gpu_mode_checks, gpu_thread_checks

pytestmark = pytest.mark.usefixtures("sim_devices")


def test_bits_of_packed_types_are_compared_with_those_of_gguf(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "15 types" in gpu_checks.packed(["sim0"])
    right = kernels.dequantize_rows

    def wrong(packed: torch.Tensor, quant: str, out: torch.Tensor) -> None:
        right(packed, quant, out)
        if quant == "Q5_K":
            out[0, 0] += 1

    monkeypatch.setattr(kernels, "dequantize_rows", wrong)
    with pytest.raises(AssertionError, match=r"Q5_K in torch\.float32 on sim0"):
        gpu_checks.packed(["sim0"])


@pytest.mark.slow
def test_bits_of_a_layer_split_are_compared_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch.equal" in gpu_checks.layers(["sim0", "sim1"])
    right = gpu_checks.eager
    monkeypatch.setattr(gpu_checks, "eager", lambda card: right(card) + 1e-6)
    with pytest.raises(AssertionError):
        gpu_checks.layers(["sim0"])


def test_copies_between_cards_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2 pairs, 7 values each: direct" in gpu_mode_checks.peer_copies(["sim0", "sim1"])
    right = gpu_mode_checks.start_copy
    monkeypatch.setattr(gpu_mode_checks, "start_copy", lambda value, *more, **into: right(value * 2, *more, **into))
    with pytest.raises(AssertionError, match="from sim:0 to sim:1"):
        gpu_mode_checks.peer_copies(["sim0", "sim1"])


def test_parts_are_computed_on_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pictures equal bits" in gpu_mode_checks.parts_of_kernels(["sim0"])
    monkeypatch.setattr(gpu_mode_checks, "_norm", lambda one: torch.nn.functional.group_norm(one, 8) + 1e-6)
    with pytest.raises(AssertionError, match="a group norm's areas by parts"):
        gpu_mode_checks.parts_of_kernels(["sim0"])


@pytest.mark.slow
def test_micro_batches_are_compared_with_one_picture_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "each with the bits that it has alone" in gpu_mode_checks.micro_batches(["sim0", "sim1"], 2)
    right = gpu_mode_checks.result
    monkeypatch.setattr(gpu_mode_checks, "result", lambda program, call: right(program, call) + len(call["timestep"]))
    with pytest.raises(AssertionError, match="other bits than one picture"):
        gpu_mode_checks.micro_batches(["sim0", "sim1"], 2)


def test_what_takes_two_cards_is_not_asked_of_one() -> None:
    for check in (*gpu_mode_checks.MODE_CHECKS[1:], *gpu_thread_checks.THREAD_CHECKS[1:]):
        with pytest.raises(gpu_mode_checks.NotAsked, match=r"takes? two, and sim0 is alone"):
            check(["sim0"])


@pytest.mark.fifth
def test_bits_of_devices_together_are_compared_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tensor: error" in gpu_mode_checks.near_float64("tensor", ["sim0", "sim1"])
    right = gpu_mode_checks.result
    monkeypatch.setattr(gpu_mode_checks, "result", lambda *given: right(*given) + 1e-5)
    with pytest.raises(AssertionError, match=r"error .*one card's"):
        gpu_mode_checks.near_float64("tensor", ["sim0", "sim1"])


@pytest.mark.fifth
@pytest.mark.parametrize("mode", ["batch+sequence", "batch+tensor"])
def test_bits_of_groups_are_compared_with_float64(mode: str) -> None:
    four = [f"sim{index}" for index in range(4)]
    assert mode in gpu_mode_checks.modes_for(four)
    assert mode not in gpu_mode_checks.modes_for(four[:3])
    assert f"{mode}: error" in gpu_mode_checks.near_float64(mode, four)


@pytest.mark.slow
def test_bits_of_threads_that_are_delayed_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_thread_checks, "modes_for", lambda _: ["sequence"])
    names = "sequence, sequence while weights come, tensor while weights come, micro-batches"
    assert f"{names}: 2 threads" in gpu_thread_checks.threads(["sim0", "sim1"], 2)
    monkeypatch.setattr(gpu_thread_checks, "_late", lambda chance, seen: lambda device, at, step: step)
    with pytest.raises(AssertionError, match="0 threads issue to 2 devices"):
        gpu_thread_checks.threads(["sim0", "sim1"], 2)


@pytest.mark.slow
def test_an_error_in_a_thread_is_to_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_thread_checks, "modes_for", lambda _: ["sequence"])
    assert "an error on each device" in gpu_thread_checks.errors_in_threads(["sim0", "sim1"])
    monkeypatch.setattr(gpu_thread_checks, "_failing", lambda where, device, at, step: step)
    with pytest.raises(AssertionError, match="an error on sim0 is raised nowhere"):
        gpu_thread_checks.errors_in_threads(["sim0", "sim1"])


@pytest.mark.fifth
def test_inputs_of_launched_calls_are_copied_when_they_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2 times two calls on sim0" in gpu_thread_checks.launched_calls(["sim0"], 2)
    monkeypatch.setattr(launching, "start_snapshot", lambda value, device: Arrival(value, accelerator_of(device)))
    with pytest.raises(Exception, match=r"is another one|still uses|without waiting"):
        gpu_thread_checks.launched_calls(["sim0"], 2)


@pytest.mark.slow
def test_guidance_parts_on_two_cards_are_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "parts on sim0 and sim1: the same bits" in gpu_mode_checks.guidance_in_turns(["sim0", "sim1"])
    right, count = gpu_mode_checks.paint, [0]

    def other(*given: Any) -> torch.Tensor:
        count[0] += 1
        found: torch.Tensor = right(*given)
        return found + (count[0] == 5)

    monkeypatch.setattr(gpu_mode_checks, "paint", other)
    with pytest.raises(AssertionError, match="other bits than on one card"):
        gpu_mode_checks.guidance_in_turns(["sim0", "sim1"])


def test_something_is_done_before_each_operation_on_its_devices() -> None:
    seen: list[tuple[int, str, set[torch.device]]] = []
    with gpu_checks.Before(lambda *what: seen.append(what)):
        torch.ones(2, device="sim:0").cpu()
    assert [number for number, _, _ in seen] == list(range(len(seen)))
    assert torch.device("sim:0") in seen[-1][2]
    assert "copy" in seen[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize("cards", [["sim0"], ["sim0", "sim1"]], ids=" and ".join)
def test_everything_holds_on_simulated_devices(
    cards: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "groups", lambda names: [names])
    assert gpu.main([*cards, "--calls", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = (*gpu_checks.CHECKS, *gpu_mode_checks.MODE_CHECKS, *gpu_thread_checks.THREAD_CHECKS)
    several = {one.__name__ for one in (*gpu_mode_checks.MODE_CHECKS[1:], *gpu_thread_checks.THREAD_CHECKS[1:])}
    skipped = set() if len(cards) > 1 else several
    names = [check.__name__ for check in checks]
    assert [line.split()[:2] for line in lines[1:]] == [["skips" if one in skipped else "holds", one] for one in names]


def test_a_machine_without_accelerators_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "accelerators", list)
    assert gpu.main([]) == 2
    assert "nothing was checked" in capsys.readouterr().err
