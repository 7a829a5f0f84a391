"""Sources of the state of idempotent publishers: headers in the log, and the applied metadata."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from liftbridge_broker.model.ids import LeaderEpoch, Offset, PublisherId
from liftbridge_broker.ports.replica_log import LogBounds


class StampedBatch(Protocol):
    """Batch header fields that replay reads; a range may hold fewer records after compaction."""

    @property
    def publisher_id(self) -> int:
        """Publisher of the whole batch, 0 for none."""
        ...

    @property
    def publisher_epoch(self) -> int:
        """Epoch of the publisher."""
        ...

    @property
    def first_sequence(self) -> int:
        """Sequence of the record at `base_offset`."""
        ...

    @property
    def base_offset(self) -> int:
        """First offset of the range."""
        ...

    @property
    def last_offset(self) -> int:
        """Last offset of the range."""
        ...

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the records."""
        ...

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp in the batch."""
        ...


class PublisherLog(LogBounds, Protocol):
    """The part of the partition's log that the history needs."""

    @property
    def settled_offset(self) -> Offset:
        """Offset below which no crash can truncate: committed and synced."""
        ...

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        """Leader epoch of the record before an offset, 0 when it is not known."""
        ...

    def stamped(self, offset: Offset) -> Iterator[StampedBatch]:
        """Headers with a publisher from an offset on, at least from the log start.

        Raises:
            FilesError: The disk refused to read.
            CorruptionError: A batch is damaged.
        """
        ...


class Registrations(Protocol):
    """Registrations of publishers in the metadata applied here."""

    @property
    def applied_index(self) -> int:
        """Index of the last command applied; ids of publishers are such indexes."""
        ...

    @property
    def publisher_epochs(self) -> Mapping[PublisherId, int]:
        """Epochs by publisher id."""
        ...
