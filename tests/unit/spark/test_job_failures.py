"""Refusals of tasks: the driver raises what the task has met."""

import pytest

from liftbridge_client.cli import exits
from liftbridge_client.errors import (
    CallTimeoutError,
    LiftbridgeError,
    RetriableError,
    TruncatedError,
)
from pyspark_liftbridge.archive.errors import ArchiveError, ConflictError, StoreError
from pyspark_liftbridge.jobs.failures import REFUSALS, error_of, text_of
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.source.cluster import PausedError
from pyspark_liftbridge.source.reading import DataLossError


class OfAnotherJobError(ArchiveError):
    """Not in the table."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RetriableError("nobody"), RetriableError),
        (CallTimeoutError("late"), CallTimeoutError),
        (TruncatedError("cut", offset=1, next_offset=2), LiftbridgeError),
        (StoreError("full"), StoreError),
        (ConflictError(7), ArchiveError),
        (OfAnotherJobError("odd"), ArchiveError),
        (DataLossError("gone"), DataLossError),
        (PausedError("paused"), PausedError),
        (OptionError("wrong"), OptionError),
    ],
    ids=lambda one: one.__name__ if isinstance(one, type) else "",
)
def test_refusal_comes_out_as_it_went_in(error, kind):
    assert isinstance(error, REFUSALS)
    found = error_of(text_of(error))
    assert type(found) is kind
    assert str(found) == str(error)


def test_absent_and_late_brokers_have_exit_codes_of_their_own():
    codes = [
        exits.line_and_code(error_of(text_of(kind("x"))))[1]
        for kind in (RetriableError, CallTimeoutError)
    ]
    assert codes == [exits.UNHEALTHY, exits.TIMED_OUT]
