"""A member of the metadata group: the Raft core between its disk, its peers and the node.

Keeps the contract in docs/internals/raft.md: everything one `Ready` asks for is written with one
call and one sync; messages that promise durability are sent only afterwards; only committed entries
are applied; the first disk error other than a full disk closes the log; during a sync, proposals
queue for the next one. A broker alone is a group of one voter under the same rules.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from liftbridge_broker.errors import (
    FailedPreconditionError,
    FilesError,
    LiftbridgeError,
    StorageFullError,
    UnavailableError,
    WireError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, earliest
from liftbridge_broker.model.metadata_log import Entry, EntryKind, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.proposal_queue import ProposalQueue
from liftbridge_broker.node.metadata.proposals import PREFIX_SIZE, Waiting
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    LeaderChanged,
    MetadataEvent,
    ProposalToken,
    ReadFailed,
    ReadReady,
    ReadToken,
    RecoveredMetadata,
    Refused,
    Restored,
    Urgency,
)
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.types import (
    AddLearner,
    FromLeader,
    Message,
    NotRaftLeaderError,
    Promote,
    RaftBusyError,
    RaftRefusalError,
    Ready,
    Remove,
)
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.wire.peer.bodies import Propose, ProposeRefused, RaftBody
from liftbridge_broker.wire.peer.messages import PeerHeader
from liftbridge_broker.wire.raft import decode_message, encode_message

RETRY_NS: Final = 1_000 * MILLISECOND_NS
"""Time between two attempts to write on a full disk."""

STAGGER_NS: Final = 40 * MILLISECOND_NS
"""Time between the elections that two voters start because the leader's process has ended.

More than the time between two probes, by which they confirm it at different times: if it were less,
the first voter might start just when the second one does, and the votes would be split.
"""

DEFAULT_RAFT_OPTIONS: Final = RaftOptions()


class RaftConsensus:
    """One member of the group; implements `MetadataConsensus`.

    Invariants: at most one `Ready` is being written; its messages that promise durability wait for
    the sync.

    Attributes:
        failure: Reason why the log cannot be written any more, `None` while it can.
        malformed_count: Messages of peers that could not be read.
    """

    def __init__(
        self,
        log: RaftLog,
        core: RaftCore,
        link: PeerLink,
        *,
        origin: bytes,
        sync_token: Token,
        now: Instant,
    ) -> None:
        """Take over what `open` recovered."""
        self._log = log
        self._core = core
        self._link = link
        self._sync_token = sync_token
        self._now = now
        self._events: list[MetadataEvent] = []
        self._proposals = ProposalQueue(
            core, link, origin=origin, check_room=self._check_room, refuse=self._refuse
        )
        self._writing: Ready | None = None
        self._blocked: Ready | None = None
        self._retry_at = now
        self._is_mark_due = False
        self.failure: FilesError | None = None
        self.malformed_count = 0

    @classmethod
    def open(
        cls,
        log: RaftLog,
        me: Peer,
        link: PeerLink,
        *,
        origin: bytes,
        sync_token: Token,
        rng: Rng,
        now: Instant,
        options: RaftOptions = DEFAULT_RAFT_OPTIONS,
    ) -> tuple["RaftConsensus", RecoveredMetadata]:
        """Create the member from an opened log; may submit the first sync at once.

        Args:
            log: The log.
            me: This broker with its data directory.
            link: Sends messages to other brokers.
            origin: 16 random bytes, unique to this process.
            sync_token: Token of every sync of the log; its events go to `on_file_event`.
            rng: Random source for election timeouts.
            now: Time of the start.
            options: Times and bounds.

        Returns:
            The member, and the metadata that its log is certain to hold.

        Raises:
            CorruptionError: The log contradicts itself.
            FilesError: The disk reported an error.
        """
        if log.configuration.voters == (me,):
            # No other voter can have led since, so all durable entries are committed.
            log.mark(log.last_index)
        core = RaftCore(me, log, options, rng, now)
        while core.log.delivered < core.log.commit:
            assert core.ready() is not None  # they are returned as recovered, below
        recovered = recovered_metadata(log)
        log.forget_snapshot()
        consensus = cls(log, core, link, origin=origin, sync_token=sync_token, now=now)
        consensus.on_timer(now)
        return consensus, recovered

    def close(self) -> None:
        """Close the files; proposals in flight have an unknown outcome."""
        self._log.close()

    # -- state -------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads the group."""
        return self._core.is_leader

    @property
    def leader(self) -> Peer | None:
        """Leader of the group as far as this broker knows."""
        return self._core.leader

    @property
    def term(self) -> int:
        """Latest term seen."""
        return self._core.term

    @property
    def voters(self) -> Sequence[Peer]:
        """Members with a vote, committed or not."""
        return self._core.log.membership.latest.voters

    @property
    def learners(self) -> Sequence[Peer]:
        """Members without a vote, committed or not."""
        return self._core.log.membership.latest.learners

    @property
    def core(self) -> RaftCore:
        """The core, read-only."""
        return self._core

    @property
    def snapshot_index(self) -> MetadataIndex:
        """Index of the newest snapshot, 0 for none."""
        return MetadataIndex(self._log.snapshot_meta.last_index)

    @property
    def is_full(self) -> bool:
        """Return whether the log accepts only essential commands because the disk is full."""
        return self._log.is_full

    def match(self, peer: Peer) -> MetadataIndex | None:
        """Match index of a member, known to the leader; `None` elsewhere and for non-members."""
        leading = self._core.leading
        index = None if leading is None else leading.match_of(peer)
        return None if index is None else MetadataIndex(index)

    # -- calls of the node --------------------------------------------------------------------

    def take_events(self) -> Sequence[MetadataEvent]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def propose(self, token: ProposalToken, command: bytes, urgency: Urgency) -> None:
        """Append a command here or send it to the leader; see `MetadataConsensus`."""
        assert command
        if self.failure is not None:
            self._refuse(token, UnavailableError(f"metadata log failed: {self.failure.text}"))
            return
        is_added = self._proposals.add(Waiting(token, command, urgency, self._now))
        if is_added and self._writing is None:
            # While a sync runs, proposals queue: its end, or an earlier answer of a follower,
            # sends them all at once.
            self._advance()

    def read(self, token: ReadToken) -> None:
        """Request an event once the state holds every outcome announced before this call."""
        try:
            self._core.read(token, self._now)
        except RaftRefusalError as error:
            self._events.append(ReadFailed(token, UnavailableError(str(error))))
        self._advance()

    def transfer(self, broker: BrokerId) -> None:
        """Hand leadership to another voter.

        Raises:
            LiftbridgeError: The transfer is not possible.
        """
        target = next((peer for peer in self.voters if peer.broker == broker), None)
        if target is None:
            raise FailedPreconditionError(f"{broker} does not vote in the metadata group")
        self._ask(lambda: self._core.transfer(target, self._now))

    def abandon_leader(self, broker: BrokerId, now: Instant) -> None:
        """Elect another leader if the process that has ended, of `broker`, led the group.

        Voters start one after the other, so that they do not compete.
        """
        self._now = now
        leader, me = self._core.leader, self._core.me
        if leader is None or leader.broker != broker or self.failure is not None:
            return
        others = sorted(peer for peer in self.voters if peer != leader)
        rank = others.index(me) if me in others else len(others)
        self._core.abandon(leader, rank * STAGGER_NS, now)
        self._core.tick(now)
        self._advance()

    def excuse(self, now: Instant) -> None:
        """Start the timers that judge silence anew, as this broker could hear nobody until now."""
        self._now = now
        if self.failure is None:
            self._core.excuse(now)

    def add_learner(self, peer: Peer) -> None:
        """Add a member without a vote; raises `LiftbridgeError`."""
        self._ask(lambda: self._core.propose_config(AddLearner(peer)))

    def promote(self, peer: Peer) -> None:
        """Make a learner that has caught up a voter; raises `LiftbridgeError`."""
        self._ask(lambda: self._core.propose_config(Promote(peer)))

    def remove(self, peer: Peer) -> None:
        """Remove a member; raises `LiftbridgeError`."""
        self._ask(lambda: self._core.propose_config(Remove(peer)))

    def _ask(self, call: Callable[[], object]) -> None:
        """Call the core as the leader, and translate its refusals."""
        try:
            call()
        except (NotRaftLeaderError, RaftBusyError) as error:
            raise UnavailableError(str(error)) from error
        except RaftRefusalError as error:
            raise FailedPreconditionError(str(error)) from error
        self._advance()

    def snapshot(self, index: MetadataIndex, state: bytes) -> None:
        """Keep the state after `index`; see `MetadataConsensus`."""
        if self.failure is None and index > self.snapshot_index:
            self._try(lambda: self._log.save_snapshot(index, state))

    def on_timer(self, now: Instant) -> None:
        """Advance the core and the proposals to `now`."""
        self._now = now
        if self.failure is not None:
            return
        self._core.tick(now)
        self._proposals.expire(now)
        if self._blocked is not None and now >= self._retry_at:
            ready, self._blocked = self._blocked, None
            self._persist(ready)
        self._advance()

    def next_deadline(self) -> Instant | None:
        """Latest time for the next `on_timer` call."""
        if self.failure is not None:
            return None
        blocked = self._retry_at if self._blocked is not None else None
        due = self._core.next_deadline()
        return earliest(
            None if due is None else Instant(due), self._proposals.next_deadline(), blocked
        )

    def on_file_event(self, event: FileEvent) -> None:
        """Handle the end of the sync in flight."""
        assert event.token == self._sync_token
        ready, self._writing = self._writing, None
        assert ready is not None
        if event.error is not None:
            self._fail(event.error)
        if self.failure is not None:
            return
        self._log.on_synced()
        self._core.persisted(ready)
        if ready.snapshot is not None:
            index = ready.snapshot.meta.last_index
            self._proposals.on_restored(index)
            self._events.append(Restored(MetadataIndex(index), ready.snapshot.state))
        _send(ready.messages_after, self._link, self._now)
        self._is_mark_due = True
        self._advance()

    # -- messages of peers --------------------------------------------------------------------

    def on_peer(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        """Handle a message of another broker; ignore messages not for the group."""
        self._now = now
        if self.failure is not None:
            return
        match header.body:
            case RaftBody():
                self._on_raft(header.sender, header.body, tail)
            case Propose():
                self._proposals.on_propose(header.sender, header.body, tail, now)
            case ProposeRefused():
                self._proposals.on_refused(header.body)
            case _:
                return
        self._advance()

    def _on_raft(self, sender: BrokerId, body: RaftBody, data: bytes) -> None:
        try:
            message = decode_message(data)
        except WireError:
            self.malformed_count += 1
            return
        if message.sender.broker != sender:
            return
        self._core.step(message, self._now)
        if (
            body.clock_ns is not None
            and isinstance(message, FromLeader)
            and (message.sender, message.term) == (self._core.leader, self._core.term)
        ):
            self._proposals.on_leader_clock(message.term, body.clock_ns, self._now)

    # -- effects of the core ------------------------------------------------------------------

    def _advance(self) -> None:
        """Handle the core's `Ready` values until none is left."""
        while self.failure is None:
            self._proposals.offer()
            ready = self._core.ready()
            if ready is None:
                break
            self._take(ready)
        if self._is_mark_due and self._writing is None and self.failure is None:
            self._is_mark_due = False
            self._try(lambda: self._log.mark(self._core.log.delivered))

    def _take(self, ready: Ready) -> None:
        _send(ready.messages_before, self._link, self._now)
        for entry in ready.committed:
            self._events.append(self._proposals.on_committed(entry))
        for read in ready.reads:
            self._events.append(ReadReady(ReadToken(read.token)))
        for token in ready.reads_failed:
            error = UnavailableError("no leader of the metadata group confirmed the read")
            self._events.append(ReadFailed(ReadToken(token), error))
        if ready.leader_change is not None:
            leader, term = ready.leader_change
            broker = None if leader is None else leader.broker
            self._events.append(LeaderChanged(broker, term, leader == self._core.me))
        if ready.must_persist:
            self._persist(ready)

    def _persist(self, ready: Ready) -> None:
        """Write what must be durable and submit its sync; retry later on a full disk."""
        assert self._writing is None
        snapshot = ready.snapshot
        try:
            if snapshot is not None and snapshot.meta != self._log.snapshot_meta:
                self._log.install(snapshot)
            self._log.append(ready.entries, ready.hard_state)
        except FilesError as error:
            if error.is_full:
                self._blocked = ready
                self._retry_at = Instant(self._now + RETRY_NS)
            else:
                self._fail(error)
            return
        self._writing = ready
        self._log.submit_sync(self._sync_token)

    def _check_room(self, size: int, urgency: Urgency) -> LiftbridgeError | None:
        """Return why the log takes no entry of a size now, or `None`."""
        is_essential = urgency is Urgency.ESSENTIAL
        if self._try(lambda: self._log.has_room(size, is_essential=is_essential)):
            return None
        if self.failure is not None:
            return UnavailableError(self.failure.text)
        return StorageFullError("not written: the disk is full")

    # -- failure ------------------------------------------------------------------------------

    def _refuse(self, token: ProposalToken, error: LiftbridgeError) -> None:
        self._events.append(Refused(token, error))

    def _try(self, call: Callable[[], object]) -> object:
        """Run a disk operation; an error closes the log."""
        try:
            return call()
        except FilesError as error:
            self._fail(error)
            return None

    def _fail(self, error: FilesError) -> None:
        """Stop all writes after a disk error; never retry a sync."""
        if self.failure is not None:
            return
        self.failure = error
        is_alone = len(self.voters) + len(self.learners) == 1
        self._proposals.fail(error, self._log.last_index, is_alone=is_alone)
        self._events.append(Failed(error))


def recovered_metadata(log: RaftLog, last: int | None = None) -> RecoveredMetadata:
    """Return the metadata that a log is certain to hold, or holds up to an index.

    Raises:
        FilesError: The disk reported an error.
    """
    meta = log.snapshot_meta
    commit = log.hard_state().commit if last is None else last
    first = meta.last_index + 1
    stored = log.entries(first, commit + 1, sys.maxsize) if first <= commit else ()
    entries = [
        Committed(MetadataIndex(entry.entry_index), _command_of(entry), ProposalToken(0))
        for entry in stored
    ]
    snapshot = log.newest_snapshot()
    state = b"" if snapshot is None else snapshot.state
    return RecoveredMetadata(MetadataIndex(meta.last_index), state, entries, log.findings)


def _command_of(entry: Entry) -> bytes:
    """Return the command of an entry, empty for other kinds."""
    return entry.data[PREFIX_SIZE:] if entry.kind is EntryKind.COMMAND else b""


def _send(messages: Sequence[Message], link: PeerLink, now: Instant) -> None:
    for message in messages:
        data = encode_message(message)
        link.send(message.target.broker, Channel.METADATA, RaftBody(now), data)
