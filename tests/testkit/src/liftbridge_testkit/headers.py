"""Headers of batches of idempotent publishers, as much of them as tables of publishers look at."""

from typing import NamedTuple


class PublisherHeader(NamedTuple):
    """See `liftbridge_broker.logformat.batch.BatchHeader`."""

    publisher_id: int
    publisher_epoch: int
    first_sequence: int
    base_offset: int
    last_offset: int
    largest_timestamp: int = 0
    leader_epoch: int = 4
