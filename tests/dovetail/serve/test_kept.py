"""Pictures that are kept for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.serve.work.kept import KeptPictures
from dovetail.serve.work.ticket import Form


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), max_size=40))
def test_a_picture_is_kept_for_its_time_unless_newer_ones_need_the_room(given: list[tuple[int, int]]) -> None:
    now, kept = 0.0, KeptPictures(60, 100, lambda: now)
    names: list[tuple[str, bytes, float]] = []
    for size, passed in given:
        now += passed
        data = bytes([size]) * size
        names.append((kept.keep(data, Form()), data, now))
        room = 100
        for name, was, when in reversed(names):
            room -= len(was)
            found = kept.find(name)
            assert (found is not None) == (room >= 0 and now < when + 60)
            assert found is None or found.data == was


def test_names_cannot_be_guessed() -> None:
    kept = KeptPictures(60, 1000)
    names = {kept.keep(b"x", Form()) for _ in range(50)}
    assert len(names) == 50
    assert min(map(len, names)) >= 32
