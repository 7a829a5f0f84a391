"""Batch publish and batch read, as an application with large amounts of data does them.

Publishing sends requests of `-batch` records with a window of requests in flight. Reading asks for
Arrow, takes the columns as they come, and checks every record: offsets and sequences one after the
other, and a CRC-32C over keys, values, offsets and timestamps, so that all bytes were looked at.
"""

from __future__ import annotations

import random
import struct
from time import perf_counter
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from liftbridge_client import Ack, connect

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

_SEQUENCE: Final = struct.Struct("<Q")
REQUESTS_IN_FLIGHT: Final = 8
ROUND_COUNT: Final = 50_000
"""Records made, published and checked at a time."""

Result = dict[str, float | int | str | bool]


class WrongBatchError(Exception):
    """A batch call answered something that cannot be right."""


async def batch_publish(options: argparse.Namespace) -> Result:
    """Publish COUNT values in batches through our client, a result for each of them."""
    end = random.Random(1).randbytes(max(options.size, 8) - 8)
    pack = _SEQUENCE.pack
    stored = 0
    window = options.batch * REQUESTS_IN_FLIGHT
    async with connect(options.server) as client:
        stream = client.streams.get(options.stream)
        start = perf_counter()
        async with stream.publisher(max_in_flight=window) as publisher:
            for first in range(0, options.count, ROUND_COUNT):
                last = min(first + ROUND_COUNT, options.count)
                values = [pack(sequence) + end for sequence in range(first, last)]
                for result in await publisher.publish_batch(values):
                    if not isinstance(result, Ack) or result.offset != stored:
                        raise WrongBatchError(f"record {stored}: {result}")
                    stored += 1
        seconds = perf_counter() - start
    if stored != options.count:
        raise WrongBatchError(f"{stored} of {options.count} acknowledged")
    return {"count": stored, "seconds": seconds, "rate": stored / seconds}


async def batch_read(options: argparse.Namespace) -> Result:
    """Read COUNT records as Arrow columns through our client and check them."""
    check = _Columns(options.size)
    async with connect(options.server) as client:
        stream = client.streams.get(options.stream)
        start = perf_counter()
        async for batch in stream.fetch_arrow(end=options.count):
            check.add(batch)
        seconds = perf_counter() - start
    if check.count != options.count:
        raise WrongBatchError(f"{check.count} of {options.count} records came")
    return {
        "count": check.count,
        "seconds": seconds,
        "rate": check.count / seconds,
        "bytes": check.bytes,
        "crc32c": check.crc,
    }


class _Columns:
    """Takes record batches and checks what is in them."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.bytes = 0
        self.crc = 0
        self._size = size

    def add(self, batch: pa.RecordBatch) -> None:
        """Check one record batch with the columns offset, timestamp, key, value."""
        rows = batch.num_rows
        offsets = batch.column("offset").to_numpy()
        wanted = np.arange(self.count, self.count + rows, dtype=np.int64)
        if not np.array_equal(offsets, wanted):
            raise WrongBatchError(f"offsets after {self.count} are not consecutive")
        values = batch.column("value")
        self._check_sequences(values, wanted)
        for name in ("offset", "timestamp", "key", "value"):
            for buffer in batch.column(name).buffers():
                if buffer is not None:
                    self.crc = google_crc32c.extend(self.crc, buffer.to_pybytes())
                    self.bytes += buffer.size
        self.count += rows

    def _check_sequences(self, values: pa.Array, wanted: np.ndarray) -> None:
        _, bounds, content = values.buffers()
        starts = np.frombuffer(bounds, dtype=np.int32)[values.offset :][: len(values) + 1]
        if not np.all(np.diff(starts) == self._size):
            raise WrongBatchError(f"values after {self.count} have another size")
        block = np.frombuffer(content, dtype=np.uint8)[starts[0] : starts[-1]]
        first = block.reshape(len(values), self._size)[:, :8].copy().view("<i8").ravel()
        if not np.array_equal(first, wanted):
            raise WrongBatchError(f"values after {self.count} are out of order")
