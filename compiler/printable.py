"""Text from files, made fit for a terminal."""

from __future__ import annotations


def on_one_line(text: str) -> str:
    """A text with whatever is no printable character escaped, ends of lines too.

    >>> on_one_line("a\\n\\tb") == "a" + chr(92) + "n" + chr(92) + "tb"
    True
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def printable(text: str) -> str:
    """Text without characters that a terminal obeys: they are written as ``\\x1b``; line ends and tabs stay.

    >>> printable("a\\x1b[2Jb") == "a" + chr(92) + "x1b[2Jb"
    True
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def half_character(text: str) -> str:
    """The first half of a character in a text, which JSON and names of files can have and UTF-8 cannot; empty if none.

    >>> half_character("a" + chr(0xD83D)) == chr(0xD83D), half_character("a")
    (True, '')
    """
    return next((one for one in text if "\ud800" <= one <= "\udfff"), "")
