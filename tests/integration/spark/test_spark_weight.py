"""A limit in bytes goes by what records weigh where the next micro-batch reads."""

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.plan.offsets import Offsets, StreamOffsets
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.source import cluster, weight

SMALL, LARGE = 10, 20_000


def options_of(broker: Broker, name: str) -> SourceOptions:
    return read_source({"servers": broker.address, "subscribe": name}, is_stream=True)


def offsets(name: str, stream_id: int, *next_offsets: int) -> Offsets:
    return Offsets({name: StreamOffsets(stream_id, dict(enumerate(next_offsets)))})


def test_records_weigh_what_they_do_where_the_batch_begins(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    stream = lb.streams.create(name, partitions=2)
    with stream.publisher() as publisher:
        publisher.publish_batch([bytes(SMALL)] * 500, partition=0)
        publisher.publish_batch([bytes(LARGE)] * 50, partition=0)
        publisher.publish_batch([bytes(LARGE)] * 2, partition=1)
    options, stream_id = options_of(broker, name), stream.bounds()[0].stream_id
    latest = offsets(name, stream_id, 550, 2)

    def mean(*start: int) -> float | None:
        begin = offsets(name, stream_id, *start)
        return weight.mean_bytes(lb, begin, latest, options)

    small, large, both = mean(0, 2), mean(500, 2), mean(450, 0)
    assert small is not None
    assert SMALL < small < 4_000
    assert large is not None
    assert LARGE < large < LARGE + 500
    assert both is not None
    assert small < both < large
    assert mean(550, 2) is None


def test_what_cannot_be_weighed_is_left_to_the_task(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    stream = lb.streams.create(name)
    stream.publish(b"one")
    stream_id = stream.bounds()[0].stream_id
    options = options_of(broker, name)
    known = offsets(name, stream_id + 1, 0), offsets(name, stream_id + 1, 1)
    assert weight.mean_bytes(lb, *known, options) is None
    plain = cluster.client_of(options.connection, 10**9, is_plain=True)
    known = offsets(name, stream_id, 0), offsets(name, stream_id, 1)
    assert weight.mean_bytes(plain, *known, options) is None
    assert weight.mean_bytes(lb, *known, options) is not None
