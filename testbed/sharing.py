"""What shares a program out over simulated devices in tests and benchmarks: a pass, and a group that makes it pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.ir.program import Program
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.states.exchanges import Group
from dovetail.passes.states.share import Choose, share
from dovetail.passes.states.solution import Groups


@dataclass(frozen=True)
class Share(Pass):
    """Has the devices compute each operation as is chosen."""

    name: ClassVar[str] = "share"
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    chooser: Callable[[Program], Choose] = field(default=lambda _: lambda _: None)
    groups: Callable[[], Groups] = dict

    def run(self, program: Program) -> Change:
        """Puts reshards between operations whose states differ."""
        return Change(share(program, self.chooser(program), groups=self.groups()), "reshards")


def slow_group(shares: Sequence[int], devices: Sequence[Device] = (), latency: float = 1e-7) -> Group:
    """Slow devices with fast links, for which it pays to split tiny operations; cards if none are given."""
    group = tuple(devices) or tuple(Device.named(f"cuda{index}") for index in range(len(shares)))
    speed = Speed({"float32": 1e9}, 1e9, 1e9, 1e-9, peer=1e9)
    return Group(group, tuple(shares), Speeds(dict.fromkeys(group, speed), latency=latency))


def slowed(one: Speed, rate: float, bandwidth: float) -> Speed:
    """The same with parts of its rates, and as quick to reach: tiny operations then take as long as large ones do."""
    flops, attention = ({dtype: rate * of for dtype, of in some.items()} for some in (one.flops, one.attention))
    return replace(one, flops=flops, attention=attention, bandwidth=one.bandwidth * bandwidth, launch=0.0)
