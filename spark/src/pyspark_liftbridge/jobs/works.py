"""Descriptions of tasks: texts, because they reach Spark as an option of a data source."""

from collections.abc import Callable, Sequence

Runner = Callable[[Sequence[str]], Sequence[str]]
"""Runs the tasks of one job, and returns the result of each, in the same order."""

Progress = Callable[[int, int], None]
"""Receives the completed work and the total work."""


def silent(_done: int, _all: int) -> None:
    """Ignore progress."""


class RefusedError(RuntimeError):
    """A job was refused; nothing was changed."""
