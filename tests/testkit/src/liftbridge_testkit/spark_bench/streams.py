"""Streams of the benchmark, stored in batches of a fixed size."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.load import data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftbridge_client import SyncClient
    from liftbridge_testkit.processes import Broker

PARTITIONS: Final = 2
"""One for each core."""

VALUE_BYTES: Final = 100
_IN_FLIGHT: Final = 32
"""Requests in flight; each of them is stored as a separate batch."""

_POOL_BYTES: Final = 1 << 20


class Kind(NamedTuple):
    """Records of a stream.

    Attributes:
        name: Name of the stream, and for `--only`.
        title: Title in the report.
        share: Share of the rows of the benchmark; small batches take long to publish.
        batch: Records of a stored batch.
        least: Bytes of the shortest value; the longest makes the mean `VALUE_BYTES`.
        has_headers: Whether each record has two headers of its own.
        target: Rows a second that a bulk read must reach; 0 for none.
    """

    name: str
    title: str
    share: float
    batch: int
    least: int = VALUE_BYTES
    has_headers: bool = False
    target: int = 0


KINDS: Final = (
    Kind("equal", "equal values", 1.0, 1_000, target=500_000),
    Kind("varying", "values of 50 to 150 bytes", 1.0, 1_000, least=50, target=500_000),
    Kind("ten", "ten records a stored batch", 0.5, 10, least=50, target=300_000),
    Kind("one", "one record a stored batch", 0.1, 1, least=50, target=80_000),
    Kind("headers", "headers that all differ", 0.25, 1_000, least=50, has_headers=True),
)


def rows_of(kind: Kind, rows: int) -> int:
    """Return the rows of a stream; a whole number of batches in each partition."""
    step = kind.batch * PARTITIONS
    return max(step, int(rows * kind.share) // step * step)


def fill(broker: Broker, client: SyncClient, kind: Kind, rows: int) -> None:
    """Create the stream of a kind and publish all of its records."""
    client.streams.create(kind.name, partitions=PARTITIONS)
    window = threading.Semaphore(_IN_FLIGHT)

    def paced() -> Iterator[data_pb2.PublishBatchRequest]:
        for request in _requests(kind, rows):
            window.acquire()
            yield request

    with broker.channel() as channel:
        for answer in data(channel).PublishBatch(paced()):
            window.release()
            assert not answer.error, answer


def _requests(kind: Kind, rows: int) -> Iterator[data_pb2.PublishBatchRequest]:
    draw = random.Random(1)
    pool = draw.randbytes(_POOL_BYTES)
    for number in range(rows // kind.batch):
        first = number * kind.batch
        request = data_pb2.PublishBatchRequest(
            request_id=number + 1,
            stream=kind.name,
            partition=number % PARTITIONS,
            ack_policy=api_pb2.LEADER,
        )
        for one in range(first, first + kind.batch):
            at = one * 97 % (_POOL_BYTES - 2 * VALUE_BYTES)
            size = draw.randint(kind.least, 2 * VALUE_BYTES - kind.least)
            request.values.append(pool[at : at + size] if kind.least < VALUE_BYTES else pool[:size])
            if kind.has_headers:
                entries = {"number": b"%d" % one, "trace": pool[at : at + 16]}
                request.headers.append(data_pb2.RecordHeaders(headers=entries))
        yield request
