"""Assembles a snapshot from chunks, which may arrive reordered or duplicated."""

import hashlib
from enum import IntEnum

from liftbridge_broker.model.metadata_log import Snapshot, SnapshotMeta
from liftbridge_broker.raft.configuration import is_well_formed
from liftbridge_broker.raft.types import InstallChunk

SHA256_BYTES = 32


class Taken(IntEnum):
    """Outcome for a chunk."""

    PARTIAL = 0
    """Stored, or already known: `SnapshotReceiver.position` is the next byte needed."""
    WHOLE = 1
    """`SnapshotReceiver.take_whole` has the snapshot."""
    DAMAGED = 2
    """All bytes arrived but do not match the digest; the transfer restarts."""
    REFUSED = 3
    """The chunk is invalid, or belongs to an older snapshot."""


class SnapshotReceiver:
    """Holds at most one unfinished snapshot in memory: the newest snapshot offered.

    Received bytes survive a leader change: a new leader continues if it offers the same bytes.

    Attributes:
        meta: Snapshot being received, `None` for none.
        position: Next byte needed.
    """

    __slots__ = ("_bytes_max", "_hash", "_state", "_term", "meta", "position")

    def __init__(self, bytes_max: int) -> None:
        """Take snapshots up to `bytes_max` long."""
        self._bytes_max = bytes_max
        self.meta: SnapshotMeta | None = None
        self._term = 0
        self.drop()

    def drop(self) -> None:
        """Drop the received bytes."""
        self.meta = None
        self._restart()

    def _restart(self) -> None:
        self.position = 0
        self._state = bytearray()
        self._hash = hashlib.sha256()

    def is_sensible(self, chunk: InstallChunk) -> bool:
        """Return whether a leader could have sent `chunk`."""
        meta = chunk.snapshot
        return (
            meta.last_index > 0
            and 0 < meta.term <= chunk.term
            and 0 <= meta.size_bytes <= self._bytes_max
            and len(meta.sha256) == SHA256_BYTES
            and 0 <= chunk.position <= meta.size_bytes - len(chunk.data)
            and is_well_formed(meta.configuration)
        )

    def take(self, chunk: InstallChunk) -> Taken:
        """Add the next chunk of the snapshot, checked by `is_sensible`; ignore any other chunk."""
        meta = chunk.snapshot
        if meta != self.meta:
            is_older = self.meta is not None and meta.last_index < self.meta.last_index
            if is_older and chunk.term == self._term:  # guard R.snapshot_older
                # A late chunk: a leader moves to newer snapshots only. Another leader may have an
                # older one.
                return Taken.REFUSED
            self.drop()
            self.meta = meta
        self._term = chunk.term
        if chunk.position == self.position:
            self._state += chunk.data
            self._hash.update(chunk.data)
            self.position += len(chunk.data)
        if self.position < meta.size_bytes:
            return Taken.PARTIAL
        if self._hash.digest() != meta.sha256:  # guard R.snapshot_digest
            self._restart()
            return Taken.DAMAGED
        return Taken.WHOLE

    def take_whole(self) -> Snapshot:
        """Return the finished snapshot, and empty the receiver."""
        assert self.meta is not None
        assert self.position == self.meta.size_bytes
        snapshot = Snapshot(self.meta, bytes(self._state))
        self.drop()
        return snapshot
