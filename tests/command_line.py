"""Runs commands of `dovetail` within the process of a test."""

from __future__ import annotations

from typer.testing import CliRunner

from dovetail.cli.app import app


def done(*words: str) -> str:
    """What a command that ends well prints on stdout."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout
