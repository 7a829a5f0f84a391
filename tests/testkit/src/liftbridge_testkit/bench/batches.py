"""Batch publish and batch read, as an application with large amounts of data does them.

Publishing sends requests of `-batch` records with a window of requests in flight. Reading asks for
Arrow, takes the columns as they come, and checks every record: offsets and sequences one after the
other, and a CRC-32C over keys, values, offsets and timestamps, so that all bytes were looked at.
"""

from __future__ import annotations

import random
import struct
from threading import Semaphore
from time import perf_counter
from typing import TYPE_CHECKING, Final

import google_crc32c
import grpc
import numpy as np
import pyarrow as pa

from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.load import data

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_SEQUENCE: Final = struct.Struct("<Q")
REQUESTS_IN_FLIGHT: Final = 8
MESSAGE_BYTES_MAX: Final = 64 << 20

Result = dict[str, float | int | str | bool]


class WrongBatchError(Exception):
    """A batch call answered something that cannot be right."""


def _channel(options: argparse.Namespace) -> grpc.Channel:
    return grpc.insecure_channel(
        options.server,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ],
    )


async def batch_publish(options: argparse.Namespace) -> Result:
    """Publish COUNT values in batches."""
    return _batch_publish(options)


def _batch_publish(options: argparse.Namespace) -> Result:
    room = Semaphore(REQUESTS_IN_FLIGHT)
    end = random.Random(1).randbytes(max(options.size, 8) - 8)
    pack = _SEQUENCE.pack

    def requests() -> Iterator[data_pb2.PublishBatchRequest]:
        for number, first in enumerate(range(0, options.count, options.batch)):
            last = min(first + options.batch, options.count)
            room.acquire()
            yield data_pb2.PublishBatchRequest(
                request_id=number,
                stream=options.stream,
                values=[pack(sequence) + end for sequence in range(first, last)],
            )

    stored = 0
    start = perf_counter()
    with _channel(options) as channel:
        for number, response in enumerate(data(channel).PublishBatch(requests())):
            room.release()
            if response.error or response.request_id != number or response.base_offset != stored:
                raise WrongBatchError(f"request {number}: {response}")
            stored = min(stored + options.batch, options.count)
    seconds = perf_counter() - start
    if stored != options.count:
        raise WrongBatchError(f"{stored} of {options.count} acknowledged")
    return {"count": stored, "seconds": seconds, "rate": stored / seconds}


async def batch_read(options: argparse.Namespace) -> Result:
    """Read COUNT records as Arrow columns and check them."""
    return _batch_read(options)


def _batch_read(options: argparse.Namespace) -> Result:
    request = data_pb2.FetchBatchesRequest(
        stream=options.stream,
        end_offset=options.count,
        format=data_pb2.BATCH_FORMAT_ARROW,
    )
    check = _Columns(options.size)
    start = perf_counter()
    with _channel(options) as channel:
        for response in data(channel).FetchBatches(request):
            for batch in pa.ipc.open_stream(response.data):
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
