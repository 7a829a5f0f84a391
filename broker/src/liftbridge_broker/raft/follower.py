"""A follower's handling of its leader's messages (Raft 5.3, 7).

The core has checked the term and the sender; the follower checks the content and answers.
"""

from liftbridge_broker.model.metadata_log import Entry, EntryKind, Peer
from liftbridge_broker.raft import configuration
from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.outbox import Outbox
from liftbridge_broker.raft.receiver import SnapshotReceiver, Taken
from liftbridge_broker.raft.types import (
    Append,
    AppendReply,
    BadConfigurationError,
    Drop,
    Heartbeat,
    HeartbeatReply,
    InstallChunk,
    InstallChunkReply,
)


class Follower:
    """Applies appends, heartbeats and snapshots to the log.

    Each handler returns `None`, or the reason to drop the message.
    """

    __slots__ = ("_log", "_me", "_options", "_outbox", "_receiver")

    def __init__(self, me: Peer, log: Log, outbox: Outbox, options: RaftOptions) -> None:
        """Create the follower `me` of `log`; answers go to `outbox`."""
        self._me = me
        self._log = log
        self._outbox = outbox
        self._options = options
        self._receiver = SnapshotReceiver(options.snapshot_bytes_max)

    def on_append(self, message: Append, *, is_term_durable: bool) -> Drop | None:
        """Append entries if the logs match at `prev_index`, else send a hint where they may match.

        Entries already in the log stay: a late append with fewer entries must not truncate entries
        acknowledged since.
        """
        log = self._log
        if not _is_well_formed(message):
            return Drop.MALFORMED
        if log.tail_bytes > self._options.unstable_bytes_max:
            return Drop.OVERLOADED
        prev = message.prev_index
        prev_term = log.term_at(prev)
        if prev <= log.commit:
            if prev_term is not None and prev_term != message.prev_term:
                return Drop.BELOW_COMMIT
        elif prev_term != message.prev_term:  # guard R.prev_entry
            self._reject(message, is_term_durable=is_term_durable)
            return None
        entries = message.entries
        start = self._first_new(entries)  # guard R.first_difference
        if start < len(entries):
            if entries[start].entry_index <= log.commit:  # guard R.below_commit
                return Drop.BELOW_COMMIT
            log.append(entries[start:] if start else entries)
        verified = prev + len(entries)
        if message.commit > log.commit:
            log.commit_to(max(min(message.commit, verified), log.commit))  # guard R.append_commit
        # Committed entries are the same at every later leader (Raft 5.4), so they match.
        match = max(verified, log.commit)
        self._outbox.send(
            AppendReply(self._me, message.sender, message.term, is_success=True, log_index=match),
            is_durable=is_term_durable and log.is_durable(match),  # guard R.ack_durable
        )
        return None

    def _first_new(self, entries: tuple[Entry, ...]) -> int:
        """Return the position of the first entry that is not in the log yet."""
        log = self._log
        last_index = log.last_index
        for position, entry in enumerate(entries):
            if entry.entry_index > last_index:
                return position
            known = log.term_at(entry.entry_index)
            # An entry of unknown term is compacted, and so committed.
            if known is not None and known != entry.term:
                return position
        return len(entries)

    def _reject(self, message: Append, *, is_term_durable: bool) -> None:
        """Refuse with a hint that skips all entries of terms that the leader cannot have."""
        index, term = self._log.last_not_above(message.prev_index, message.prev_term)
        self._outbox.send(
            AppendReply(
                self._me,
                message.sender,
                message.term,
                is_success=False,
                log_index=message.prev_index,
                hint_index=index,
                hint_term=term,
            ),
            is_durable=is_term_durable,
        )

    def on_heartbeat(self, message: Heartbeat, *, is_term_durable: bool) -> Drop | None:
        """Update the commit index, and answer."""
        self._outbox.send(
            HeartbeatReply(self._me, message.sender, message.term, message.read_context),
            is_durable=is_term_durable,
        )
        if message.commit > self._log.last_index:
            return Drop.BEYOND_LOG
        self._log.commit_to(message.commit)
        return None

    def on_chunk(self, message: InstallChunk, *, is_term_durable: bool) -> Drop | None:
        """Add a chunk of a snapshot, and restore the snapshot once complete (Raft 7)."""
        receiver, log = self._receiver, self._log
        meta = message.snapshot
        if not receiver.is_sensible(message):
            return Drop.BAD_SNAPSHOT
        if log.term_at(meta.last_index) == meta.term:  # guard R.snapshot_held
            log.commit_to(meta.last_index)  # the log has all its entries and stays (Raft 7)
        drop = None
        if meta.last_index > log.commit:
            taken = receiver.take(message)
            if taken is Taken.REFUSED:
                return Drop.STALE_TERM
            if taken is Taken.DAMAGED:
                drop = Drop.BAD_SNAPSHOT
            elif taken is Taken.WHOLE:
                log.restore(receiver.take_whole())
        is_done = meta.last_index <= log.commit
        position = meta.size_bytes if is_done else receiver.position
        is_kept = not is_done or log.is_durable(meta.last_index)
        self._outbox.send(
            InstallChunkReply(
                self._me, message.sender, message.term, meta.last_index, position, is_done
            ),
            is_durable=is_term_durable and is_kept,  # guard R.snapshot_durable
        )
        return drop


def _is_well_formed(message: Append) -> bool:
    """Return whether the message is valid: contiguous entries whose terms do not decrease."""
    index, term = message.prev_index, message.prev_term
    if index < 0 or message.commit < 0 or not 0 <= term <= message.term or (index == 0 and term):
        return False
    for entry in message.entries:
        index += 1
        if entry.entry_index != index or not term <= entry.term <= message.term or entry.term < 1:
            return False
        term = entry.term
        if entry.kind is EntryKind.CONFIG:
            try:
                configuration.decode(entry.data)
            except BadConfigurationError:
                return False
    return True
