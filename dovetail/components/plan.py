"""Where a component runs and its weights rest, and how its programs are lowered, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.spec.backend import Resting
from ..compiler.spec.counts import WHOLE
from ..compiler.spec.modes import TOGETHER, shares_out_pictures
from ..compiler.spec.residency import ALIKE, Amounts, Residency
from ..compiler.units import number_text

_WORDS = {"layer": "layers", "row": "rows"}


@dataclass(frozen=True)
class ComponentPlan:
    """What was decided of a component, whoever did: a person, a search, or a plan file.

    Args:
        rig: its devices, main first, with what it may use of each.
        whole_on: where runs what cannot be compiled whole; the main device unless nothing shall run there.
        shares: weigh the devices in place of what is free; as many as there are devices, or none.
        mode: how it is split over several devices, as ``--split-mode`` says it.
        residency: where parameters are kept while nobody reads them.
        amounts: bytes of them that are kept elsewhere all the same.
        chunks: in so many wide parts are computed.
        inductor: whether Inductor compiles its blocks.
        micro_batches: in so many parts the pictures of a call go through its devices.
        seeks_mode: whether a search is to say how it is split, so that ``mode`` says nothing yet.
        terms: the dtype in which its devices send terms of float32 sums, where it is not their own.
    """

    rig: Rig
    whole_on: Device | None = None
    shares: tuple[float, ...] = ()
    mode: str = "layer"
    residency: Residency = Residency.DEVICE
    amounts: Amounts = ALIKE
    chunks: int = WHOLE
    inductor: bool = False
    micro_batches: int = 1
    seeks_mode: bool = False
    terms: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, main first."""
        return self.rig.devices

    @property
    def by_rows(self) -> bool:
        """Whether its programs are split by rows."""
        return self.mode == "row" and len(self.devices) > 1

    @property
    def is_together(self) -> bool:
        """Whether all devices compute each operation of its programs together, in the states of a mode."""
        return self.mode in TOGETHER and len(self.devices) > 1

    @property
    def takes_turns(self) -> bool:
        """Whether devices, or groups of them, may each hold it whole, so that independent calls of it take turns."""
        return shares_out_pictures(self.mode) and not self.kept_apart

    @property
    def may_take_turns(self) -> bool:
        """Whether it may turn out that its independent calls take turns."""
        return shares_out_pictures(self.mode) or self.seeks_mode

    @property
    def kept_apart(self) -> str:
        """What was asked for with which calls take no turns, in words."""
        if self.residency is not Residency.DEVICE:
            return "its weights are kept elsewhere (--params-backend)"
        if self.shares:
            return "its devices were given shares (--tensor-split)"
        return "Inductor compiles its blocks (--inductor)" if self.inductor else ""

    @property
    def places_itself(self) -> bool:
        """Whether its mode decides what each device has of a weight, so that nobody else may assign them."""
        return self.by_rows or self.is_together

    def __str__(self) -> str:
        """The plan in a line."""
        rests = Resting(self.residency.value, amounts=self.amounts)
        said = {
            "split": f"by {_WORDS.get(self.mode, self.mode)}" if len(self.devices) > 1 else "",
            "shares": ":".join(map(number_text, self.shares)),
            "weights": str(rests) if self.residency is not Residency.DEVICE else "",
            "chunks": str(self.chunks) if self.chunks != WHOLE else "",
            "micro-batches": str(self.micro_batches) if self.micro_batches > 1 else "",
            "terms of sums": self.terms,
            "inductor": "yes" if self.inductor else "",
        }
        given = [f"{name} {value}" for name, value in said.items() if value]
        return ", ".join(["&".join(map(str, self.devices)), *given])
