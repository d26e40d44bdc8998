"""Memory over time agrees with the fullest moment and with the time line."""

import pytest
import torch

from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.ir.layouts import is_plain
from dovetail.compiler.ir.value import TensorType
from dovetail.passes.simulate.cost import _nbytes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.simulate.profile import profile
from dovetail.passes.simulate.timeline import timeline
from tests.dovetail.draw.models import stack

OPTIONS = {"layer": {}, "row": {"split_mode": "row"}, "streamed": {"params_backend": "cpu"}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_fullest_moment_of_a_profile_is_the_predicted_peak(options: dict[str, str]) -> None:
    program = stack(**options).program
    found = profile(program, speeds_of(program.rig))
    peaks = {device: max(usage.total for _, usage in moments) for device, moments in found.moments.items()}
    assert peaks == {device: usage.total for device, usage in simulate(program).items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_profile_has_the_time_line_of_the_call(options: dict[str, str]) -> None:
    program = stack(**options).program
    found = profile(program, speeds_of(program.rig))
    assert found.timeline == timeline(program, speeds_of(program.rig))
    for moments in found.moments.values():
        times = [time for time, _ in moments]
        assert times == sorted(times)
        assert times[-1] <= found.timeline.seconds


def test_a_tensor_of_unknown_strides_is_neither_plain_nor_repeated() -> None:
    dynamic = TensorType(("n", 4), torch.float32, (), 0, (3, 4))
    assert not is_plain(dynamic.sizes, dynamic.stride)
    assert _nbytes(dynamic) == dynamic.nbytes == 48
