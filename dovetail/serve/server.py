"""Runs the server until it is asked to end, and finishes what is painted then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from ..compiler.errors import UsageError
from ..compiler.units import counted
from ..jobs.about import About
from ..jobs.runner import Painter
from .api.served import Served
from .guard.connections import Connection, connections
from .work.kept import KeptPictures
from .work.measures import Measures
from .work.queue import Queue
from .work.settings import Settings
from .work.ticket import RUNNING, Ticket

_KEEP_ALIVE, _CONNECTIONS, _BACKLOG = 20, 512, 256
"""Seconds that a connection may be idle, how many there may be, and how many may wait to be taken."""
_FORCED = 5.0
"""Seconds for what is painted to end, within a step, where the server is not to wait for it."""


def served_by(painters: Sequence[Painter], about: About, settings: Settings) -> Served:
    """A server, as its routes see it.

    Args:
        painters: what paints; each has one job at a time, and one that several processes stand behind comes as often.
        about: what they paint.
        settings: those of the server.
    """
    measures = Measures()
    return Served(
        settings=settings,
        about=about,
        queue=Queue(painters, settings.waiting, measures, settings.batch),
        painters=list(dict.fromkeys(painters)),
        kept=KeptPictures(settings.kept, settings.kept_bytes),
        measures=measures,
    )


class Server(uvicorn.Server):
    """Serves an application; once it is asked to end it calls ``closing``, and ends when all answers are given.

    A second signal ends it at once. Connections are of the kind ``connection``.
    """

    def __init__(self, app: ASGIApp, closing: Callable[[], None], connection: type[Connection] = Connection) -> None:
        super().__init__(
            uvicorn.Config(
                app, http=connection, ws="none", lifespan="off", log_level="warning", access_log=False,
                server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE,
                limit_concurrency=_CONNECTIONS,
            )
        )  # fmt: skip
        self._closing = closing
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins nothing new: a signal has come; waits for nothing any more: a second one has."""
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # the command ends as one that did what it was asked
        self.end()
        if self.force_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hang_up)

    def end(self) -> None:
        """Asks it to end; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing)

    def _hang_up(self) -> None:
        """Closes all connections, whose jobs end as those of clients that hang up."""
        for one in list(self.server_state.connections):
            one.transport.abort()


def bound(settings: Settings) -> socket.socket:
    """A socket at the address of a server, port 0 being any; raises UsageError where it cannot be had."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen at {settings.host} port {settings.port}: {why}: name another with --port or --host"
        ) from error
    made.setblocking(False)
    return made


def address_of(listening: socket.socket) -> str:
    """The address of a socket, as a browser takes it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def last_words(tickets: Sequence[Ticket]) -> str:
    """What is said of the jobs that run and wait when a server is asked to end; nothing where there are none."""
    running = sum(one.state == RUNNING for one in tickets)
    waiting = len(tickets) - running
    left = f"{counted(waiting, 'job')} that {'waits is' if waiting == 1 else 'wait are'} told that it ends"
    if not running:
        return f"the server ends: {left}" if waiting else ""
    ends = f"the server ends when what is painted is finished ({counted(running, 'job')})"
    return f"{ends}, and {left}; ask again to end now" if waiting else f"{ends}; ask again to end now"


def run(app: ASGIApp, served: Served, listening: socket.socket, told: Callable[[str], None]) -> None:
    """Serves until a signal asks it to end; what is painted then is finished first, unless a second signal comes.

    What it waits for then is ``told``.
    """

    def close() -> None:
        said = last_words(served.queue.tickets())
        served.queue.close()
        if said and not server.force_exit:
            told(said)

    server = Server(app, close, connections(served.settings.head))
    server.run(sockets=[listening])
    served.queue.close()
    served.queue.join(_FORCED if server.force_exit else None)
