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
    NoMetadataLeaderError,
    OutcomeUnknownError,
    StorageFullError,
    TooLargeError,
    UnavailableError,
    WireError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, earliest
from liftbridge_broker.model.metadata_log import Entry, EntryKind, Peer
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.metadata.proposals import (
    PREFIX_SIZE,
    PROPOSALS_MAX,
    TOKEN_SIZE,
    WAIT_NS,
    LeaderClock,
    OwnProposals,
    SeenProposals,
    Waiting,
)
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
    ConfigChange,
    FromLeader,
    Message,
    NotRaftLeaderError,
    Promote,
    RaftBusyError,
    RaftRefusalError,
    RaftTooLargeError,
    Ready,
    Remove,
)
from liftbridge_broker.storage.raft_log import RaftLog
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_bodies import Propose, ProposeRefused, RaftBody
from liftbridge_broker.wire.raft import decode_message, encode_message

RETRY_NS: Final = 1_000 * MILLISECOND_NS
"""Time between two attempts to write on a full disk."""

DEFAULT_RAFT_OPTIONS: Final = RaftOptions()

_FULL_TEXT: Final = "not written: the disk is full"


class RaftConsensus:
    """One member of the group; implements `MetadataConsensus`.

    Invariants: at most one `Ready` is being written; its messages that promise durability wait for
    the sync. Proposals wait in order, for a leader or for room in the log, before any newer
    proposal is appended or sent.

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
        self._own = OwnProposals(origin)
        self._seen = SeenProposals()
        self._leader_clock = LeaderClock()
        self._term_at_start = core.term
        self._events: list[MetadataEvent] = []
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
        while core.told < core.commit:
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
        return self._core.configuration.voters

    @property
    def learners(self) -> Sequence[Peer]:
        """Members without a vote, committed or not."""
        return self._core.configuration.learners

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
        index = self._core.match(peer)
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
        elif len(self._own) >= PROPOSALS_MAX:
            self._refuse(token, UnavailableError(f"more than {PROPOSALS_MAX} changes wait"))
        else:
            self._own.waiting.append(Waiting(token, command, urgency, self._now))
            self._offer_waiting()
            if self._writing is None:
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

    def add_learner(self, peer: Peer) -> None:
        """Add a member without a vote; raises `LiftbridgeError`."""
        self._change(AddLearner(peer))

    def promote(self, peer: Peer) -> None:
        """Make a learner that has caught up a voter; raises `LiftbridgeError`."""
        self._change(Promote(peer))

    def remove(self, peer: Peer) -> None:
        """Remove a member; raises `LiftbridgeError`."""
        self._change(Remove(peer))

    def _change(self, change: ConfigChange) -> None:
        self._ask(lambda: self._core.propose_config(change))

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
        for waiting in self._own.expire(now):
            self._refuse(waiting.token, NoMetadataLeaderError())
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
        return earliest(None if due is None else Instant(due), self._own.next_deadline(), blocked)

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
            self._own.on_restored(index)
            self._events.append(Restored(MetadataIndex(index), ready.snapshot.state))
        self._send(ready.messages_after)
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
                self._on_propose(header.sender, header.body, tail)
            case ProposeRefused():
                self._on_refused(header.body)
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
            self._leader_clock.on_told(message.term, body.clock_ns, self._now)

    def _on_propose(self, sender: BrokerId, body: Propose, command: bytes) -> None:
        """Append a command of another broker, or answer with a refusal."""
        if not command or not self._seen.is_new(body.origin, body.token):
            return
        refusal = self._out_of_time(body) or self._append_foreign(body, command)
        if refusal is None:
            return
        leader = self._core.leader
        answer = ProposeRefused(
            body.origin,
            body.token,
            # An earlier process of this broker, leader in that term, may have appended it.
            is_definite=body.term == 0 or body.term > self._term_at_start,  # guard Propose.definite
            code=refusal.code,
            reason=refusal.text,
            leader=None if leader is None else leader.broker,
        )
        self._link.send(sender, Channel.METADATA, answer)

    def _out_of_time(self, body: Propose) -> LiftbridgeError | None:
        """Return the refusal of a proposal that is too late or may be appended already, or `None`.

        Its proposer may have given up, and its client may have seen later changes. A proposal
        appended by the deadline precedes all later requests in the log, or is lost.
        """
        if body.term == 0:
            return None  # sent by an earlier version, without a deadline
        if not self._core.is_leader:
            return None  # the core refuses, with a better text
        if body.term != self._core.term:  # guard Propose.term
            return UnavailableError(
                f"the change is for term {body.term} of the metadata leader, "
                f"which leads in term {self._core.term}: retry"
            )
        if self._now > body.deadline_ns:  # guard Propose.deadline
            return UnavailableError("the change reached the metadata leader too late: retry")
        return None

    def _append_foreign(self, body: Propose, command: bytes) -> LiftbridgeError | None:
        """Append a command of another broker; return the error if refused."""
        data = body.origin + body.token.to_bytes(TOKEN_SIZE, "big") + command
        try:
            if self._core.is_leader and not self._has_room(data, is_essential=body.is_essential):
                return self._no_room()
            self._core.propose(data)
        except RaftTooLargeError as error:
            return TooLargeError(str(error))
        except RaftRefusalError as error:
            return UnavailableError(str(error))
        return None

    def _on_refused(self, body: ProposeRefused) -> None:
        """Handle the leader's refusal of a proposal of this process."""
        token = ProposalToken(body.token)
        if body.origin != self._own.origin or not self._own.settle(token):
            return
        if not body.is_definite:
            self._refuse(token, OutcomeUnknownError(body.reason))
        else:
            known = (StorageFullError, TooLargeError)
            kind = next((kind for kind in known if kind.code == body.code), UnavailableError)
            self._refuse(token, kind(body.reason))

    # -- proposals ----------------------------------------------------------------------------

    def _offer_waiting(self) -> None:
        """Append waiting proposals, or send them to the leader, as far as possible now."""
        waiting = self._own.waiting
        while waiting and self.failure is None:
            if self._core.leader is None:
                return
            proposal = waiting.popleft()
            if self._core.leader == self._core.me:
                if not self._append(proposal):
                    waiting.appendleft(proposal)
                    return
            else:
                self._forward(proposal, self._core.leader.broker)

    def _append(self, proposal: Waiting) -> bool:
        """Append or refuse a proposal; return false when it must wait for room in the core."""
        data = self._own.data_of(proposal)
        is_essential = proposal.urgency is Urgency.ESSENTIAL
        try:
            if self._has_room(data, is_essential=is_essential):
                self._own.on_appended(proposal, self._core.propose(data))
            else:
                self._refuse(proposal.token, self._no_room())
        except RaftBusyError:
            return False
        except RaftTooLargeError as error:
            self._refuse(proposal.token, TooLargeError(str(error)))
        return True

    def _has_room(self, data: bytes, *, is_essential: bool) -> bool:
        return bool(self._try(lambda: self._log.has_room(len(data), is_essential=is_essential)))

    def _no_room(self) -> LiftbridgeError:
        """Return the refusal for when `_has_room` is false."""
        if self.failure is not None:
            return UnavailableError(self.failure.text)
        return StorageFullError(_FULL_TEXT)

    def _forward(self, proposal: Waiting, leader: BrokerId) -> None:
        """Send a proposal once; its outcome is known when the entry is applied here."""
        if not self._link.is_connected:
            self._refuse(proposal.token, UnavailableError("cut off from the metadata leader"))
            return
        self._own.on_sent(proposal)
        is_essential = proposal.urgency is Urgency.ESSENTIAL
        term = self._core.term
        deadline_ns = self._leader_clock.at(term, Instant(proposal.entered_at + WAIT_NS))
        body = Propose(self._own.origin, proposal.token, is_essential, term, deadline_ns)
        self._link.send(leader, Channel.METADATA, body, proposal.command)

    # -- effects of the core ------------------------------------------------------------------

    def _advance(self) -> None:
        """Handle the core's `Ready` values until none is left."""
        while self.failure is None:
            self._offer_waiting()
            ready = self._core.ready()
            if ready is None:
                break
            self._take(ready)
        if self._is_mark_due and self._writing is None and self.failure is None:
            self._is_mark_due = False
            self._try(lambda: self._log.mark(self._core.told))

    def _take(self, ready: Ready) -> None:
        self._send(ready.messages_before)
        for entry in ready.committed:
            self._commit(entry)
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

    def _commit(self, entry: Entry) -> None:
        """Emit the event of a committed entry."""
        token, displaced = self._own.on_committed(
            entry.entry_index, entry.data if entry.kind is EntryKind.COMMAND else b""
        )
        if displaced:
            self._refuse(displaced, UnavailableError("another leader took over before the commit"))
        index = MetadataIndex(entry.entry_index)
        self._events.append(Committed(index, _command_of(entry), token))

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

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            data = encode_message(message)
            self._link.send(message.target.broker, Channel.METADATA, RaftBody(self._now), data)

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
        """Stop all writes after a disk error; never retry a sync.

        Proposals already written or sent may still be committed; all others will not be.
        """
        if self.failure is not None:
            return
        self.failure = error
        is_alone = len(self.voters) + len(self.learners) == 1
        for token, is_unwritten in self._own.take_open(self._log.last_index):
            if is_unwritten and is_alone:
                self._refuse(token, UnavailableError(f"not written: {error.text}"))
            else:
                self._refuse(token, OutcomeUnknownError(f"outcome unknown: {error.text}"))
        while self._own.waiting:
            token = self._own.waiting.popleft().token
            self._refuse(token, UnavailableError(f"not written: {error.text}"))
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
