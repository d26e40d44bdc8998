"""The numbers of chunks of a pipeline's components, where they are to be found and devices are settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..compiler.errors import DoesNotFitError
from ..components.component import Component
from ..components.dry import DryRun
from ..conventions.request import Request
from ..fitting.asked import in_chunks
from ..fitting.chains import COUNTS
from ..fitting.chunked import Counts, Lowered, least_chunks
from ..fitting.decide import loads_of, machine_of
from ..fitting.fitted import calls_of, members_of
from ..planning.generation import Generation
from ..planning.table import Account
from .plan import phase_of


def in_found_chunks(
    asked: Request,
    components: Mapping[str, Component],
    run: DryRun,
    put: Callable[[Request], None],
    lower: Callable[[], Generation],
    tried: Callable[[], Generation] | None,
) -> Generation:
    """What lowering makes of calls on devices that are settled, in as few chunks as that takes.

    Args:
        asked: the request, with the numbers of chunks that were typed.
        components: by name.
        run: has the traced calls.
        put: has components lowered as a request says.
        lower: lowers what was traced; raises DoesNotFitError.
        tried: lowers it too, and keeps nothing; None where ``lower`` keeps nothing either.
    """
    roles = {name: one.role for name, one in components.items()}
    if not _leaves_chunks_open(asked, roles):
        return lower()
    try:
        if tried is None:
            return _in_some_chunks(asked, roles, put, lower)
        put(_with_least_chunks(asked, components, run, put, tried))
        return lower()
    except BaseException:
        put(asked)
        raise


def _in_some_chunks(
    asked: Request, roles: Mapping[str, str], put: Callable[[Request], None], lower: Callable[[], Generation]
) -> Generation:
    """What lowering makes of calls in any number of chunks; the refusal of what is whole where none fits."""
    refused: list[DoesNotFitError] = []
    for request in _with_more_chunks(asked, roles):
        put(request)
        try:
            return lower()
        except DoesNotFitError as error:
            refused.append(error)
    raise refused[0]


def _leaves_chunks_open(request: Request, roles: Mapping[str, str]) -> bool:
    """Whether the numbers of chunks of some components (attribute name → role) are to be found."""
    return any(request.chunks_for(name, role) is None for name, role in roles.items())


def _with_more_chunks(request: Request, roles: Mapping[str, str]) -> Iterator[Request]:
    """The request with what is to be found whole, and then with more chunks of all of it, the fewest first."""
    return (in_chunks(request, dict.fromkeys(roles, count), roles) for count in (1, *COUNTS))


def _with_least_chunks(
    request: Request,
    components: Mapping[str, Component],
    run: DryRun,
    put: Callable[[Request], None],
    tried: Callable[[], Generation],
) -> Request:
    """The request with the numbers of chunks of least seconds, as few as that takes; all whole where nothing fits.

    Args:
        request: what was asked.
        components: by name.
        run: has the traced calls.
        put: has components lowered as a request says.
        tried: lowers what was traced, and keeps nothing; raises DoesNotFitError.
    """
    members, speeds = members_of(components, phase_of, run), machine_of(request).speeds
    roles = {name: one.role for name, one in members.items()}

    def lowered(counts: Counts) -> Lowered | None:
        put(in_chunks(request, counts, roles))
        try:
            account = Account(tried(), speeds)
        except DoesNotFitError:
            return None
        return Lowered(account.seconds, any(row.streamed for part in account.parts for row in part.rows))

    def choices() -> Mapping[str, Sequence[int]]:
        loads = loads_of(members, calls_of(run), request)
        return {load.name: sorted(load.chunked) for load in loads if load.asked.chunks is None and load.chunked}

    return in_chunks(request, least_chunks(lowered, choices), roles)
