"""The commands, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .commands.cache import cache
from .commands.compile import compile
from .commands.convert import convert
from .commands.devices import devices
from .commands.env import env
from .commands.explain import diff, explain
from .commands.generate import generate
from .commands.help import help
from .commands.passes import passes
from .commands.plan import plan
from .commands.profile import profile
from .commands.serve import serve
from .commands.show import show
from .commands.verify import verify
from .options.shared import Debug, Verbose, expanded, set_up_logging
from .outcome import Command, Commands

app = typer.Typer(
    cls=Commands,
    name="dovetail",
    help="Runs a diffusion model on whatever devices you have.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    generate,
    serve,
    plan,
    devices,
    compile,
    convert,
    show,
    explain,
    diff,
    verify,
    profile,
    passes,
    cache,
    env,
    help,
):
    app.command(cls=Command)(expanded(command))


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    list_devices: Annotated[bool, typer.Option("--list-devices", help="List the devices, and nothing else.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version, and nothing else.")] = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Sets up logging, and answers when no command is given."""
    set_up_logging(debug, verbose)
    if version:
        typer.echo(f"dovetail {__version__}")
        raise typer.Exit
    if list_devices:
        devices()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
