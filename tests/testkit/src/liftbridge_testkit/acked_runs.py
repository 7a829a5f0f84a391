"""What one publisher had acknowledged, kept small, and compared with what its stream holds.

A publisher numbers its messages and sends none twice. Between two faults each number is a fixed
distance from its offset, so millions of acks make a few runs.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from liftbridge_broker.logformat.batch import HEADER_SIZE, walk
from liftbridge_broker.logformat.frames import iter_frames
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Run(NamedTuple):
    """Consecutive numbers with acks at consecutive offsets.

    Attributes:
        number: The first number.
        offset: Its offset.
        length: Messages.
    """

    number: int
    offset: int
    length: int


class AckedRuns:
    """Acks of one publisher.

    Attributes:
        count: Acks so far.
    """

    def __init__(self) -> None:
        """Begin without acks."""
        self.count = 0
        self._runs: list[list[int]] = []

    def add(self, number: int, offset: int) -> None:
        """Add an ack; O(1) for the next one of a run."""
        self.count += 1
        if self._runs:
            last = self._runs[-1]
            ahead = number - last[0]
            if ahead == last[2] and offset - last[1] == ahead:
                last[2] += 1
                return
        self._runs.append([number, offset, 1])

    @property
    def runs(self) -> list[Run]:
        """Return the runs in the order of their acks."""
        return [Run(*run) for run in self._runs]


def missing(runs: Iterable[Run], records: Iterable[tuple[int, int]]) -> int:
    """Return how many acknowledged messages are not at their offset.

    Args:
        runs: What was acknowledged; an offset that was acknowledged twice is missing once.
        records: Offset and number of each record of the stream, by offset.
    """
    ordered = sorted(runs, key=attrgetter("offset"))
    wanted = sum(run.length for run in ordered)
    waiting = iter(ordered)
    run = next(waiting, None)
    found = 0
    for offset, number in records:
        while run is not None and offset >= run.offset + run.length:
            run = next(waiting, None)
        if run is None:
            break
        found += offset >= run.offset and number - run.number == offset - run.offset
    return wanted - found


def records_of(stub: Any, stream: str, *, number_at: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and number of each record of partition 0 up to the high watermark.

    Args:
        stub: Data service of its leader.
        stream: The stream.
        number_at: Bytes in front of the eight bytes of the number in each record.
    """
    answers = stub.FetchBatches(data_pb2.FetchBatchesRequest(stream=stream))
    for answer in answers:
        yield from _numbers(answer.data, number_at)


def _numbers(data: bytes, number_at: bytes) -> Sequence[tuple[int, int]]:
    found = []
    for position, header in walk(data, 0, len(data)):
        for at, end, offset in iter_frames(data, position + HEADER_SIZE, position + header.size):
            value = data.find(number_at, at, end) + len(number_at)
            found.append((int(offset), int.from_bytes(data[value : value + 8], "big")))
    return found
