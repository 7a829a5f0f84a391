"""Progress messages of programs of the test kit."""

import sys


def say(text: str) -> None:
    """Show progress at once, also through a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
