"""Notes: the small files beside the logs, with what a log itself cannot tell the next start.

A log has three kinds: its damaged files (`damage`), the offsets below which tombstones may be gone
(`cleaning.dropped`), and the state of its idempotent publishers (`publishers`).
"""

from collections.abc import Callable, Mapping

from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.model.partitions import Copied
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.cleaning.dropped import lower_dropped, note_dropped
from liftbridge_broker.storage.disk import Disk
from liftbridge_broker.storage.flush import FlushDriver
from liftbridge_broker.storage.publishers import read_publishers, save_publishers
from liftbridge_broker.storage.stored_log import StoredLog


class LogNotes:
    """Writes and reads the notes of all open logs of a store.

    A note is durable on return unless the disk refused it. A note of damage that a full disk
    refused waits for `write_last`.
    """

    def __init__(
        self, files: Files, disk: Disk, flush: FlushDriver, logs: Mapping[PartitionId, StoredLog]
    ) -> None:
        """Keep the notes of `logs`, which the store adds and removes."""
        self._files = files
        self._disk = disk
        self._flush = flush
        self._logs = logs

    def set_snapshot_source(
        self, partition: PartitionId, source: Callable[[], bytes] | None
    ) -> None:
        """Set the source of idempotent publishers' state, saved before the log loses headers."""
        self._logs[partition].snapshot_source = source

    def write_snapshot(self, partition: PartitionId, now: Instant) -> None:
        """Store the state of idempotent publishers now, so that the next start scans less."""
        self._disk.run(lambda: save_publishers(self._files, self._logs[partition]), now)

    def read_snapshot(self, partition: PartitionId) -> bytes | None:
        """Return the stored state of publishers, `None` for none; raise `FilesError`."""
        return read_publishers(self._files, self._logs[partition])

    def note_damage(self, partition: PartitionId, path: str, now: Instant) -> None:
        """Note a damaged log file, so that the next start verifies it even after a clean stop."""
        stored = self._logs.get(partition)
        if stored is None:
            return  # deleted since
        stored.damage.add(path)
        self._disk.run(lambda: stored.damage.write(self._files), now)
        if stored.damage.has_unwritten:
            # The reserve of the full disk was released for it.
            self._disk.run(lambda: stored.damage.write(self._files), now)

    def note_copied(self, one: PartitionId, dropped: Offset, copied: Copied, now: Instant) -> None:
        """Record durably the dropped offset and the copy state of a replica that copies a log.

        Raises:
            FilesError: The disk is full or failed.
        """
        log = self._logs[one].log
        self._flush.with_reserve(lambda: note_dropped(self._files, log, dropped, copied), now)

    def lower_dropped(self, partition: PartitionId, end: Offset, now: Instant) -> None:
        """Lower the dropped offset to `end`, at which a log diverges: tombstones may follow."""
        log = self._logs[partition].log
        self._disk.run(lambda: lower_dropped(self._files, log, end), now)

    def write_last(self, stored: StoredLog) -> None:
        """Write what waits and the state of publishers before a log closes; raise `FilesError`."""
        stored.damage.write(self._files)  # guard Log.noted
        save_publishers(self._files, stored)
