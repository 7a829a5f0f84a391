"""Whether a run may be stored: optimistic concurrency, restores and idempotent publishers."""

from liftbridge_broker.errors import (
    IncorrectOffsetError,
    InvalidRequestError,
    OffsetNotAvailableError,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.roles import Replication
from liftbridge_broker.node.runs import PublishRun
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.log import PartitionLog


def check_run(
    run: PublishRun,
    log: PartitionLog,
    options: StreamOptions,
    publishers: PublisherTable,
    replication: Replication | None,
) -> Offset | None:
    """Apply optimistic concurrency, restore and idempotence; an offset means a duplicate.

    Raises:
        LiftbridgeError: Nothing of the run may be stored.
    """
    end = log.log_end_offset
    if options.optimistic_concurrency and run.target_offset is None:
        expected = run.expected_offsets[0] if run.expected_offsets is not None else 0
        if expected != -1 and replication is not None and not replication.is_latest_known:
            # What lies behind the high watermark may go again, and the answer would be wrong.
            raise OffsetNotAvailableError(
                "not appended: the new leader does not know yet what is committed"
            )
        if expected not in (-1, end) or len(run.values) > 1:  # guard L2.expected
            raise IncorrectOffsetError("incorrect expected offset")
    if run.target_offset is not None and run.target_offset < end:
        raise InvalidRequestError(
            f"target_offset {run.target_offset} is below the log end offset {end}"
        )
    if run.timestamps is not None and run.timestamps[0] < log.largest_timestamp:
        raise InvalidRequestError(
            f"timestamps: {run.timestamps[0]} is before {log.largest_timestamp}, "
            "the largest in the log"
        )
    if run.publisher is None:
        return None
    return publishers.check(*run.publisher, len(run.values))


def without_stored(
    run: PublishRun, log: PartitionLog, publishers: PublisherTable
) -> tuple[PublishRun, int]:
    """A run without what a crash left of it at the end of the log, and how much that is.

    When something else was stored since, the offsets would not follow one another as the answer
    says they do, and the sequence is refused.
    """
    if run.publisher is None or run.target_offset is not None:
        return run, 0
    publisher_id, _, first_sequence = run.publisher
    count = len(run.values)
    part = publishers.stored_part(publisher_id, first_sequence, count)
    if part is None or part[0] + part[1] != log.log_end_offset:
        return run, 0
    return run.part(part[1], count), part[1]
