"""Proposals on their way into the log of the metadata leader: from here, and from other brokers."""

from collections.abc import Callable

from liftbridge_broker.errors import (
    FilesError,
    LiftbridgeError,
    NoMetadataLeaderError,
    OutcomeUnknownError,
    StorageFullError,
    TooLargeError,
    UnavailableError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Entry, EntryKind
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
from liftbridge_broker.ports.metadata import Committed, ProposalToken, Urgency
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.types import RaftBusyError, RaftRefusalError, RaftTooLargeError
from liftbridge_broker.wire.peer.bodies import Propose, ProposeRefused


class ProposalQueue:
    """Proposals without outcome, in order.

    They wait for a leader or for room in the log, before any newer proposal is appended or sent.

    Args:
        core: The Raft core of this member.
        link: Sends messages to other brokers.
        origin: 16 random bytes, unique to this process.
        check_room: Returns why the log takes no entry of a size now, or `None`.
        refuse: Receives own proposals that were not appended, or whose outcome stays unknown.
    """

    def __init__(
        self,
        core: RaftCore,
        link: PeerLink,
        *,
        origin: bytes,
        check_room: Callable[[int, Urgency], LiftbridgeError | None],
        refuse: Callable[[ProposalToken, LiftbridgeError], None],
    ) -> None:
        self._core = core
        self._link = link
        self._check_room = check_room
        self._refuse = refuse
        self._own = OwnProposals(origin)
        self._seen = SeenProposals()
        self._leader_clock = LeaderClock()
        self._term_at_start = core.term

    # -- own proposals ------------------------------------------------------------------------

    def add(self, proposal: Waiting) -> bool:
        """Append a proposal here or send it to the leader; return false if too many wait."""
        if len(self._own) >= PROPOSALS_MAX:
            text = f"more than {PROPOSALS_MAX} changes wait"
            self._refuse(proposal.token, UnavailableError(text))
            return False
        self._own.waiting.append(proposal)
        self.offer()
        return True

    def offer(self) -> None:
        """Append waiting proposals, or send them to the leader, as far as possible now."""
        waiting = self._own.waiting
        while waiting:
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
        try:
            refusal = self._check_room(len(data), proposal.urgency)
            if refusal is None:
                self._own.on_appended(proposal, self._core.propose(data))
            else:
                self._refuse(proposal.token, refusal)
        except RaftBusyError:
            return False
        except RaftTooLargeError as error:
            self._refuse(proposal.token, TooLargeError(str(error)))
        return True

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

    def on_refused(self, body: ProposeRefused) -> None:
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

    def on_leader_clock(self, term: int, clock_ns: int, now: Instant) -> None:
        """Record the clock value in a message of the leader of a term."""
        self._leader_clock.on_announced(term, clock_ns, now)

    def on_committed(self, entry: Entry) -> Committed:
        """Settle what a committed entry holds or overwrote; return its event."""
        command = entry.data if entry.kind is EntryKind.COMMAND else b""
        token, displaced = self._own.on_committed(entry.entry_index, command)
        if displaced:
            self._refuse(displaced, UnavailableError("another leader took over before the commit"))
        return Committed(MetadataIndex(entry.entry_index), command[PREFIX_SIZE:], token)

    def on_restored(self, index: int) -> None:
        """Handle a snapshot up to an index; outcomes of proposals below it stay unknown."""
        self._own.on_restored(index)

    def expire(self, now: Instant) -> None:
        """Refuse proposals that waited too long for a leader."""
        for waiting in self._own.expire(now):
            self._refuse(waiting.token, NoMetadataLeaderError())

    def next_deadline(self) -> Instant | None:
        """Time of the next `expire` call."""
        return self._own.next_deadline()

    def fail(self, error: FilesError, index_last: int, *, is_alone: bool) -> None:
        """Refuse everything after the log failed with `index_last` as its last entry.

        Proposals written or sent may turn out committed; all others will not.
        """
        for token, is_unwritten in self._own.take_open(index_last):
            if is_unwritten and is_alone:
                self._refuse(token, UnavailableError(f"not written: {error.text}"))
            else:
                self._refuse(token, OutcomeUnknownError(f"outcome unknown: {error.text}"))
        while self._own.waiting:
            token = self._own.waiting.popleft().token
            self._refuse(token, UnavailableError(f"not written: {error.text}"))

    # -- proposals of other brokers -----------------------------------------------------------

    def on_propose(self, sender: BrokerId, body: Propose, command: bytes, now: Instant) -> None:
        """Append a command of another broker, or answer with a refusal."""
        if not command or not self._seen.is_new(body.origin, body.token):
            return
        refusal = self._out_of_time(body, now) or self._append_foreign(body, command)
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

    def _out_of_time(self, body: Propose, now: Instant) -> LiftbridgeError | None:
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
        if now > body.deadline_ns:  # guard Propose.deadline
            return UnavailableError("the change reached the metadata leader too late: retry")
        return None

    def _append_foreign(self, body: Propose, command: bytes) -> LiftbridgeError | None:
        """Append a command of another broker; return the error if refused."""
        data = body.origin + body.token.to_bytes(TOKEN_SIZE, "big") + command
        try:
            if self._core.is_leader:
                urgency = Urgency.ESSENTIAL if body.is_essential else Urgency.ORDINARY
                refusal = self._check_room(len(data), urgency)
                if refusal is not None:
                    return refusal
            self._core.propose(data)
        except RaftTooLargeError as error:
            return TooLargeError(str(error))
        except RaftRefusalError as error:
            return UnavailableError(str(error))
        return None
