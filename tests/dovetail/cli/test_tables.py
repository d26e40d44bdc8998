"""Tables fit a terminal of 80 columns, with all that they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli.commands import profile
from dovetail.cli.output.tables import WIDTH, table_text
from dovetail.planning.table import HEAD, HEAD_OF_DEVICES, RIGHT, RIGHT_OF_DEVICES

FLUX = [
    ("text_encoder_2", "cuda1", "all", "8.9 GiB", "1002.3 MiB", "-", "cuda1", "0.123"),
    ("transformer", "cuda0", "blocks 1-17 of 57 and other layers, in 4 chunks", "14.4 GiB", "301.5 MiB", "7.8 GiB",
     "22.2 GiB RAM + 1.2 GiB disk", "44.1"),
    ("vae.decode", "cuda0", "all, in tiles of 512x512", "160.0 MiB", "-", "-", "cuda0", "0.98"),
]  # fmt: skip
DEVICES = [("cuda0", "16.0 GiB", "160.0 MiB", "14.4 GiB", "1002.5 MiB", "text_encoder_2", "16.0 GiB", "1.4 GiB",
            "14.6 GiB")]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "rows", "right"),
    [
        (HEAD, FLUX, RIGHT),
        (HEAD_OF_DEVICES, DEVICES, RIGHT_OF_DEVICES),
        (("device", "what it is", "free", "total"), [("cuda0", "NVIDIA " * 14, "7.5 GiB", "8.0 GiB")], (2, 3)),
        (profile.HEAD, [("transformer", "copies from sim0 to sim1", "segment 13, transformer_blocks.0 to 17, norm_out",
                         "28", "1234.567", "2345.678", "> 1000")], (3, 4, 5, 6)),
    ],
    ids=["plan", "devices", "list", "profile"],
)  # fmt: skip
def test_tables_of_plans_devices_and_profiles_fit_eighty_columns(
    head: tuple[str, ...], rows: list[tuple[str, ...]], right: tuple[int, ...]
) -> None:
    text = table_text(head, rows, right)
    assert max(map(len, text.splitlines())) <= WIDTH, text
    words = text.replace("\n", " ").split()
    assert all(word.removesuffix("iB") for row in rows for cell in row for word in cell.split() if word in words)


def test_a_table_that_fits_is_left_as_it_is() -> None:
    rows = [("cuda0", "16.0 GiB"), ("cpu", "1.0 GiB")]
    assert table_text(("device", "is free"), rows, (1,)) == "device   is free\ncuda0   16.0 GiB\ncpu      1.0 GiB"


def test_units_are_shortened_before_words_are_wrapped() -> None:
    rows = [("x" * 60, "16.0 GiB", "301.5 MiB", "512 B")]
    assert table_text(("a", "b", "c", "d"), rows, (1, 2, 3)).splitlines()[1].split()[1:] == [
        "16.0G",
        "301.5M",
        "512",
        "B",
    ]


@given(st.lists(st.lists(st.text("ab 1", max_size=60), min_size=3, max_size=3), max_size=4))
def test_no_word_of_a_table_is_lost(rows: list[list[str]]) -> None:
    text = table_text(("one", "two", "three"), rows)
    letters = sorted(letter for row in rows for cell in row for letter in cell if letter.strip())
    below = "".join(text.splitlines()[1:])
    assert sorted(letter for letter in below if letter.strip()) == letters


def test_ratios_and_times_that_mean_nothing_are_no_numbers() -> None:
    assert profile._times(5116746.5) == "> 1000"
    assert profile._times(1.234) == "1.23"
    assert profile._ms(1e-9) == "< 0.001"
    assert profile._ms(0.0012344) == "1.234"
