"""Cursors of a query: its start offsets and its progress.

Spark stores only the ends of batches, and asks again for the start of a query that stopped before
its first batch was done; by then `latest` has moved, and the messages in between would be lost. So
such a start is stored in the cursor `<cursorId>/start/<stream id>`, as the next offset. The cursor
`<cursorId>` has the last offset read, like cursors of other readers; it is for information only,
since the checkpoint decides.
"""

import logging
from collections.abc import Iterable
from typing import Final

from liftbridge_client import LiftbridgeError, RetriableError, SyncClient
from pyspark_liftbridge.plan.offsets import Offsets, PartitionId
from pyspark_liftbridge.plan.options import OptionError

_log: Final = logging.getLogger(__name__)


def pinned(
    client: SyncClient, cursor_id: str, offsets: Offsets, moving: Iterable[PartitionId]
) -> Offsets:
    """Determine start offsets; those of `latest` partitions stay as they were first determined.

    Raises:
        OptionError: The brokers store no cursors.
        RetriableError: No broker answers.
    """
    kept: dict[PartitionId, int] = {}
    try:
        for one in moving:
            stream = client.streams.get(one.stream)
            name = f"{cursor_id}/start/{offsets.streams[one.stream].stream_id}"
            offset = stream.fetch_cursor(name, partition=one.number)
            if offset is None:
                offset = offsets.of(one)
                assert offset is not None
                stream.set_cursor(name, offset, partition=one.number)
            kept[one] = offset
    except RetriableError:
        raise
    except LiftbridgeError as error:
        raise OptionError(
            f"option 'cursorId': the brokers keep no cursors ({error}); set "
            "cursors.stream.partitions there"
        ) from error
    return offsets.with_offsets(kept)


def mirror(client: SyncClient, cursor_id: str, former: Offsets | None, read: Offsets) -> None:
    """Set the progress cursor of a query if it has changed; a failure is only logged.

    The cursor may hold back retention: a position of a former history does not count.
    """
    for one, offset in read.partitions():
        if not offset or (former is not None and former.of(one) == offset):
            continue
        history = read.streams[one.stream].histories.get(one.number)
        try:
            client.streams.get(one.stream).set_cursor(
                cursor_id,
                offset - 1,
                partition=one.number,
                unclean_epoch=None if history is None else history.unclean_epoch,
            )
        except LiftbridgeError as error:
            _log.warning("cursor %s does not show the progress: %s", cursor_id, error)
            return
