"""What a server has done, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ...jobs.facts import facts_of
from ...jobs.runner import Painter
from .ticket import DONE, RUNNING, WAITING, Ticket

if TYPE_CHECKING:
    from .queue import Queue

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Measures:
    """Counters of jobs, seconds by phase, and what is in use of devices; of one server, not of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "dovetail", "registry": self.registry}
        self.requests = Counter("requests", "Answers by route and status.", ["route", "status"], **own)
        self.jobs = Counter("jobs", "Jobs by what became of them.", ["outcome"], **own)
        self.pictures = Counter("pictures", "Pictures that were painted.", **own)
        self.refused = Counter("jobs_refused", "Jobs that found no room in the queue.", **own)
        self.seconds = Histogram("job_seconds", "Seconds of a job, painted.", buckets=_SECONDS, **own)
        self.waited = Histogram("job_waiting_seconds", "Seconds that a job waited.", buckets=_SECONDS, **own)
        self.phases = Counter("phase_seconds", "Seconds of pictures by phase.", ["phase"], **own)
        self.peaks = Gauge("device_peak_bytes", "The most bytes in use so far.", ["device"], **own)
        self.used = Gauge("device_used_bytes", "Bytes in use after the last job.", ["device"], **own)
        self.planned = Gauge("device_planned_bytes", "The most bytes that the plan has.", ["device"], **own)
        self.cache = Counter("cache_lookups", "Traces that were read from disk, or made.", ["result"], **own)
        self.queue = Gauge("queue_jobs", "Jobs that run, and that wait.", ["state"], **own)

    def painted(self, painter: Painter) -> None:
        """Takes what a painter says of its last job."""
        facts = facts_of(painter)
        for phase, seconds in facts.phases.items():
            self.phases.labels(phase).inc(max(0.0, seconds))
        for name, device in facts.devices.items():
            self.peaks.labels(name).set(device.peak)
            self.used.labels(name).set(device.used)
            self.planned.labels(name).set(device.planned)
        for result, count in facts.cache.items():
            self.cache.labels(result).inc(count)

    def ended(self, ticket: Ticket) -> None:
        """Counts a job that is over."""
        self.jobs.labels(ticket.state).inc()
        if ticket.state == DONE:
            self.pictures.inc(len(ticket.files))
            self.seconds.observe(ticket.seconds)
        if ticket.begun:
            self.waited.observe(max(0.0, ticket.begun - ticket.asked))

    def text(self, queue: Queue) -> bytes:
        """All of it, as Prometheus reads it."""
        states = [ticket.state for ticket in queue.tickets()]
        for state in (RUNNING, WAITING):
            self.queue.labels(state).set(states.count(state))
        return generate_latest(self.registry)
