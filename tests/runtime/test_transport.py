"""How values go between devices is for a transport to say; schedules and generated code know nothing of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.ir.schedule import Copy
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights
from tests.laws.wide_modules import Attention, Gated, Stack

DEVICES = "sim0&sim1&sim2"


@dataclass
class Message:
    """The bytes of a value that was sent, received when somebody waits for them."""

    data: bytes
    copy: Copy
    into: Sequence[torch.Tensor] = ()
    done: Any = None

    def wait(self) -> torch.Tensor:
        values = [one.to(self.copy.target.torch) for one in torch.load(io.BytesIO(self.data))]
        for place, value in zip(self.into, values, strict=False):
            place.copy_(value)
        return values[-1]


@dataclass
class Mail:
    """Sends each value as a message, as a link between processes does, and keeps a record of it."""

    sent: list[str] = field(default_factory=list)

    def sender(self, copy: Copy) -> Callable[[torch.Tensor], Message]:
        assert not copy.landings
        return lambda value: self.send(copy, [value])

    def sender_of_boxes(self, copy: Copy) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Message]:
        assert copy.landings
        return lambda boxes, places: self.send(copy, boxes, places)

    def send(self, copy: Copy, values: Sequence[torch.Tensor], into: Sequence[torch.Tensor] = ()) -> Message:
        assert {value.device for value in values} == {copy.source.torch}
        written = io.BytesIO()
        torch.save([value.cpu() for value in values], written)
        self.sent.append(str(copy))
        return Message(written.getvalue(), copy, into)


@pytest.mark.fifth
@pytest.mark.parametrize("options", [{"split_mode": "row", "tensor_split": "16,10,6"}, {"tensor_split": "1,1,2"}])
def test_a_program_runs_the_same_over_a_transport_that_sends_messages(options: dict[str, Any]) -> None:
    sim.enable()
    torch.manual_seed(0)
    module, x = Stack((Gated, Attention), 3).eval(), torch.randn(2, 3, 256)
    compiled = dovetail.compile(module, (x,), backend=DEVICES, **options)
    mail = Mail()
    executor = Executor(compiled.program, compiled.schedule, mail)
    executor.bind(ProgramWeights.of_module(module, compiled.program))
    for _ in range(2):
        mail.sent.clear()
        (found,) = executor([x.to(compiled.program.main.torch)])
        assert torch.equal(found.cpu(), compiled(x))
        copies = [one for one in compiled.schedule.flat() if isinstance(one, Copy) and one.source != one.target]
        assert sorted(mail.sent) == sorted(map(str, copies))
