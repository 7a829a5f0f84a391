"""Calls at the wrong time or in the wrong place are told; nobody waits for ever."""

import asyncio
import threading

import pyarrow as pa
import pytest

from liftbridge_client import (
    ClosedError,
    LiftbridgeError,
    Outgoing,
    Start,
    UsageError,
    connect,
    connect_admin,
    connect_sync,
)

RECORDS = pa.RecordBatch.from_pydict({"value": [b"x"]})


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("count", [1, 50])
async def test_a_publisher_outlives_its_client_and_nobody_waits(broker, name, count, has_data):
    lb = connect(broker.address)
    await lb.__aenter__()
    lb.has_data = has_data
    publisher = (await lb.streams.create(name)).publisher()
    await publisher.__aenter__()
    await publisher.publish(b"before")
    waiting = [publisher.publish_nowait(b"during") for _ in range(count)]
    await asyncio.sleep(0)  # they are handed over, and the call that sends them is cancelled
    await lb.aclose()
    async with asyncio.timeout(20):
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(3):
            with pytest.raises(ClosedError):
                await publisher.publish(b"after")
        await publisher.aclose()
    assert all(isinstance(one, LiftbridgeError | tuple) for one in results)


async def test_another_event_loop_is_told(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            await publisher.publish(b"x")
            calls = [
                lb.metadata,
                lambda: stream.publish(b"x"),
                lambda: publisher.publish(b"x"),
                lambda: publisher.publish_batch([b"x"]),
                stream.bounds,
                lambda: anext(aiter(stream.subscribe())),
            ]

            async def bounded(call):
                async with asyncio.timeout(20):
                    await call()

            for call in calls:
                with pytest.raises(UsageError, match="another event loop opened this client"):
                    await asyncio.to_thread(asyncio.run, bounded(call))
            assert (await publisher.publish(b"x")).offset == 1


async def test_a_blocking_client_works_inside_a_running_event_loop(broker, name):
    with connect_sync(broker.address) as lb:  # as in a notebook
        stream = lb.streams.create(name)
        with stream.publisher() as publisher:
            assert publisher.publish(b"x").offset == 0
        assert next(iter(stream.subscribe(start=Start.earliest()))).value == b"x"
        assert next(lb.events()) is not None


async def test_a_client_is_opened_once_at_a_time(broker):
    for made in (connect(broker.address), connect_admin(broker.admin_address)):
        async with made:
            with pytest.raises(UsageError, match="already open"):
                await made.__aenter__()
        async with made:
            pass


def test_a_blocking_client_is_opened_once_at_a_time(broker):
    before = threading.active_count()
    lb = connect_sync(broker.address)
    with lb, pytest.raises(UsageError, match="already open"):
        lb.__enter__()
    with lb:
        lb.metadata()
    assert threading.active_count() <= before + 1  # that of grpcio


@pytest.mark.filterwarnings("error")
def test_a_publisher_that_is_not_open_leaves_no_coroutine(broker, name):
    with connect_sync(broker.address) as lb:
        publisher = lb.streams.create(name).publisher()
    for _ in range(2):
        with pytest.raises(ClosedError):
            publisher.publish_nowait(b"x")


async def test_a_column_publisher_that_is_not_open_is_told(lb, name):
    publisher = (await lb.streams.create(name)).column_publisher()
    for entered in (False, True):
        if entered:
            async with publisher:
                await publisher.put(RECORDS)
                await publisher.finish()
        with pytest.raises(ClosedError, match="publisher is not open"):
            await publisher.put(RECORDS)
        with pytest.raises(ClosedError, match="publisher is not open"):
            await publisher.finish()


@pytest.mark.parametrize("number", [-(2**63), -1, 1, 2**31, 2**40, 2**63, 2**64 - 1])
async def test_a_partition_beyond_those_of_the_stream_is_told(lb, name, number):
    stream = await lb.streams.create(name)
    kind = pa.uint64() if number > 0 else pa.int64()
    records = pa.RecordBatch.from_pydict(
        {"value": [b"x", b"y"], "partition": pa.array([0, number], kind)}
    )
    outgoing = [Outgoing(b"x"), Outgoing(b"y", partition=number)]
    async with asyncio.timeout(20), stream.publisher() as publisher:
        for call in (
            lambda: stream.publish_columns([records]),
            lambda: stream.publish(b"x", partition=number),
            lambda: publisher.publish(b"x", partition=number),
            lambda: publisher.publish_batch([b"x"], partition=number),
            lambda: publisher.publish_batch(outgoing),
            lambda: stream.publish(b"x", partitioner=lambda *_: number),
        ):
            with pytest.raises(UsageError, match=f"partition {number}: "):
                await call()
    assert (await stream.partition_info(0)).newest_offset == -1


WRONG_BATCHES = {
    "a table": pa.Table.from_batches([RECORDS]),
    "a batch": RECORDS,
    "rows": [{"value": b"x"}],
    "bytes": [b"x"],
    "texts as partitions": [
        pa.RecordBatch.from_pydict({"value": [b"x"], "partition": ["first"]}),
    ],
}


@pytest.mark.parametrize("wrong", WRONG_BATCHES)
async def test_what_is_no_list_of_batches_is_told(lb, name, wrong):
    stream = await lb.streams.create(name)
    for call in (stream.publish_columns, lambda batches: stream.restore(0, batches)):
        with pytest.raises(UsageError, match=r"batch|column"):
            await call(WRONG_BATCHES[wrong])


def test_what_is_no_list_of_batches_is_told_by_blocking_calls(broker, name):
    with connect_sync(broker.address) as lb:
        stream = lb.streams.create(name)
        for wrong in (*WRONG_BATCHES.values(), None, "text", 5):
            for call in (stream.publish_columns, lambda batches: stream.restore(0, batches)):
                with pytest.raises(UsageError, match=r"batch|column"):
                    call(wrong)
