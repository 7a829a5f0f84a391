"""A leader's replication state and flow control for one follower (etcd/raft `tracker`).

`PROBE`: the matching index is unknown; one append at a time, the next after its answer or a
heartbeat's. `REPLICATE`: the logs match; appends are pipelined, up to a number and a size.
`SNAPSHOT`: the follower needs entries that are compacted; it gets a snapshot, no appends.
"""

from collections import deque
from enum import IntEnum
from typing import Final

from liftbridge_broker.model.metadata_log import SnapshotMeta
from liftbridge_broker.raft.options import RaftOptions

DENIALS_MIN: Final = 3
"""Consecutive refusals of acknowledged entries, one per heartbeat, that prove a loss rather than a
late answer."""


class ProgressState(IntEnum):
    """Replication mode of a follower."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    """State of one follower at its leader; never outlives the leader's term.

    Invariants: `match < next_index`; `inflight` is empty unless replicating.

    Attributes:
        match: Last index known to match and be durable at the follower.
        next_index: First index of the next append.
        is_probe_sent: Whether a probe is sent and not answered.
        commit_sent: Commit index in the appends sent so far.
        heard_at: Time of the last answer in this term, in nanoseconds.
        read_context: Highest read round that the follower confirmed.
        snapshot: Snapshot being sent while in `SNAPSHOT`.
        position: Next byte of the snapshot to send.
        chunk_sent_at: Time at which a chunk was last sent.
        match_at_beat: `match` at its last answer to a heartbeat.
    """

    __slots__ = (
        "_denied_count",
        "_inflight",
        "_inflight_bytes",
        "_options",
        "chunk_sent_at",
        "commit_sent",
        "heard_at",
        "is_probe_sent",
        "match",
        "match_at_beat",
        "next_index",
        "position",
        "read_context",
        "snapshot",
        "state",
    )

    def __init__(self, next_index: int, now: int, options: RaftOptions) -> None:
        """Begin to probe at `next_index`."""
        self._options = options
        self.state = ProgressState.PROBE
        self.match = 0
        self.next_index = next_index
        self.is_probe_sent = False
        self.commit_sent = 0
        self.heard_at = now
        self.read_context = 0
        self.snapshot: SnapshotMeta | None = None
        self.position = 0
        self.chunk_sent_at = now
        self.match_at_beat = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0
        self._denied_count = 0

    @property
    def is_paused(self) -> bool:
        """Return whether no append may be sent now."""
        if self.state is ProgressState.REPLICATE:
            return (
                len(self._inflight) >= self._options.inflight_messages_max  # guard R.inflight
                or self._inflight_bytes >= self._options.inflight_bytes_max
            )
        return self.state is ProgressState.SNAPSHOT or self.is_probe_sent

    def probe(self) -> None:
        """Probe for the matching index, starting after `match`."""
        floor = self.match
        if self.state is ProgressState.SNAPSHOT and self.snapshot is not None:
            floor = max(floor, self.snapshot.last_index)
        self._enter(ProgressState.PROBE)
        self.next_index = floor + 1

    def replicate(self) -> None:
        """Start replication after `match`."""
        self._enter(ProgressState.REPLICATE)
        self.next_index = self.match + 1

    def send_snapshot(self, meta: SnapshotMeta) -> None:
        """Send `meta` from its first byte."""
        self._enter(ProgressState.SNAPSHOT)
        self.snapshot = meta

    def _enter(self, state: ProgressState) -> None:
        self.state = state
        self.is_probe_sent = False
        self.snapshot = None
        self.position = 0
        self._inflight.clear()
        self._inflight_bytes = 0

    def on_sent(self, last_index: int, size: int, count: int) -> None:
        """Note that an append up to `last_index` with `count` entries of `size` bytes was sent."""
        if self.state is ProgressState.PROBE:
            self.is_probe_sent = True
        elif count:
            self.next_index = last_index + 1
            self._inflight.append((last_index, size))
            self._inflight_bytes += size

    def on_match(self, index: int) -> bool:
        """Record that the follower holds all up to `index`; return whether that is new."""
        self._denied_count = 0
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self._inflight_bytes -= inflight.popleft()[1]
        if index <= self.match:
            return False
        self.match = index
        self.next_index = max(self.next_index, index + 1)
        return True

    def _is_lost(self, rejected: int, hint: int) -> bool:
        """Return whether the follower's disk lost acknowledged entries, which are resent (S58).

        Otherwise the refusal is merely late: the logs match since. The leader asks a follower that
        lost acknowledged entries for exactly these with each heartbeat, and it refuses each time.
        """
        if rejected < self.match or hint >= self.match:
            return False
        self._denied_count += 1
        if self._denied_count < DENIALS_MIN:
            return False
        self._denied_count = 0
        self.match = 0  # its earlier acks prove nothing any more
        self.probe()
        self.next_index = hint + 1
        return True

    def on_reject(self, rejected: int, hint: int) -> bool:
        """Handle a refusal of `rejected`; return whether it is about the current state."""
        if rejected <= self.match:
            return self._is_lost(rejected, hint)
        if self.state is ProgressState.REPLICATE:
            self.probe()
            self.next_index = max(min(rejected, hint + 1), self.match + 1)
            return True
        if self.state is ProgressState.SNAPSHOT or rejected != self.next_index - 1:
            return False
        self.next_index = max(min(rejected, hint + 1), self.match + 1)
        self.is_probe_sent = False
        return True
