"""What the planner needs of a compiled pipeline, and of its phases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..components.component import Component
from ..components.dry import DryRun
from ..fitting.decide import Decision
from ..fitting.refused import Tried

T = TypeVar("T")


class SetAside(Protocol):
    """What a pipeline has of calls that were planned before; one of three things is to be done with it."""

    @property
    def is_same(self) -> bool:
        """Whether components are placed now as they were then."""

    def put_back(self) -> None:
        """Makes the pipeline what it was."""

    def keep(self) -> None:
        """Has the pipeline have what it had too."""

    def leave(self) -> None:
        """Lets go of that, and brings weights to where they rest now."""


class Plannable(Protocol):
    """What the planner needs of a compiled pipeline."""

    @property
    def pipe(self) -> Any:
        """The pipeline."""

    @property
    def components(self) -> dict[str, Component]:
        """The components by name."""

    @property
    def rig(self) -> Rig:
        """The devices it was compiled for."""

    @property
    def main(self) -> Device:
        """The device of the pipeline's own tensors now, which is the host while devices are open or are not here."""

    @property
    def placed_main(self) -> Device:
        """The device of the pipeline's own tensors when it is called, as components are placed now."""

    def on_host(self) -> AbstractContextManager[None]:
        """Has the pipeline's own tensors be on the host meanwhile."""

    def measure(self, *, if_changed: bool = False) -> bool:
        """Asks again what is free of devices, always or if weights were brought meanwhile; says whether that is new."""

    @property
    def granted(self) -> Rig:
        """These devices and the host, each with no more free memory than its budget."""

    def decided(self, run: DryRun, lower: Callable[[Decision | None], T], keeps: Callable[[T], bool]) -> T:
        """What lowering makes of the calls of a dry run, once devices that were left open are decided.

        ``lower`` takes the decision if there was one, and ``keeps`` says whether that stays for what was made so.
        """

    @property
    def has_earlier(self) -> bool:
        """Whether calls were planned that may be set aside: not where others use a component too."""

    def set_aside(self) -> SetAside:
        """Has components be as if no call had been planned."""

    def ease(self) -> tuple[Callable[[], None], Callable[[], None]] | None:
        """Has weights rest in host memory of which it was not said where they do; None where there are no such.

        Gives what takes it back, and what says it.
        """

    def refused(self, error: DoesNotFitError, run: DryRun, tried: Tried) -> DoesNotFitError:
        """The refusal of the calls of a dry run, with ways out that were tried; all is as before then."""


class Phased(Protocol):
    """Gives the phase in which a component works, by its name.

    ``turns`` are those of denoisers that come after others in the calls which are planned or made now.
    """

    turns: Mapping[str, str]

    def __call__(self, name: str) -> str:
        """The phase."""

    def follow(self, calls: Sequence[str]) -> None:
        """Finds ``turns``, given the component of each call in their order."""

    @property
    def changed(self) -> object:
        """What `separate` and `let_go` have changed."""

    def start_over(self) -> Callable[[], None]:
        """Takes back what `separate` and `let_go` have changed; what is returned takes that back."""

    def separate(self, staged: Sequence[str]) -> Callable[[], None] | None:
        """Has components that share a phase work apart; None where none do, else what takes it back."""

    def let_go(self, names: Collection[str]) -> Callable[[], None] | None:
        """Has weights of components come and go in each call; None where they do already, else what takes it back."""
