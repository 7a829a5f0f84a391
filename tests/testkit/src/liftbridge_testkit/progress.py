"""Progress messages of programs of the test kit."""

import sys


def say(text: str) -> None:
    """Print progress and flush, also through a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
