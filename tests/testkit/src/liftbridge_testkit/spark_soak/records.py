"""Records whose contents follow from partition and offset, published while others read."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftbridge_client import LiftbridgeError, Numbering, connect_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

VALUE_BYTES: Final = 100
_WORDS: Final = 13
"""Numbers of eight bytes from which values are cut."""

PIECE_RECORDS: Final = 3_000
_POLL_SECONDS: Final = 0.05
RETRY_TIME: Final = timedelta(seconds=120)
"""Retry time; a killed leader returns much earlier."""


def values(partition: int, offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of records, all different and incompressible."""
    count = len(offsets)
    seeds = offsets.astype(np.uint64) * np.uint64(64) + np.uint64(partition << 56)
    places = np.arange(_WORDS, dtype=np.uint64)
    words: npt.NDArray[np.uint64] = seeds[:, None] * np.uint64(_WORDS) + places
    # The finalizer of SplitMix64 spreads every bit over the whole number.
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    data = words.view(np.uint8).reshape(count, 8 * _WORDS)[:, :VALUE_BYTES]
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(VALUE_BYTES)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def counts(records: int, partitions: int) -> dict[int, int]:
    """Return the number of records of each partition for this total."""
    return {
        one: records * (one + 1) // partitions - records * one // partitions
        for one in range(partitions)
    }


class Publishing:
    """A thread that publishes records up to a limit, each once, acknowledged by all replicas.

    Args:
        servers: Brokers.
        stream: An empty stream.
        wanted: Records of each partition.
        rate: Records a second.
    """

    def __init__(self, servers: str, stream: str, wanted: dict[int, int], rate: float) -> None:
        self._servers, self._stream = servers, stream
        self._wanted, self._rate = wanted, rate
        self._allowed = 0
        self._is_hurried = Event()
        self._failure: LiftbridgeError | None = None
        self._thread = Thread(target=self._run, name="publishing", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """Return whether all records are acknowledged.

        Raises:
            LiftbridgeError: Some records will never be acknowledged.
        """
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def allow(self, records: int) -> None:
        """Raise the limit of published records to this total."""
        self._allowed = records

    def hurry(self) -> None:
        """Publish the remaining records at full speed."""
        self._is_hurried.set()

    def _run(self) -> None:
        try:
            with (
                connect_sync(self._servers, retry_time=RETRY_TIME) as client,
                client.streams.get(self._stream).column_publisher(
                    ack_policy="all", numbering=Numbering("soak", 0)
                ) as publisher,
            ):
                for piece in self._paced():
                    publisher.put(piece)
                publisher.finish()
        except LiftbridgeError as error:
            self._failure = error

    def _paced(self) -> Iterator[pa.RecordBatch]:
        sent = 0
        for piece in pieces(self._wanted):
            self._is_hurried.wait(piece.num_rows / self._rate)
            while sent >= self._allowed and not self._is_hurried.wait(_POLL_SECONDS):
                pass
            yield piece
            sent += piece.num_rows


def pieces(wanted: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """Yield all records in pieces of one partition, in turn, in offset order."""
    for start in range(0, max(wanted.values()), PIECE_RECORDS):
        for partition, count in wanted.items():
            offsets = np.arange(start, min(start + PIECE_RECORDS, count), dtype=np.int64)
            if len(offsets):
                numbers = pa.array(np.full(len(offsets), partition, np.int32))
                yield pa.record_batch(
                    [values(partition, offsets), numbers], names=["value", "partition"]
                )
