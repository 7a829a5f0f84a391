"""Refusals of tasks as texts, so that the driver raises what a task has met.

Spark tells the driver of a failed task by a text with a traceback, from which nobody can tell a
broker that is away from a bug. So a task gives its refusal as its result, and the driver raises it.
Spark does not repeat the task then, which has waited for brokers itself; it repeats tasks that die
of anything else.
"""

import json
from inspect import getmembers, isclass
from typing import Final

from liftbridge_client import errors as client_errors
from liftbridge_client.errors import LiftbridgeError
from pyspark_liftbridge.archive import errors as archive_errors
from pyspark_liftbridge.archive.errors import ArchiveError
from pyspark_liftbridge.jobs.works import RefusedError
from pyspark_liftbridge.plan.archiving import MissingError
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.source.cluster import PausedError
from pyspark_liftbridge.source.reading import DataLossError

REFUSALS: Final = (
    LiftbridgeError,
    ArchiveError,
    DataLossError,
    MissingError,
    OptionError,
    PausedError,
    RefusedError,
)
"""What a task gives as its result; anything else is a bug, or Spark's."""

_BY_NAME: Final = {
    found.__name__: found
    for found in (
        *REFUSALS,
        *(kind for _, kind in getmembers(client_errors, isclass)),
        *(kind for _, kind in getmembers(archive_errors, isclass)),
    )
    # Those that are made of more than a text are given as what they are a kind of.
    if issubclass(found, REFUSALS) and (found is LiftbridgeError or "__init__" not in vars(found))
}


def text_of(error: Exception) -> str:
    """A refusal as its task gives it."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _BY_NAME)
    return json.dumps([name, str(error)])


def error_of(text: str) -> Exception:
    """The refusal that `text_of` made a text of."""
    name, message = json.loads(text)
    return _BY_NAME[name](message)
