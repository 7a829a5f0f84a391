"""Checks before a run is stored: optimistic concurrency, restores, idempotent publishers."""

from collections.abc import Sequence

from liftbridge_broker.errors import (
    IncorrectOffsetError,
    InvalidRequestError,
    OffsetNotAvailableError,
    ReadonlyError,
)
from liftbridge_broker.model.ids import OFFSET_MAX, Offset
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.partition.roles import Replication
from liftbridge_broker.node.partition.runs import PublishRun, Stored
from liftbridge_broker.replication.publisher_history import PublisherHistory
from liftbridge_broker.replication.publishers import StoredPiece
from liftbridge_broker.storage.log.partition_log import PartitionLog


def check_run(
    run: PublishRun,
    log: PartitionLog,
    options: StreamOptions,
    publishers: PublisherHistory,
    replication: Replication | None,
) -> tuple[StoredPiece, ...]:
    """Check a run by the rules of optimistic concurrency, restores and idempotence.

    Returns:
        Positions at which the first records of the run are stored already.

    Raises:
        LiftbridgeError: Nothing of the run may be stored.
    """
    end = log.log_end_offset
    if options.optimistic_concurrency and run.offsets is None:
        expected = run.expected_offsets[0] if run.expected_offsets is not None else 0
        if expected != -1 and replication is not None and not replication.is_latest_known:
            # Records above the high watermark may be truncated, which would make the answer wrong.
            raise OffsetNotAvailableError(
                "not appended: the new leader does not know its high watermark yet"
            )
        if expected not in (-1, end) or len(run.values) > 1:  # guard L2.expected
            raise IncorrectOffsetError("incorrect expected offset")
    if run.offsets is not None and run.offsets[0] < end:
        raise InvalidRequestError(f"offset {run.offsets[0]} is below the log end offset {end}")
    if run.timestamps is not None and run.timestamps[0] < log.largest_timestamp:
        raise InvalidRequestError(
            f"timestamps: {run.timestamps[0]} is before {log.largest_timestamp}, "
            "the largest in the log"
        )
    pieces: tuple[StoredPiece, ...] = ()
    if run.publisher is not None:
        pieces = publishers.check(run.publisher, len(run.values))
    _check_offsets_left(run, pieces, end)
    return pieces


def _check_offsets_left(run: PublishRun, pieces: Sequence[StoredPiece], end: Offset) -> None:
    """Refuse a run that would go beyond the last offset that a log can have.

    Raises:
        ReadonlyError: Too few offsets are left.
    """
    if run.offsets is not None:
        last = run.offsets[-1]
    else:
        last = end + len(run.values) - 1 - sum(piece.record_count for piece in pieces)
    if last >= OFFSET_MAX:
        raise ReadonlyError(
            f"not appended: offsets end at {OFFSET_MAX - 1} and the log ends at {end}: "
            "publish to another stream"
        )


def without_stored(run: PublishRun, pieces: Sequence[StoredPiece]) -> PublishRun | None:
    """Return the part of a run that is not stored yet, `None` for none."""
    stored_count = sum(piece.record_count for piece in pieces)
    count = len(run.values)
    return run.part(stored_count, count) if stored_count < count else None


def joined(pieces: Sequence[StoredPiece]) -> tuple[StoredPiece, ...]:
    """Return the pieces, with adjoining neighbours merged."""
    merged: list[StoredPiece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and last.base_offset + last.record_count == piece.base_offset:
            merged[-1] = last._replace(record_count=last.record_count + piece.record_count)
        else:
            merged.append(piece)
    return tuple(merged)


def in_pieces(stored: Stored, pieces: tuple[StoredPiece, ...]) -> Stored:
    """Return the position of a run, from its joined pieces."""
    return stored._replace(
        base_offset=pieces[0].base_offset, pieces=pieces if len(pieces) > 1 else ()
    )
