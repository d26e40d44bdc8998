"""The command line."""


def main() -> None:
    """Runs the command line, and leaves the process with its exit code."""
    from .app import app

    app()
