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
LTX = [
    ("text_encoder", "cuda0", "all", "22.4 GiB", "301.5 MiB", "-", "cuda0", "0.12–0.21"),
    ("connectors", "cuda0", "all", "2.7 GiB", "101.5 MiB", "-", "cuda0", "0.0012–0.0021"),
    ("transformer", "cuda0", "blocks 1-17 of 48 and other layers", "14.4 GiB", "1002.3 MiB", "22.2 GiB",
     "22.2 GiB RAM + 1.2 GiB disk", "1200–2000"),
    ("", "cuda1", "blocks 18-48 of 48", "4.4 GiB", "1002.3 MiB", "2.2 GiB", "RAM", ""),
    ("transformer (program 2 of 2)", "cuda0", "all", "14.4 GiB", "1002.3 MiB", "22.2 GiB", "RAM", "100–200"),
    ("audio_vae.decode", "cuda0", "all", "100.1 MiB", "1.1 MiB", "-", "cuda0", "0.0098–0.016"),
]  # fmt: skip
DEVICES = [("cuda0", "16.0 GiB", "160.0 MiB", "14.4 GiB", "1002.5 MiB", "text_encoder_2", "16.0 GiB", "1.4 GiB",
            "14.6 GiB")]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "rows", "right"),
    [
        (HEAD, FLUX, RIGHT),
        (HEAD, LTX, RIGHT),
        (HEAD_OF_DEVICES, DEVICES, RIGHT_OF_DEVICES),
        (("device", "what it is", "free", "total"), [("cuda0", "NVIDIA " * 14, "7.5 GiB", "8.0 GiB")], (2, 3)),
        (profile.HEAD, [("transformer", "copies from sim0 to sim1", "segment 13, transformer_blocks.0 to 17, norm_out",
                         "28", "1234.567", "2345.678", "> 1000")], (3, 4, 5, 6)),
    ],
    ids=["plan", "plan of long names", "devices", "list", "profile"],
)  # fmt: skip
def test_tables_of_plans_devices_and_profiles_fit_eighty_columns(
    head: tuple[str, ...], rows: list[tuple[str, ...]], right: tuple[int, ...]
) -> None:
    text = table_text(head, rows, right)
    assert max(map(len, text.splitlines())) <= WIDTH, text
    words = text.replace("\n", " ").split()
    assert all(word.removesuffix("iB") for row in rows for cell in row for word in cell.split() if word in words)


def test_names_are_broken_only_where_no_other_column_gives_way() -> None:
    lines = table_text(HEAD, LTX, RIGHT).splitlines()
    assert "" not in lines
    firsts = [line.split()[0] for line in lines[2:] if line[0] != " "]
    assert firsts == [
        "text_encoder",
        "connectors",
        "transformer",
        "transformer",
        "(program",
        "2)",
        "audio_vae.",
        "decode",
    ]


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


def test_what_is_to_be_copied_is_never_wrapped() -> None:
    paths = [f"/home/somebody/models/plans of 2.0 GiB/{'very_' * 20}long/{name}.json" for name in "ab"]
    rows = [["text_encoder_2", "sim0 & sim1", "21.9 MiB", path] for path in paths]
    lines = table_text(("component", "devices", "weights", "plan"), rows, (2,), (3,)).splitlines()
    assert [line.split("  ", 3) for line in lines[1:]] == rows


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
