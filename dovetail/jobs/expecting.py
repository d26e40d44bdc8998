"""Painters that work ahead: they are told which job likely comes later."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .job import Job


@runtime_checkable
class Expecting(Protocol):
    """A painter that can work ahead for a job that comes later."""

    def expect(self, job: Job | None) -> None:
        """Notes which job likely comes after the one that is painted next; None where nobody knows."""
