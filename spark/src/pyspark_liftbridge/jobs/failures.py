"""Refusals of tasks as texts, so that the driver raises a task's error.

Spark reports a failed task to the driver by a text with a traceback, which does not distinguish an
unavailable broker from a bug. So a task returns its refusal as its result, and the driver raises
it. Spark then does not repeat the task, which has waited for brokers itself; it repeats tasks that
fail for other reasons.
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
"""Errors that a task returns as its result; any other error is a bug, or Spark's."""

_BY_NAME: Final = {
    found.__name__: found
    for found in (
        *REFUSALS,
        *(kind for _, kind in getmembers(client_errors, isclass)),
        *(kind for _, kind in getmembers(archive_errors, isclass)),
    )
    # Errors with more arguments than a text are returned as their base class.
    if issubclass(found, REFUSALS) and (found is LiftbridgeError or "__init__" not in vars(found))
}


def text_of(error: Exception) -> str:
    """Format a refusal as a task's result."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _BY_NAME)
    return json.dumps([name, str(error)])


def error_of(text: str) -> Exception:
    """Parse the result of `text_of`."""
    name, message = json.loads(text)
    return _BY_NAME[name](message)
