"""Options as they are typed."""

from __future__ import annotations

from collections.abc import Mapping


def words_of(given: Mapping[str, object]) -> list[str]:
    """The words of options (name → value) that have a value, as a shell passes them on."""
    return [word for option, value in given.items() if value for word in (option, str(value))]
