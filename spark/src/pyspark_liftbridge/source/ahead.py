"""Concurrent requests for small ranges, for which a task mostly waits for answers.

The buffered records stay below one answer of `fetch.maxBytes`: each range requests its share, and
ranges after a range with large records are read one by one.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa

from liftbridge_client import LiftbridgeError
from pyspark_liftbridge.plan.ranges import Range

RECORDS_MAX: Final = 100
"""Maximum number of offsets of a small range."""

AT_ONCE_MAX: Final = 8
"""Number of ranges requested at once; with more, a task on one core is no faster."""

Piece = tuple[pa.RecordBatch, int]
"""Records, and the first offset after them."""


class Answer(NamedTuple):
    """Result of the first call for a range.

    Attributes:
        wanted: The range.
        pieces: Records in order, perhaps not all of the range.
        error: Error that ended the call, `None` at its regular end.
    """

    wanted: Range
    pieces: Sequence[Piece]
    error: LiftbridgeError | None


Ask = Callable[[Range, int], Iterator[Piece]]
"""Function that reads a range, at most about the given number of bytes."""


def answers(ranges: Sequence[Range], ask: Ask, bytes_max: int) -> Generator[Answer, None, None]:
    """Iterate over the result of the first call for each range, in the order of the ranges.

    Args:
        ranges: Small ranges.
        ask: Called in threads.
        bytes_max: Maximum number of buffered bytes, exceeded only by a batch that is larger than
            its share.
    """
    share = max(1, bytes_max // AT_ONCE_MAX)

    def first(wanted: Range) -> Answer:
        pieces: list[Piece] = []
        try:
            pieces.extend(ask(wanted, share))
        except LiftbridgeError as error:
            return Answer(wanted, pieces, error)
        return Answer(wanted, pieces, None)

    threads = ThreadPoolExecutor(min(AT_ONCE_MAX, len(ranges)), "liftbridge-ahead")
    waiting: deque[Future[Answer]] = deque()
    rest = iter(ranges)
    largest, at_once = 0, 1  # nothing is known before the first answer
    try:
        while True:
            while len(waiting) < at_once and (wanted := next(rest, None)) is not None:
                waiting.append(threads.submit(first, wanted))
            if not waiting:
                return
            answer = waiting.popleft().result()
            largest = max(largest, sum(records.nbytes for records, _ in answer.pieces), 1)
            at_once = max(1, min(AT_ONCE_MAX, bytes_max // largest))
            yield answer
    finally:
        # A caller that stops early does not wait for running calls.
        threads.shutdown(wait=False, cancel_futures=True)
