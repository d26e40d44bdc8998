"""What the planner needs of a compiled pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..components.component import Component
from ..components.dry import DryRun
from ..conventions.request import Request
from ..fitting.refused import Tried
from .draft import Draft


class Plannable(Protocol):
    """What the planner needs of a compiled pipeline."""

    @property
    def pipe(self) -> Any:
        """The pipeline."""

    @property
    def name(self) -> str:
        """The name of its class."""

    @property
    def components(self) -> dict[str, Component]:
        """The components by name."""

    @property
    def rig(self) -> Rig:
        """The devices it was compiled for."""

    @property
    def granted(self) -> Rig:
        """These devices and the host, each with no more free memory than its budget."""

    @property
    def programs(self) -> Mapping[str, Any]:
        """What was compiled so far, by component."""

    def main_of(self, draft: Draft) -> Device:
        """The device of the pipeline's own tensors in a dry run with a draft.

        It is the host where devices are open, or are not here.
        """

    def own_on(self, device: Device, draft: Draft) -> AbstractContextManager[None]:
        """Has the pipeline make its own tensors on a device meanwhile, where a draft stands for what holds."""

    def measure(self, *, if_changed: bool = False) -> bool:
        """Asks again what is free of devices, always or if weights were brought meanwhile; says whether that is new."""

    @property
    def has_earlier(self) -> bool:
        """Whether calls were planned that may be set aside: not where others use a component too."""

    def draft(self) -> Draft:
        """A draft of what holds."""

    def draft_anew(self) -> Draft:
        """A draft as if no call had been planned, of what was asked at first."""

    def under(self, draft: Draft, request: Request) -> Draft:
        """A draft in which components are where a request says, and nothing is open any more."""

    def kinds(self) -> tuple[Mapping[str, str], Mapping[str, bool]]:
        """The roles of its own components, as what is borrowed stays where it is, and whether they lie in files."""

    def adopting(self, draft: Draft, before: Draft, earlier_stay: bool) -> AbstractContextManager[None]:
        """Has a draft hold that fits, which was made for one ``before``; an error within leaves all as it was."""

    def refused(self, error: DoesNotFitError, base: Draft, run: DryRun, tried: Tried) -> DoesNotFitError:
        """The refusal of the calls of a dry run as a draft has them placed, with ways out that were tried."""
