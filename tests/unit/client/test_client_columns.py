"""Bulk reads as columns: what a response must be to be believed, and what is read ahead."""

import asyncio
from types import SimpleNamespace

import pytest
from grpc import StatusCode
from tenacity import AsyncRetrying, stop_after_attempt

from liftbridge_broker.model.ids import LeaderEpoch
from liftbridge_client import (
    FailedPreconditionError,
    OutOfRangeError,
    RetriableError,
    ServerError,
    TruncatedError,
    UsageError,
)
from liftbridge_client.aio.bulk import ahead
from liftbridge_client.aio.stream import Stream
from liftbridge_client.errors import error_of
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.batches import PARTITION, Batches


def response(*batches, end):
    return data_pb2.FetchBatchesResponse(
        data=b"".join(batches), next_offset=end, high_watermark=90, log_start=4
    )


def batch(base, count=2, *, epoch=3, partition_id=PARTITION):
    maker = Batches(partition_id=partition_id)
    return maker.make(base, [b"v"] * count, epoch=LeaderEpoch(epoch), timestamp=1)


class Reading:
    """Responses of one call; an error in their place ends it."""

    def __init__(self, responses):
        self._responses = list(responses)

    async def read(self):
        found = self._responses.pop(0) if self._responses else None
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self):
        pass


class Cluster:
    """A session with one broker that answers call after call as it was told."""

    timeout_seconds = retry_seconds = call_seconds = 5.0

    def __init__(self, *calls):
        self.calls = list(calls)
        self.requests = []
        self.stats = SimpleNamespace(received=0)
        self.transport = SimpleNamespace(server_stream=self._server_stream)

    def _server_stream(self, address, _method, request):
        self.requests.append((address, request))
        return Reading(self.calls.pop(0))

    async def leader_address(self, *_partition):
        return "leader"

    async def replica_address(self, _stream, _partition, avoided):
        return "replica" if "replica" not in avoided else "other"

    def doubt_leader(self, *_partition):
        pass

    def attempts(self, _path):
        return AsyncRetrying(stop=stop_after_attempt(1), reraise=True)

    async def ask(self, _address, _method, request):
        (number,) = request.partitions
        bounds = data_pb2.PartitionBounds(partition=number)
        bounds.epochs.add(leader_epoch=3, start_offset=0)
        return data_pb2.PartitionBoundsResponse(partitions=[bounds])


async def read(cluster, **wanted):
    stream = Stream(cluster, "s")
    return [one async for one in stream.fetch_columns(start=4, **wanted)]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
async def test_responses_become_columns_in_order(prefetch):
    cluster = Cluster([response(batch(4), batch(6), end=8), response(batch(8), end=10)])
    found = await read(cluster, columns=["offset"], prefetch=prefetch)
    assert [one.records.column("offset").to_pylist() for one in found] == [[4, 5, 6, 7], [8, 9]]
    assert [one[1:] for one in found] == [(8, 90, 4), (10, 90, 4)]
    assert cluster.stats.received == 6
    assert [request.is_strict for _, request in cluster.requests] == [True]


@pytest.mark.parametrize(
    ("batches", "error", "text"),
    [
        ((batch(6),), OutOfRangeError, "offset 4 of s/0 is out of range: the log holds .* from 4"),
        ((batch(4), batch(7)), ServerError, "batches of s/0 do not adjoin: 7 after 6"),
        ((batch(3, 3),), ServerError, "batches of s/0 do not adjoin: 3 after 4"),
        ((batch(4), batch(6, epoch=2)), ServerError, "leader epoch of s/0 decreases at offset 6"),
        (
            (batch(4), batch(6, partition_id=PARTITION + (1 << 24))),
            FailedPreconditionError,
            "stream s has id .*, not .*: it was recreated",
        ),
    ],
)
async def test_batches_that_do_not_go_on_are_no_answer(batches, error, text):
    with pytest.raises(error, match=text):
        await read(Cluster([response(*batches, end=9)]))


@pytest.mark.parametrize(
    ("epoch", "epochs", "cut"),
    [(5, [(3, 0), (5, 5)], 5), (2, [(2, 0), (5, 9)], 4), (5, [(3, 0), (5, 6)], None)],
    ids=["later", "former", "orderly"],
)
async def test_batch_of_another_epoch_comes_only_behind_what_stands(epoch, epochs, cut):
    cluster = Cluster([response(batch(4), end=6), response(batch(6, epoch=epoch), end=8)])

    async def ask(_address, _method, _request):
        bounds = data_pb2.PartitionBounds(partition=0, unclean_epoch=5)
        for one, start in epochs:
            bounds.epochs.add(leader_epoch=one, start_offset=start)
        return data_pb2.PartitionBoundsResponse(partitions=[bounds])

    cluster.ask = ask
    if cut is None:
        assert len(await read(cluster)) == 2
        return
    with pytest.raises(TruncatedError) as caught:
        await read(cluster)
    assert (caught.value.offset, caught.value.next_offset) == (cut, 6)


async def test_read_goes_on_at_another_replica_where_one_failed():
    lost = error_of(StatusCode.UNAVAILABLE, "gone")
    cluster = Cluster([lost], [response(batch(4), end=6)])
    found = await read(cluster, read_replica=True)
    assert [one.records.num_rows for one in found] == [2]
    assert [address for address, _ in cluster.requests] == ["replica", "other"]
    assert isinstance(lost, RetriableError)


async def test_a_read_of_few_bytes_at_a_time_is_call_after_call_up_to_the_first_end():
    size = len(batch(4))
    calls = [[response(batch(at), end=at + 2)] for at in (4, 6, 8)] + [[]]
    cluster = Cluster(*calls)
    found = await read(cluster, columns=["offset"], call_bytes=size, max_bytes=0)
    assert [one.next_offset for one in found] == [6, 8, 10]
    assert [
        (request.start_offset, request.end_offset, request.max_bytes)
        for _, request in cluster.requests
    ] == [(4, 0, size), (6, 90, size), (8, 90, size), (10, 90, size)]


@pytest.mark.parametrize(("more", "calls"), [(-1, 1), (0, 1), (1, 2)])
async def test_the_bound_of_a_read_stands_over_that_of_a_call(more, calls):
    size = len(batch(4))
    cluster = Cluster(*[[response(batch(at), end=at + 2)] for at in (4, 6, 8)])
    await read(cluster, max_bytes=size + more, call_bytes=size)
    assert len(cluster.requests) == calls


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"columns": ["values"]}, "no such columns: values;"),
        ({"prefetch": -1}, "prefetch -1: must"),
    ],
)
async def test_senseless_read_is_refused_before_anything_is_asked(wanted, text):
    cluster = Cluster()
    with pytest.raises(UsageError, match=text):
        await read(cluster, **wanted)
    assert cluster.requests == []


async def test_so_many_items_are_taken_ahead_and_no_more():
    taken = []

    async def source():
        for number in range(9):
            taken.append(number)
            yield number

    items = ahead(source(), 2)
    assert await anext(items) == 0
    for _ in range(10):
        await asyncio.sleep(0)
    # Two wait, and one more that has no place yet.
    assert taken == [0, 1, 2, 3]
    assert [item async for item in items] == list(range(1, 9))


async def test_error_of_the_source_comes_behind_its_items():
    async def source():
        yield 1
        raise ServerError("broken")

    items = ahead(source(), 3)
    assert await anext(items) == 1
    with pytest.raises(ServerError, match="broken"):
        await anext(items)


async def test_source_is_closed_with_what_reads_it():
    closed = []

    async def source():
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    items = ahead(source(), 1)
    await anext(items)
    await items.aclose()
    assert closed == [True]
