"""Options as they are typed."""

from __future__ import annotations

from collections.abc import Mapping


def words_of(given: Mapping[str, object]) -> list[str]:
    """The words of options (name → value) that have a value, 0 among them, as a shell passes them on."""
    typed = {option: value for option, value in given.items() if value not in (None, "")}
    return [word for option, value in typed.items() for word in (option, str(value))]
