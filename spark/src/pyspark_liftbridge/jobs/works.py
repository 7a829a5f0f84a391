"""Works of a job: texts, so that each reaches a task of Spark as an option of a data source."""

from collections.abc import Callable, Sequence

Runner = Callable[[Sequence[str]], Sequence[str]]
"""Does the works of one job, each in a task, and gives what each told, in their order."""

Progress = Callable[[int, int], None]
"""Gets how much is done, and how much there is."""


def silent(_done: int, _all: int) -> None:
    """Progress that nobody looks at."""


class RefusedError(RuntimeError):
    """A job must not be done; nothing was changed."""
