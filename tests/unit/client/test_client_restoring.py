"""What a restore takes, and how it is cut into requests."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from liftbridge_client import RetriableError, UsageError
from liftbridge_client.aio import restoring
from liftbridge_client.aio.restoring import (
    REQUEST_BYTES_MAX,
    REQUEST_RECORDS_MAX,
    Restorer,
)
from liftbridge_client.columns import FIELDS
from liftbridge_client.core.record_slices import slices
from liftbridge_proto.ext.v1 import data_pb2


def records(offsets, **columns):
    """A record batch; values are empty unless they are given."""
    columns = {"offset": offsets, "value": [b""] * len(offsets), **columns}
    return pa.record_batch(
        [pa.array(values, FIELDS[name].type) for name, values in columns.items()],
        names=list(columns),
    )


def pieces_of(given):
    return [
        piece
        for piece, _ in slices(given, count_max=REQUEST_RECORDS_MAX, bytes_max=REQUEST_BYTES_MAX)
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (records([1]).select(["offset"]), "columns of a restore must be offset, value and any of"),
        (records([1], leader_epoch=[1]), "not leader_epoch, offset, value"),
        (records([1, 1]), "offsets of a restore must be at least 0 and increasing"),
        (records([-1]), "offsets of a restore must be at least 0 and increasing"),
        (records([1], value=[None]), "columns of a restore must not have nulls: value"),
        (records([1], subject=[None]), "columns of a restore must not have nulls: subject"),
    ],
)
async def test_columns_of_no_use_are_refused_before_anything_is_asked(given, text):
    with pytest.raises(UsageError, match=text):
        await Restorer(None, "s", 0).put(given)


def test_requests_hold_a_bounded_number_of_records_and_bytes():
    many = records(list(range(REQUEST_RECORDS_MAX * 2 + 1)))
    assert [one.num_rows for one in pieces_of(many)] == [REQUEST_RECORDS_MAX] * 2 + [1]
    third = REQUEST_BYTES_MAX // 3
    large = records([1, 2, 3, 4], value=[bytes(third)] * 3 + [bytes(REQUEST_BYTES_MAX * 2)])
    assert [one.num_rows for one in pieces_of(large)] == [3, 1]


@pytest.mark.parametrize("is_cut", [False, True])
def test_keys_headers_and_subjects_count_as_well(is_cut):
    half = REQUEST_BYTES_MAX // 2 + 1
    columns = {
        "key": [None, None, bytes(half), None],
        "headers": [[], [("h", bytes(half))], [], [("a", b""), ("b", bytes(half))]],
        "subject": ["s"] * 4,
        "reply_subject": [""] * 4,
    }
    given = records([3, 5, 6, 9], **columns)
    pieces = pieces_of(given.slice(1) if is_cut else given)
    assert [one.column("offset").to_pylist() for one in pieces] == (
        [[5], [6], [9]] if is_cut else [[3, 5], [6], [9]]
    )


class Call:
    """A leader that stores everything."""

    def __init__(self, stored):
        self.stored = stored

    async def connected(self):
        """It is there at once."""

    async def write(self, request):
        self.stored += request.offsets

    async def read(self):
        return data_pb2.PublishBatchResponse()

    def cancel(self):
        """Nothing is under way."""


class Session:
    """A client whose brokers tell these bounds, one after the other, and the last for ever."""

    def __init__(self, *bounds, retry_seconds=30.0):
        self.bounds = [
            data_pb2.PartitionBounds(log_end=end, high_watermark=mark) for end, mark in bounds
        ]
        self.stored = []
        self.timeout_seconds = 5.0
        self.retry_seconds = self.call_seconds = retry_seconds
        self.stats = SimpleNamespace(published=0, retries=0)
        self.transport = SimpleNamespace(duplex=lambda *_: Call(self.stored))

    async def tell(self, *_):
        return [self.bounds.pop(0) if len(self.bounds) > 1 else self.bounds[0]]

    async def leader_address(self, *_):
        return "leader"

    def doubt_leader(self, *_):
        """There is one only."""


def restorer_of(session, monkeypatch):
    monkeypatch.setattr(restoring, "fetch_bounds", lambda client, *_: client.tell())
    monkeypatch.setattr(restoring, "WAIT_SECONDS", 0.001)
    return Restorer(session, "s", 0)


async def test_what_the_log_holds_counts_once_it_is_committed(monkeypatch):
    """The leader that had records 0 to 2 was replaced before others had them."""
    session = Session((3, 0), (0, 0))
    restorer = restorer_of(session, monkeypatch)
    await restorer.put(records([0, 1, 2, 3]))
    assert await restorer.finish() == 4
    assert session.stored == [0, 1, 2, 3]


async def test_a_restore_goes_on_behind_what_is_committed(monkeypatch):
    session = Session((3, 3))
    restorer = restorer_of(session, monkeypatch)
    await restorer.put(records([0, 1, 2, 3]))
    assert await restorer.finish() == 4
    assert session.stored == [3]


async def test_a_log_that_is_not_committed_ends_the_restore_in_time(monkeypatch):
    restorer = restorer_of(Session((3, 1), retry_seconds=0.02), monkeypatch)
    with pytest.raises(RetriableError, match="s/0 is committed up to 1 of 3"):
        await restorer.put(records([0, 1, 2, 3]))
