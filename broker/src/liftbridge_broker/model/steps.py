"""Runs stepwise work at once; a step of a generator ends where it yields."""

from collections.abc import Generator
from typing import TypeVar

Outcome = TypeVar("Outcome")


def finish(steps: Generator[None, None, Outcome]) -> Outcome:
    """Run all steps at once, for a caller that has the time."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome
