"""A leader's work in its term: replicate, commit, confirm reads, change members, transfer.

Lives from the election to the end of the term; the core creates and discards it. Appends are sent
when the host calls `ready`, not when a proposal arrives, so that proposals of one turn share a
message. Follows Raft 5.3 and 5.4, Diss. 3.10, 4, 6.4 and 10.2.1, and etcd/raft.
"""

from collections import deque
from typing import Final

from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, Peer
from liftbridge_broker.ports.stable_log import StableLog
from liftbridge_broker.raft import configuration
from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.outbox import Outbox
from liftbridge_broker.raft.progress import Progress, ProgressState
from liftbridge_broker.raft.quorum import majority, reached_by_majority
from liftbridge_broker.raft.reads import LeaderReads, LocalReads
from liftbridge_broker.raft.types import (
    Append,
    AppendReply,
    ConfigChange,
    ConfigChangeRefusedError,
    Drop,
    Heartbeat,
    HeartbeatReply,
    InstallChunk,
    InstallChunkReply,
    Promote,
    RaftBusyError,
    RaftTooLargeError,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    TransferRefusedError,
)

ENTRY_OVERHEAD_BYTES: Final = 64
"""Counted for each uncommitted proposal beside its data, so that empty ones are bounded too."""

DEPARTURE_ELECTIONS: Final = 4
"""Election timeouts for which a removed member still receives the entry that removes it."""


class Leader:
    """State of one leadership.

    Invariants: entries from `first_own_index` on are of this term; `progress` has every other
    member, and members that were removed a moment ago (`_departing`).

    Attributes:
        term: The term of this leadership.
        first_own_index: Index of the no-op that began it.
        progress: Replication state of each follower.
        transferee: Target of a transfer, during which proposals are refused.
        uncommitted_bytes: Own proposals that are not committed.
    """

    __slots__ = (
        "_departing",
        "_excused_at",
        "_is_timeout_sent",
        "_local_reads",
        "_log",
        "_me",
        "_options",
        "_outbox",
        "_reads",
        "_storage",
        "_transfer_deadline",
        "_uncommitted",
        "first_own_index",
        "progress",
        "term",
        "transferee",
        "uncommitted_bytes",
    )

    def __init__(
        self,
        me: Peer,
        term: int,
        log: Log,
        storage: StableLog,
        outbox: Outbox,
        local_reads: LocalReads,
        options: RaftOptions,
        now: int,
    ) -> None:
        """Begin to lead `term` without follower state; append a no-op (Raft 8)."""
        self._me = me
        self.term = term
        self._log = log
        self._storage = storage
        self._outbox = outbox
        self._local_reads = local_reads
        self._options = options
        self._reads = LeaderReads(options.reads_max)
        self._departing: dict[Peer, tuple[int, int]] = {}
        self.transferee: Peer | None = None
        self._transfer_deadline = 0
        self._excused_at = now
        self._is_timeout_sent = False
        self._uncommitted: deque[tuple[int, int]] = deque()
        self.uncommitted_bytes = 0
        self.first_own_index = log.last_index + 1
        self.progress: dict[Peer, Progress] = {}
        self._follow_members(self.first_own_index, now)
        self._append(EntryKind.NOOP, b"")

    # --- Proposals ------------------------------------------------------------------------------

    def propose(self, data: bytes) -> int:
        """Append a command; return its index.

        Raises:
            RaftBusyError: Too much is uncommitted, or leadership is being transferred.
            RaftTooLargeError: It is longer than an entry may be.
        """
        if len(data) > self._options.entry_bytes_max:
            raise RaftTooLargeError(
                f"{len(data)} bytes, at most {self._options.entry_bytes_max} in an entry"
            )
        if self.transferee is not None:  # guard R.transfer_propose
            raise RaftBusyError(f"leadership is being transferred to {self.transferee.broker}")
        size = len(data) + ENTRY_OVERHEAD_BYTES
        if self._uncommitted and self.uncommitted_bytes + size > (
            self._options.uncommitted_bytes_max  # guard R.uncommitted
        ):
            raise RaftBusyError(f"{self.uncommitted_bytes} bytes of proposals are not committed")
        return self._append(EntryKind.COMMAND, data)

    def _append(self, kind: EntryKind, data: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append((Entry(index, self.term, kind, data),))
        size = len(data) + ENTRY_OVERHEAD_BYTES
        self._uncommitted.append((index, size))
        self.uncommitted_bytes += size
        return index

    def propose_config(self, change: ConfigChange, now: int) -> int:
        """Append the configuration after `change`; in force immediately (Diss. 4.1).

        Return its index.

        One server at a time, each after the previous change is committed, and only once an entry of
        this term is committed: otherwise two leaders could hold configurations without a common
        voter (the bug of the single-server change, found by Ongaro in 2015).

        Raises:
            ConfigChangeRefusedError: The change is not allowed now, or invalid; the text has the
                reason.
        """
        log = self._log
        latest = log.membership.latest
        if self.transferee is not None:
            raise ConfigChangeRefusedError(
                f"leadership is being transferred to {self.transferee.broker}"
            )
        if log.commit < self.first_own_index:  # guard R.change_own_term
            raise ConfigChangeRefusedError("the leader has not committed an entry of its term yet")
        if log.commit < log.membership.latest_index:  # guard R.one_change
            raise ConfigChangeRefusedError("the change before this one is not committed yet")
        wanted = configuration.changed(latest, change)
        self._check_bounds(wanted)
        if isinstance(change, Promote):
            self._check_caught_up(change.peer, now)  # guard R.caught_up
        if not self._is_quorum_heard(wanted, now):  # guard R.living_quorum
            raise ConfigChangeRefusedError("no quorum of the voters after the change is alive")
        index = self._append(EntryKind.CONFIG, configuration.encode(wanted))
        self._follow_members(index, now)
        self.recount()
        return index

    def _check_bounds(self, wanted: Configuration) -> None:
        members = len(wanted.voters) + len(wanted.learners)
        if len(wanted.voters) > self._options.voters_max or members > self._options.members_max:
            raise ConfigChangeRefusedError(
                f"at most {self._options.voters_max} voters and {self._options.members_max} members"
            )

    def _check_caught_up(self, learner: Peer, now: int) -> None:
        """Refuse a learner with a large lag: as a voter it would delay commits (Diss. 4.2.1)."""
        progress = self.progress[learner]
        behind = self._log.last_index - progress.match
        if (
            progress.state is not ProgressState.REPLICATE
            or behind > self._options.catch_up_entries_max
            or progress.match < self._log.membership.latest_index
            or now - progress.heard_at >= self._options.election_ns
        ):
            raise ConfigChangeRefusedError(f"{learner.broker} is {behind} entries behind")

    def _follow_members(self, next_index: int, now: int) -> None:
        """Track all members: new members from `next_index` on, removed members for a while."""
        voters, learners = self._log.membership.latest
        deadline = now + DEPARTURE_ELECTIONS * self._options.election_ns
        for peer in self.progress:
            if peer not in voters and peer not in learners:
                self._departing.setdefault(peer, (next_index, deadline))
        for peer in voters + learners:
            self._departing.pop(peer, None)
            if peer != self._me and peer not in self.progress:
                self.progress[peer] = Progress(next_index, now, self._options)

    def match_of(self, peer: Peer) -> int | None:
        """Return the match index of a member, `None` for any other peer."""
        if peer == self._me:
            return self._log.durable
        progress = self.progress.get(peer)
        return progress.match if progress is not None else None

    # --- Commit ---------------------------------------------------------------------------------

    def recount(self) -> bool:
        """Commit entries that a majority holds durably, if of this term (Raft 5.4.2, fig. 8).

        An entry of an older term is committed only together with a later entry of this term: even
        if a majority holds it, another leader may still overwrite it.
        """
        log, progress = self._log, self.progress
        index = reached_by_majority(
            log.durable if voter == self._me else progress[voter].match  # guard R.leader_durable
            for voter in log.membership.latest.voters
        )
        was_known = log.commit >= self.first_own_index
        if index < self.first_own_index or not log.commit_to(index):  # guard R.own_term
            return False
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= index:
            self.uncommitted_bytes -= uncommitted.popleft()[1]
        if not was_known:
            self._reads.on_own_term_committed(index)
        return True

    @property
    def is_removed(self) -> bool:
        """Return whether the configuration without this leader is committed: it must step down."""
        membership = self._log.membership
        return (
            self._me not in membership.latest.voters and membership.latest_index <= self._log.commit
        )

    def say_goodbye(self, now: int) -> None:
        """Send the commit index, and ask the voter with the longest log to lead (Diss. 4.2.2)."""
        self.send_appends(now)
        voters = [v for v in self._log.membership.latest.voters if v in self.progress]
        if voters:
            best = max(voters, key=lambda voter: self.progress[voter].match)
            self._outbox.send(TimeoutNow(self._me, best, self.term))

    # --- Sending --------------------------------------------------------------------------------

    def send_appends(self, now: int) -> None:
        """Send followers missing entries within their windows, and begin a read round if due.

        Called for every `Ready`, so it must be cheap without entries to send.
        """
        last_index, commit = self._log.last_index, self._log.commit
        for peer, progress in self.progress.items():
            if progress.state is ProgressState.REPLICATE and progress.next_index > last_index:
                if progress.commit_sent >= commit:
                    continue
            elif progress.is_paused:
                continue
            self._send_append(peer, progress, now)
        if self._reads.is_round_due:
            self._reads.is_round_due = False
            for peer, progress in self.progress.items():
                self._send_heartbeat(peer, progress)
            self._confirm_reads()

    def _send_append(self, peer: Peer, progress: Progress, now: int) -> None:
        """Send appends until none is left, or the follower's window is full."""
        log, options = self._log, self._options
        while not progress.is_paused:
            prev = progress.next_index - 1
            prev_term = log.term_at(prev)
            if prev_term is None or prev < log.first_index - 1:
                self._begin_snapshot(peer, progress, now)
                return
            entries = log.entries(
                progress.next_index,
                log.last_index + 1,
                options.append_bytes_max,
                options.append_entries_max,
            )
            last = prev + len(entries)
            commit = log.commit
            self._outbox.send(Append(self._me, peer, self.term, prev, prev_term, entries, commit))
            progress.on_sent(last, sum([len(entry.data) for entry in entries]), len(entries))
            progress.commit_sent = max(progress.commit_sent, min(commit, last))
            if last >= log.last_index:
                return

    def _send_heartbeat(self, peer: Peer, progress: Progress) -> None:
        # At most the follower's match: above that, it may hold another leader's entries.
        commit = min(progress.match, self._log.commit)  # guard R.heartbeat_commit
        self._outbox.send(Heartbeat(self._me, peer, self.term, commit, self._reads.context))

    def beat(self, now: int) -> None:
        """Send heartbeats, resend chunks, and end transfers that timed out."""
        self._reads.is_round_due = False
        for peer, progress in list(self.progress.items()):
            self._send_heartbeat(peer, progress)
            if progress.state is ProgressState.SNAPSHOT:
                is_due = now - progress.chunk_sent_at >= self._options.election_ns
                if is_due and now - progress.heard_at < self._options.election_ns:
                    self._send_chunk(peer, progress, now)
            departure = self._departing.get(peer)
            if departure is not None and (
                min(progress.match, self._log.commit) >= departure[0] or now >= departure[1]
            ):
                del self.progress[peer], self._departing[peer]
        if self.transferee is not None and now >= self._transfer_deadline:  # guard R.transfer_ends
            self.transferee = None

    def _begin_snapshot(self, peer: Peer, progress: Progress, now: int) -> None:
        """Send the newest snapshot instead of compacted entries, if the follower is alive."""
        meta = self._storage.snapshot_meta
        if meta.last_index and now - progress.heard_at < self._options.election_ns:
            progress.send_snapshot(meta)
            self._send_chunk(peer, progress, now)

    def _send_chunk(self, peer: Peer, progress: Progress, now: int) -> None:
        """Send the next chunk of the snapshot; restart with a newer snapshot if it was removed."""
        progress.chunk_sent_at = now
        meta = progress.snapshot
        assert meta is not None
        bytes_max = self._options.chunk_bytes_max
        data = self._storage.read_snapshot(meta.last_index, progress.position, bytes_max)
        if data is None:
            meta = self._storage.snapshot_meta
            progress.send_snapshot(meta)
            data = self._storage.read_snapshot(meta.last_index, 0, bytes_max)
        if data is not None:
            self._outbox.send(
                InstallChunk(self._me, peer, self.term, meta, progress.position, data)
            )

    # --- Answers --------------------------------------------------------------------------------

    def on_append_reply(self, message: AppendReply, now: int) -> Drop | None:
        """Record a follower's match, or go back until the logs match (Raft 5.3)."""
        progress = self.progress[message.sender]
        progress.heard_at = now
        if message.log_index > self._log.last_index or message.log_index < 0:
            return Drop.BEYOND_LOG
        if not message.is_success:
            hint = max(message.hint_index, 0)
            if message.hint_term > 0:
                # All entries of higher terms than the follower has there cannot be shared.
                hint = self._log.last_not_above(hint, message.hint_term)[0]
            is_news = progress.on_reject(message.log_index, hint)
            return None if is_news else Drop.REPEATED
        is_news = progress.on_match(message.log_index)
        if self._is_met(progress, message.log_index):
            progress.replicate()
        if is_news:
            self.recount()
            self._continue_transfer(message.sender, progress)
        return None

    def _is_met(self, progress: Progress, index: int) -> bool:
        """Return whether replication to a follower that holds `index` can start."""
        if progress.state is ProgressState.PROBE:
            return progress.match == index
        is_reachable = progress.match + 1 >= self._log.first_index
        return progress.state is ProgressState.SNAPSHOT and is_reachable

    def on_heartbeat_reply(self, message: HeartbeatReply, now: int) -> Drop | None:
        """Confirm reads, and probe for lost appends, as the follower is alive."""
        progress = self.progress[message.sender]
        progress.heard_at = now
        progress.is_probe_sent = False
        if progress.state is ProgressState.REPLICATE and progress.match < self._log.last_index:
            if progress.match == progress.match_at_beat:
                self._ask_again(message.sender, progress)  # guard R.ask_again
            progress.match_at_beat = progress.match
        if message.read_context > self._reads.context:
            return Drop.MALFORMED
        if message.read_context > progress.read_context:
            progress.read_context = message.read_context
            self._confirm_reads()
        return None

    def _ask_again(self, peer: Peer, progress: Progress) -> None:
        """Check for a lost append, because none was answered between two heartbeats.

        The leader sends an empty append after the last one. If all appends arrived, the follower
        accepts it, which frees the window. Otherwise it refuses, and the leader probes again.
        """
        prev = progress.next_index - 1
        prev_term = self._log.term_at(prev)
        if prev_term is None:
            progress.probe()  # compacted in between: probing leads to a snapshot  # guard R.compact
            return
        commit = self._log.commit
        self._outbox.send(Append(self._me, peer, self.term, prev, prev_term, (), commit))

    def on_chunk_reply(self, message: InstallChunkReply, now: int) -> Drop | None:
        """Send the next chunk, or continue after the snapshot."""
        progress = self.progress[message.sender]
        progress.heard_at = now
        if message.is_done:
            if message.snapshot_index > self._log.commit:
                return Drop.BEYOND_LOG
            if progress.on_match(message.snapshot_index):
                self.recount()
            if self._is_met(progress, message.snapshot_index):
                progress.replicate()
            return None
        meta = progress.snapshot
        if meta is None or meta.last_index != message.snapshot_index:
            return Drop.REPEATED
        if not 0 <= message.position <= meta.size_bytes:
            return Drop.MALFORMED
        is_further = message.position > progress.position
        progress.position = message.position
        if is_further and message.position < meta.size_bytes:
            self._send_chunk(message.sender, progress, now)
        return None

    # --- Reads ----------------------------------------------------------------------------------

    def read(self, token: int) -> None:
        """Begin a read of this peer; raises `RaftBusyError` if too many wait."""
        self._local_reads.check_room()
        self._reads.add(None, token, self._known_commit())

    def on_read_index(self, message: ReadIndex) -> Drop | None:
        """Begin a read of a follower."""
        try:
            self._reads.add(message.sender, message.context, self._known_commit())
        except RaftBusyError:
            return Drop.OVERLOADED
        return None

    def _known_commit(self) -> int | None:
        commit = self._log.commit
        return commit if commit >= self.first_own_index else None  # guard R.read_own_term

    def _confirm_reads(self) -> None:
        """Answer the reads whose round a quorum of voters confirmed."""
        newest, progress = self._reads.context, self.progress
        context = reached_by_majority(
            newest if voter == self._me else progress[voter].read_context  # guard R.read_quorum
            for voter in self._log.membership.latest.voters
        )
        for read in self._reads.confirm(context):
            if read.origin is None:
                self._local_reads.add_final(read.number, read.read_index)
            else:
                self._outbox.send(
                    ReadIndexReply(self._me, read.origin, self.term, read.number, read.read_index)
                )

    def fail_reads(self) -> None:
        """Fail all waiting reads, because the leadership ends."""
        self._local_reads.failed += self._reads.own_tokens()

    # --- Hand-over and liveness ---------------------------------------------------------------

    def transfer(self, peer: Peer, now: int) -> None:
        """Hand leadership to `peer` once it holds the whole log (Diss. 3.10).

        Raises:
            TransferRefusedError: The peer is not another voter, or has sent nothing recently.
        """
        if peer == self._me or peer not in self._log.membership.latest.voters:
            raise TransferRefusedError(f"{peer.broker} is not another voter")
        progress = self.progress[peer]
        if now - progress.heard_at >= self._options.election_ns:
            raise TransferRefusedError(f"{peer.broker} has sent nothing recently")
        self.transferee = peer
        self._transfer_deadline = now + self._options.election_ns
        self._is_timeout_sent = False
        self._continue_transfer(peer, progress)

    def _continue_transfer(self, peer: Peer, progress: Progress) -> None:
        if (
            peer == self.transferee
            and not self._is_timeout_sent
            and progress.match == self._log.last_index
        ):
            self._is_timeout_sent = True
            self._outbox.send(TimeoutNow(self._me, peer, self.term))

    def is_quorum_heard(self, now: int) -> bool:
        """Return whether a majority of voters answered within an election timeout (Diss. 6.2)."""
        return self._is_quorum_heard(self._log.membership.latest, now)

    def may_stay(self, now: int) -> bool:
        """Return whether to lead on: a quorum was heard, or could not be heard until just now."""
        is_excused = now - self._excused_at < self._options.election_ns  # guard R.excused
        return is_excused or self.is_quorum_heard(now)

    def excuse(self, now: int) -> None:
        """Excuse the silence so far, as this peer could hear nobody; it still confirms nothing."""
        self._excused_at = now

    def _is_quorum_heard(self, members: Configuration, now: int) -> bool:
        heard = 0
        for voter in members.voters:
            if voter == self._me:
                heard += 1
                continue
            progress = self.progress.get(voter)
            heard += progress is not None and now - progress.heard_at < self._options.election_ns
        return heard >= majority(len(members.voters))
