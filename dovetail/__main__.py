"""Makes `python -m dovetail` the command line."""

from dovetail.cli import main

main()
