"""Weights that rest elsewhere without being told to, where they do not fit together on devices that were named.

Whoever names devices and says nothing of where weights rest has them there, as long as they fit. Where they do not,
they share the devices by phases or come block by block, as with `--params-backend cpu`; one warning says so.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..compiler.devices.device import HOST
from ..compiler.errors import DoesNotFitError
from ..compiler.spec import parse_params_backend
from ..compiler.spec.backend import AUTO, DISK
from ..compiler.spec.residency import Residency
from ..conventions.request import Request
from .asked import may_be_searched

logger = logging.getLogger(__name__)

T = TypeVar("T")
Roles = Mapping[str, str]

_PLACES = {Residency.HOST: "in host memory", Residency.DISK: "in their files"}


def untold(request: Request, roles: Roles) -> list[str]:
    """The components whose devices are named, and of whose weights it is not said where they rest."""
    named = [name for name, role in roles.items() if not request.is_open(name, role)]
    return [
        name
        for name in named
        if request.params_backend.get(name, roles[name]) is None
        and not all(one.is_host for one in request.backend.devices_for(name, roles[name], request.rig))
    ]


def is_searched(request: Request, roles: Roles) -> bool:
    """Whether something is looked for where a request does not fit as it names devices."""
    return bool(untold(request, roles)) or may_be_searched(request, roles)


def eased(request: Request, roles: Roles) -> Request:
    """The request in which weights rest where that is found to fit, as far as it was not said where they rest."""
    return resting(request, dict.fromkeys(untold(request, roles), AUTO))


def resting(request: Request, places: Mapping[str, str]) -> Request:
    """The request with the weights of some components resting at places."""
    given = parse_params_backend(places, dict.fromkeys(places, "")).named
    before = tuple(item for item in request.params_backend.named if item[0] not in places)
    return replace(request, params_backend=replace(request.params_backend, named=(*before, *given)))


def elsewhere(request: Request, roles: Roles, in_files: Mapping[str, bool]) -> Iterator[Request]:
    """The request with weights of which nothing was said all in host memory, and then in the files that have them."""
    free = untold(request, roles)
    if free:
        yield resting(request, dict.fromkeys(free, HOST))
    if any(in_files[name] for name in free):
        yield resting(request, {name: DISK if in_files[name] else HOST for name in free})


def first_that_fits(
    asked: Request,
    roles: Roles,
    in_files: Mapping[str, bool],
    searched: Callable[[Request], T | DoesNotFitError],
    placed: Callable[[Request], T | DoesNotFitError],
    refused: DoesNotFitError | None = None,
) -> T | DoesNotFitError:
    """What the first request gives that fits, of those that keep to what was asked.

    The last refusal of a search where none fits, for that knows the least that is needed; without one, what was given.

    Args:
        asked: what was asked, which does not fit where it was ``refused``.
        roles: those of the components by name.
        in_files: whether the weights of a component may rest in files.
        searched: gives the best plan for what a request leaves open, or a refusal.
        placed: gives the plan of a request that leaves nothing open, or a refusal.
        refused: the refusal, where devices are settled and so all was tried as it was asked.
    """
    for attempt in _attempts(asked, roles, in_files, searched, placed, refused is not None):
        found = attempt()
        if not isinstance(found, DoesNotFitError):
            return found
        refused = found if attempt.func is searched or refused is None else refused
    assert refused is not None, "something is open, or was refused"
    return refused


def _attempts(
    asked: Request, roles: Roles, in_files: Mapping[str, bool],
    searched: Callable[[Request], T], placed: Callable[[Request], T], is_settled: bool,
) -> Iterator[partial[T]]:  # fmt: skip
    """The search as asked, and with weights anywhere; on settled devices all weights in host memory, or in files."""
    free = untold(asked, roles)
    if not is_settled or (not free and may_be_searched(asked, roles)):
        yield partial(searched, asked)
    if not free:
        return
    yield partial(searched, eased(asked, roles))
    yield from (partial(placed, request) for request in elsewhere(asked, roles, in_files) if is_settled)


def tell_of_places(pipe: str, before: Request, after: Request, roles: Roles) -> None:
    """Says once of which components weights rest elsewhere than a request had them, and what says so."""
    moved: dict[Residency, list[str]] = {}
    said: list[str] = []
    for name in untold(before, roles):
        devices = after.backend.devices_for(name, roles[name], after.rig)
        now = after.residency_for(name, roles[name], devices)
        if now is not Residency.DEVICE:
            moved.setdefault(now, []).append(name)
            said.append(f"{name}={after.params_backend.get(name, roles[name]) or now.value}")
    if moved:
        each = ", ".join(f"those of {' and '.join(names)} rest {_PLACES[now]}" for now, names in moved.items())
        logger.warning(
            "%s: its weights do not fit together on the devices that were named, so %s until they are used "
            "(--params-backend %s)", pipe, each, shlex.quote(",".join(said)),
        )  # fmt: skip
