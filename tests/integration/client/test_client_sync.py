"""The blocking client against a broker: every call, threads, and its end."""

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from liftbridge_client import (
    Ack,
    ClosedError,
    CodecError,
    JsonCodec,
    NotFoundError,
    Outgoing,
    Start,
    Stop,
    StreamSettings,
    UsageError,
    connect_sync,
)


@pytest.fixture
def client(broker):
    with connect_sync(broker.address) as lb:
        yield lb


def values(stream, **more):
    reading = stream.subscribe(start=Start.earliest(), stop=Stop.latest(), **more)
    return [message.value for message in reading]


def test_every_call_of_a_stream_works(client, name):
    stream = client.streams.create(name, partitions=2)
    assert stream.name == name
    assert isinstance(stream.publish(b"a", key=b"k", partition=1, ack_policy="all"), Ack)
    assert stream.publish(b"b", partition=1, ack_policy="none") is None
    assert client.publish_to_subject(f"{name}.1", b"c").offset == 2
    assert values(stream, partition=1) == [b"a", b"b", b"c"]
    assert list(stream.info().partitions) == [0, 1]
    assert stream.partition_info(1).newest_offset == 2
    assert [bounds.log_end for bounds in stream.bounds()] == [0, 3]
    stream.alter(StreamSettings(retention_max_age=timedelta(days=7)))
    (described,) = client.streams.describe(name)
    assert described.settings.retention_max_age == timedelta(days=7)
    stream.set_cursor("me", 1, partition=1)
    assert stream.fetch_cursor("me", partition=1) == 1
    assert stream.fetch_cursor("you", partition=1) is None
    stream.set_readonly(0)
    stream.pause(0, resume_all=True)
    assert stream.info().partitions[0].paused
    columns = list(stream.fetch_arrow(partition=1, start=1))
    assert [v for batch in columns for v in batch.column("value").to_pylist()] == [b"b", b"c"]
    assert [info.name for info in client.streams.list(name)] == [name]
    assert name in client.metadata().streams
    stream.delete()
    with pytest.raises(NotFoundError):
        client.streams.get(name).info()


def test_publisher_gives_acks_futures_and_results(client, name):
    stream = client.streams.create(name)
    with stream.publisher(idempotent=True, linger=timedelta(milliseconds=1)) as publisher:
        assert publisher.publish(b"0").offset == 0
        futures = [publisher.publish_nowait(b"%d" % n) for n in range(1, 50)]
        publisher.flush()
        assert all(future.done() for future in futures)
        assert [future.result().offset for future in futures] == list(range(1, 50))
        results = publisher.publish_batch([b"50", Outgoing(b"51", b"k")])
        assert [ack.offset for ack in results] == [50, 51]
    with pytest.raises(ClosedError):
        publisher.publish(b"x")
    assert values(stream) == [b"%d" % n for n in range(52)]
    assert client.stats.published == 52


def test_codec_works_on_both_sides(client, name):
    stream, codec = client.streams.create(name), JsonCodec(list[int])
    with stream.publisher(codec=codec) as publisher:
        publisher.publish([1])
        with pytest.raises(CodecError):
            publisher.publish_nowait([object()])
    assert values(stream, codec=codec) == [[1]]


def test_batches_tell_where_to_go_on(client, name):
    stream = client.streams.create(name)
    with stream.publisher() as publisher:
        publisher.publish_batch([b"a", b"b"])
    subscription = stream.subscribe(start=Start.earliest(), stop=Stop.latest())
    assert subscription.next_offset is None
    assert [m.value for batch in subscription.batches() for m in batch] == [b"a", b"b"]
    assert subscription.next_offset == 2


def test_many_threads_share_a_client(client, name):
    stream = client.streams.create(name)
    with stream.publisher() as publisher, ThreadPoolExecutor(8) as pool:
        acks = list(pool.map(lambda n: publisher.publish(b"%d" % n), range(200)))
    assert sorted(ack.offset for ack in acks) == list(range(200))
    assert sorted(values(stream)) == sorted(b"%d" % n for n in range(200))


def test_closing_ends_calls_that_wait_and_leaves_no_thread(broker, name):
    before = set(threading.enumerate())  # other tests may have clients open
    client = connect_sync(broker.address)
    with client, ThreadPoolExecutor(2) as pool:
        stream = client.streams.create(name)
        stream.publish(b"a")
        reading = iter(stream.subscribe(start=Start.earliest()))
        assert next(reading).value == b"a"
        waiting = [
            pool.submit(next, reading),
            pool.submit(client._portal.run, asyncio.Event().wait()),
        ]
        client.close()
        for call in waiting:
            with pytest.raises(ClosedError):
                call.result(10)
    client.close()
    assert "liftbridge" not in {thread.name for thread in set(threading.enumerate()) - before}
    with pytest.raises(ClosedError, match="with connect_sync"):
        stream.publish(b"b")


def test_callback_that_would_wait_for_itself_is_told_so(client, name):
    stream = client.streams.create(name)
    told = []

    def callback(_future):
        try:
            stream.publish(b"again")
        except UsageError as error:
            told.append(str(error))

    with stream.publisher() as publisher:
        publisher.publish_nowait(b"a").add_done_callback(callback)
    assert len(told) == 1
    assert "callback" in told[0]


def test_loop_that_is_left_early_ends_the_subscription(client, name):
    stream = client.streams.create(name)
    with stream.publisher() as publisher:
        publisher.publish_batch([b"a", b"b"])
    for _ in range(3):
        for message in stream.subscribe(start=Start.earliest()):
            assert message.value == b"a"
            break
    assert values(stream) == [b"a", b"b"]


def test_forked_process_is_told_that_the_client_is_not_its_own(client, name):
    stream = client.streams.create(name)

    def use(results):
        for call in (stream.info, lambda: values(stream), lambda: list(stream.fetch_columns())):
            try:
                call()
            except UsageError as error:
                results.put(str(error).partition(": ")[2])
        client.close()
        results.put("closed")

    text = "open the client after the fork, or start processes with spawn"
    assert in_fork(use) == [text, text, text, "closed"]
    assert stream.info().name == name


def in_fork(function):
    """What a function puts into a queue in a forked process."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=function, args=(results,))
    process.start()
    process.join(30)
    process.kill()
    found = []
    while not results.empty():
        found.append(results.get())
    return found
