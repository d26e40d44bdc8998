"""Makes `python -m dovetail` the command line."""

from dovetail.cli import run

run()
