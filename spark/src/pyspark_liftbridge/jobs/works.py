"""Descriptions of tasks: texts, because they reach Spark as an option of a data source."""

from collections.abc import Callable, Sequence

Runner = Callable[[Sequence[str]], Sequence[str]]
"""Runs the tasks of one job, and returns the result of each, in the same order."""

Progress = Callable[[int, int], None]
"""Receives how much is done, and how much there is in total."""


def silent(_done: int, _all: int) -> None:
    """Ignore progress."""


class RefusedError(RuntimeError):
    """A job was refused; nothing was changed."""
