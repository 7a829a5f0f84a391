"""Raft as a state machine without I/O: messages, calls and time in, `Ready` out.

Follows the Raft paper (fig. 2), Ongaro's dissertation and etcd/raft: pre-vote and check-quorum
always on, read-index instead of leases, single-server membership changes that take effect when
appended. There is one `RaftCore` per process start. Its host calls `ready` after every call until
it returns `None`, and does the work in each `Ready`. Time is monotonic nanoseconds.

No message of a peer raises an error: invalid messages are dropped and counted by reason.
"""

from collections.abc import Callable
from typing import ClassVar

from liftbridge_broker.model.metadata_log import Entry, HardState, Peer, Snapshot
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.stable_log import StableLog
from liftbridge_broker.raft.ballot import Ballot
from liftbridge_broker.raft.follower import Follower
from liftbridge_broker.raft.leader import Leader
from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.outbox import Outbox
from liftbridge_broker.raft.reads import LocalReads
from liftbridge_broker.raft.status import PeerStatus, peer_statuses
from liftbridge_broker.raft.timers import RETRY_NS, Timers
from liftbridge_broker.raft.types import (
    TERM_LEAP_MAX,
    TERM_MAX,
    Append,
    AppendReply,
    ConfigChange,
    Drop,
    FromLeader,
    Heartbeat,
    HeartbeatReply,
    InstallChunk,
    InstallChunkReply,
    LeaderChange,
    Message,
    NotRaftLeaderError,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    Ready,
    Role,
    TimeoutNow,
    ToLeader,
    Vote,
    VoteReply,
)


class RaftCore:
    """One member of the group.

    Invariants: a vote, a term, entries and snapshots are promised to other peers only after the
        sync that makes them durable; only then do this peer's vote and entries count.

    Attributes:
        me: Identity of this peer; it never changes.
        role: Current role.
        leader: Presumed leader of `term`.
        leading: Leadership of this peer, `None` while it does not lead; hosts only read it.
        log: Log of this peer; hosts only read it.
        dropped: Counts of dropped messages by reason.
    """

    __slots__ = (
        "_ballot",
        "_follower",
        "_in_flight",
        "_options",
        "_outbox",
        "_reads",
        "_reported_leader",
        "_storage",
        "_timers",
        "dropped",
        "leader",
        "leading",
        "log",
        "me",
        "role",
    )

    def __init__(
        self, peer: Peer, storage: StableLog, options: RaftOptions, rng: Rng, now: int
    ) -> None:
        """Start as a follower from the durable state.

        The state before `storage.snapshot_meta.last_index` is taken as applied: the host has
        restored that snapshot, and later entries follow in `Ready.committed`.

        Raises:
            CorruptionError: The log contradicts the hard state, or cannot be read.
        """
        hard_state = storage.hard_state()
        self.me = peer
        self.role = Role.FOLLOWER
        self.leader: Peer | None = None
        self._storage = storage
        self._options = options
        self.log = Log(storage, hard_state)
        self._ballot = Ballot(hard_state, self.log.last_term)
        self._timers = Timers(options, rng, now)
        self._outbox = Outbox(options.messages_max)
        self._follower = Follower(peer, self.log, self._outbox, options)
        self._reads = LocalReads(options.reads_max, self._timers.election_deadline)  # a new number
        self.leading: Leader | None = None
        self._in_flight: Ready | None = None
        self._reported_leader = LeaderChange(None, self.term)
        self.dropped = [0] * len(Drop)
        voters = self.log.membership.latest.voters
        if voters == (peer,) or (self.term == 0 and peer in voters):
            # No silence to wait for: it is alone, or no leader is known since the bootstrap.
            self._timers.await_first_turn(voters.index(peer))

    # --- State ----------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Latest term seen."""
        return self._ballot.term

    @property
    def is_leader(self) -> bool:
        """Return whether this peer leads."""
        return self.leading is not None

    def peers(self) -> tuple[PeerStatus, ...]:
        """Return the leader's status of all members; empty if this peer does not lead."""
        if self.leading is None:
            return ()
        return peer_statuses(self.me, self.leading, self.log, self._timers.now)

    # --- Calls of the host ----------------------------------------------------------------------

    def propose(self, data: bytes) -> int:
        """Append a command to the log of the leader.

        Returns:
            Its index. It is committed once an entry of this index *and of the current term* is in
            `Ready.committed`; another leader may put another entry there.

        Raises:
            NotRaftLeaderError: Another peer leads, or no leader is known.
            RaftBusyError: Too much is uncommitted, or leadership is being transferred.
            RaftTooLargeError: The command exceeds the limit of an entry.
        """
        if self.leading is None:
            raise NotRaftLeaderError(self.leader)
        return self.leading.propose(data)

    def propose_config(self, change: ConfigChange) -> int:
        """Change one member, in force at the leader on return; return the index of the entry.

        Raises:
            NotRaftLeaderError: Another peer leads, or no leader is known.
            ConfigChangeRefusedError: The change is not allowed now, or invalid.
        """
        if self.leading is None:
            raise NotRaftLeaderError(self.leader)
        index = self.leading.propose_config(change, self._timers.now)
        self._after_commit()
        return index

    def transfer(self, peer: Peer, now: int) -> None:
        """Hand leadership to `peer`; the attempt ends after an election timeout (Diss. 3.10).

        Raises:
            NotRaftLeaderError: Another peer leads, or no leader is known.
            TransferRefusedError: That peer cannot lead.
        """
        self._pass_time(now)
        if self.leading is None:
            raise NotRaftLeaderError(self.leader)
        self.leading.transfer(peer, now)

    def read(self, token: int, now: int) -> None:
        """Begin a linearizable read; `Ready.reads` or `Ready.reads_failed` names the token.

        Raises:
            NotRaftLeaderError: No leader is known.
            RaftBusyError: Too many reads wait.
        """
        self._pass_time(now)
        if self.leading is not None:
            self.leading.read(token)
            return
        if self.leader is None:
            raise NotRaftLeaderError(None)
        self._reads.check_room()
        context = self._reads.ask(token, now + self._options.election_ns)
        self._outbox.send(ReadIndex(self.me, self.leader, self.term, context))

    def abandon(self, leader: Peer, delay: int, now: int) -> None:
        """Elect another leader, as the process of this one has ended; no-op for any other peer.

        Args:
            leader: The peer whose process has ended.
            delay: Time until this peer starts an election itself; differs among the voters.
            now: Time now.
        """
        self._pass_time(now)
        if self.leading is None and self.leader == leader:  # guard R.abandon
            self._timers.forget_leader(delay)

    def excuse(self, now: int) -> None:
        """Start the timers that judge silence anew, as this peer could hear nobody until now."""
        self._timers.pass_to(now)
        if self.leading is not None:
            self.leading.excuse(now)
        elif self.log.membership.latest.voters != (self.me,):
            self._timers.restart_election()  # guard R.excused_election

    def step(self, message: Message, now: int) -> None:
        """Handle a message of another peer."""
        self._pass_time(now)
        if message.target != self.me or message.sender == self.me:  # guard R.identity
            drop: Drop | None = Drop.WRONG_TARGET
        elif not 0 < message.term <= TERM_MAX:
            drop = Drop.BAD_TERM
        elif message.term > self.term + TERM_LEAP_MAX:  # guard R.leap
            drop = Drop.TERM_LEAP
        else:
            drop = self._HANDLERS[type(message)](self, message)
        if drop is not None:
            self.dropped[drop] += 1

    def tick(self, now: int) -> None:
        """Process timeouts; to be called at `next_deadline`, harmless at any other time.

        A leader steps down if no quorum answers, else it sends heartbeats.
        """
        self._pass_time(now)
        self._reads.expire(now)
        if self.leading is not None:
            if now < self._timers.heartbeat_due:
                return
            if not self.leading.may_stay(now):  # guard R.check_quorum
                self._become_follower(self.term, None)
                return
            self.leading.beat(now)
            self._timers.restart_heartbeat()
        elif now >= self._timers.election_deadline:
            self._on_election_timeout()

    def next_deadline(self) -> int | None:
        """Return the latest time of the next `tick`, `None` while no timeout is set."""
        if self.leading is not None:
            return self._timers.heartbeat_due if self.leading.progress else None
        deadline = self._timers.follower_deadline()
        expiry = self._reads.next_deadline()
        return deadline if expiry is None else min(deadline, expiry)

    def ready(self) -> Ready | None:
        """Return the pending work; to be called after every call, until it returns `None`.

        While an earlier `Ready` is not persisted, this one has nothing to persist: work that needs
        a sync waits, all other work continues.
        """
        log, leading = self.log, self.leading
        if leading is not None:
            leading.send_appends(self._timers.now)
        is_writing = self._in_flight is not None
        is_write_due = not is_writing and (log.has_unwritten() or not self._ballot.is_durable)
        if not (
            is_write_due
            or log.has_committed()
            or self._outbox.has_any(is_writing=is_writing)
            or self._reads.has_any(log.applicable)
            or self._is_leader_news()
        ):
            return None
        hard_state: HardState | None = None
        snapshot: Snapshot | None = None
        entries: tuple[Entry, ...] = ()
        if is_write_due:
            snapshot, entries = log.take_unwritten()
            hard_state = HardState(self._ballot.term, self._ballot.vote, log.commit)
        before, after = self._outbox.take(must_persist=is_write_due, is_writing=is_writing)
        committed = log.take_committed(self._options.committed_bytes_max)
        reads, failed = self._reads.take(log.applicable)
        news = None
        if self._is_leader_news():
            news = self._reported_leader = LeaderChange(self.leader, self.term)
        ready = Ready(hard_state, entries, snapshot, before, after, committed, reads, failed, news)
        if is_write_due:
            self._in_flight = ready
        return ready

    def _is_leader_news(self) -> bool:
        reported = self._reported_leader
        if self.leader is None:
            return reported.leader is not None
        return reported.leader != self.leader or reported.term != self.term

    def persisted(self, ready: Ready) -> None:
        """Note that hard state, entries and snapshot of `ready` are durable in `storage`."""
        assert ready is self._in_flight
        assert ready.hard_state is not None
        self._in_flight = None
        self.log.on_persisted(ready.snapshot)
        self._ballot.on_persisted(ready.hard_state)
        if self.leading is not None:
            if self.leading.recount():
                self._after_commit()
        elif self.role is Role.CANDIDATE:
            self._ballot.votes[self.me] = True
            self._count_votes()

    # --- Time -----------------------------------------------------------------------------------

    def _pass_time(self, now: int) -> None:
        """Note the time; after a stall, restart timers instead of acting on them."""
        if self._timers.pass_to(now):
            self.excuse(now)

    # --- Roles ----------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader: Peer | None) -> None:
        """Follow `leader`, or no leader yet, in `term`."""
        self._ballot.raise_to(term)
        if self.leading is not None:
            self.leading.fail_reads()
            self.leading = None
        if leader != self.leader:
            self._reads.fail_asked()
        self.role = Role.FOLLOWER
        self.leader = leader
        self._ballot.votes.clear()
        self._timers.restart_election()

    def _on_election_timeout(self) -> None:
        """Start a pre-vote: ask whether this peer could win an election (Diss. 9.6)."""
        self._become_follower(self.term, None)
        log = self.log
        if log.pending_snapshot is not None or not log.membership.may_lead(self.me, log.commit):
            return
        self.role = Role.PRE_CANDIDATE
        self._ballot.votes[self.me] = True
        last_index, last_term = log.last_index, log.last_term
        for voter in log.membership.latest.voters:
            if voter != self.me:
                self._outbox.send(PreVote(self.me, voter, self.term + 1, last_index, last_term))
        self._count_votes()

    def _campaign(self, *, is_transfer: bool) -> None:
        """Begin a term and ask for votes (Raft 5.2); its own vote counts once durable."""
        self._become_follower(self.term + 1, None)
        self.role = Role.CANDIDATE
        self._ballot.cast(self.me)
        log = self.log
        last_index, last_term = log.last_index, log.last_term
        for voter in log.membership.latest.voters:
            if voter != self.me:
                request = Vote(self.me, voter, self.term, last_index, last_term, is_transfer)
                self._outbox.send(request, is_durable=False)  # guard R.request_durable

    def _count_votes(self) -> None:
        """Proceed if a majority of the voters in force agrees; give up if a majority refuses."""
        result = self._ballot.result(self.log)
        if result is None:
            return
        if not result:
            self._become_follower(self.term, None)
        elif self.role is Role.PRE_CANDIDATE:
            self._campaign(is_transfer=False)
        elif self._ballot.is_durable:  # guard R.own_vote_durable
            # Earlier, a crash could let this peer vote again.
            self._become_leader()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self._ballot.votes.clear()
        self.leading = Leader(
            self.me,
            self.term,
            self.log,
            self._storage,
            self._outbox,
            self._reads,
            self._options,
            self._timers.now,
        )
        self._timers.restart_heartbeat()

    def _after_commit(self) -> None:
        """Step down as leader once its own removal is committed (Diss. 4.2.2)."""
        leading = self.leading
        if leading is not None and leading.is_removed:  # guard R.removed_leader
            leading.say_goodbye(self._timers.now)
            self._become_follower(self.term, None)

    # --- Elections ------------------------------------------------------------------------------

    def _is_in_lease(self) -> bool:
        """Return whether this peer knows a live leader, and therefore refuses other candidates."""
        if self.leading is not None:
            return True  # it steps down if no quorum answers
        return self.leader is not None and self._timers.is_leader_fresh()

    def _on_pre_vote(self, message: PreVote) -> Drop | None:
        # A learner votes: it may have been promoted by an entry that it does not know yet.
        if not self._is_known(self.me):
            return Drop.NOT_A_MEMBER
        if self._is_in_lease():  # guard R.prevote_lease
            return Drop.IN_LEASE
        is_granted = message.term > self.term and self.log.is_up_to_date(  # guard R.prevote_log
            message.last_index, message.last_term
        )
        # A grant promises nothing; a refusal carries a term, which must be durable.
        term = message.term if is_granted else self.term
        self._outbox.send(
            PreVoteReply(self.me, message.sender, max(term, 1), is_granted),
            is_durable=is_granted or self._ballot.is_term_durable,
        )
        return None

    def _on_vote(self, message: Vote) -> Drop | None:
        if not self._is_known(self.me):  # guard R.removed_vote
            return Drop.NOT_A_MEMBER
        if not message.is_transfer and self._is_in_lease():  # guard R.vote_lease
            return Drop.IN_LEASE
        if message.term > self.term:
            self._become_follower(message.term, None)
        vote = self._ballot.vote
        is_open = vote == message.sender or (vote is None and self.leader is None)  # guard R.vote
        is_granted = (
            message.term == self.term
            and is_open
            and self.log.is_up_to_date(message.last_index, message.last_term)  # guard R.vote_log
        )
        if is_granted:
            self._ballot.cast(message.sender)
            self._timers.restart_election()
            is_durable = self._ballot.is_durable  # guard R.vote_durable
        else:
            is_durable = self._ballot.is_term_durable
        reply = VoteReply(self.me, message.sender, self.term, is_granted)
        self._outbox.send(reply, is_durable=is_durable)
        if self.role is Role.CANDIDATE and message.term == self.term:
            # The two may have split the votes. One tries again soon: with the longer log, or else
            # the earlier name.
            mine = (self.log.last_term, self.log.last_index)
            rival = (message.last_term, message.last_index)
            is_earlier = self.me < message.sender
            if mine > rival or (mine == rival and is_earlier):  # guard R.rival
                self._timers.hasten_election(RETRY_NS)
        return None

    def _on_pre_vote_reply(self, message: PreVoteReply) -> Drop | None:
        if not self._is_known(message.sender):
            return Drop.NOT_A_MEMBER
        if not message.is_granted and message.term > self.term:
            self._become_follower(message.term, None)
            return None
        is_asked = not message.is_granted or message.term == self.term + 1
        if self.role is not Role.PRE_CANDIDATE or not is_asked:
            return Drop.STALE_TERM
        self._ballot.votes.setdefault(message.sender, message.is_granted)
        self._count_votes()
        return None

    def _on_vote_reply(self, message: VoteReply) -> Drop | None:
        drop = self._check_reply_term(message)
        if drop is not None:
            return drop
        if self.role is not Role.CANDIDATE:
            return Drop.REPEATED
        self._ballot.votes.setdefault(message.sender, message.is_granted)
        self._count_votes()
        return None

    def _on_timeout_now(self, message: TimeoutNow) -> Drop | None:
        """Start an election at once, without pre-vote, as the leader asked (Diss. 3.10)."""
        if message.term != self.term or message.sender != self.leader:  # guard R.transfer_asked
            return Drop.STALE_TERM if message.term < self.term else Drop.SECOND_LEADER
        log = self.log
        if log.pending_snapshot is not None or self.me not in log.membership.latest.voters:
            return Drop.NOT_A_MEMBER
        self._campaign(is_transfer=True)
        return None

    # --- From a leader --------------------------------------------------------------------------

    def _on_from_leader(self, message: FromLeader) -> Drop | None:
        """Follow the leader of the newest term; notify a leader of an older term."""
        if message.term < self.term:
            # Elections refused in a lease never raise its term, so this peer must announce its own:
            # otherwise the two peers would ignore each other for ever (etcd/raft, `checkQuorum`).
            self._outbox.send(  # guard R.tell_newer
                AppendReply(self.me, message.sender, self.term, is_success=False, log_index=0),
                is_durable=self._ballot.is_term_durable,
            )
            return Drop.STALE_TERM
        if message.term == self.term and self.leader not in (None, message.sender):
            return Drop.SECOND_LEADER  # guard R.second_leader
        if message.term > self.term or self.leader is None:
            self._become_follower(message.term, message.sender)
        self._timers.on_leader_heard()
        is_durable = self._ballot.is_term_durable
        if isinstance(message, Append):
            return self._follower.on_append(message, is_term_durable=is_durable)
        if isinstance(message, Heartbeat):
            return self._follower.on_heartbeat(message, is_term_durable=is_durable)
        return self._follower.on_chunk(message, is_term_durable=is_durable)

    def _on_read_index_reply(self, message: ReadIndexReply) -> Drop | None:
        if message.term != self.term or message.sender != self.leader:
            return Drop.STALE_TERM
        is_asked = self._reads.on_answer(message.context, message.read_index)
        return None if is_asked else Drop.REPEATED

    # --- To a leader ----------------------------------------------------------------------------

    def _is_known(self, peer: Peer) -> bool:
        """Return whether votes and answers of `peer` count: others cannot even raise the term."""
        return self.log.membership.is_member(peer, self.log.commit)

    def _check_reply_term(self, message: VoteReply | ToLeader) -> Drop | None:
        """Drop answers of non-members and of older terms; a newer term ends this peer's role."""
        if not self._is_known(message.sender):
            is_departing = self.leading is not None and message.sender in self.leading.progress
            if not is_departing or message.term > self.term:  # guard R.stranger
                return Drop.NOT_A_MEMBER
        if message.term > self.term:
            self._become_follower(message.term, None)  # guard R.newer_term
            return Drop.NOT_LEADER
        return Drop.STALE_TERM if message.term < self.term else None  # guard R.stale_term

    def _on_to_leader(self, message: ToLeader) -> Drop | None:
        drop = self._check_reply_term(message)
        leading = self.leading
        if drop is not None:
            return drop
        if leading is None:
            return Drop.NOT_LEADER
        if message.sender not in leading.progress:
            return Drop.NOT_A_MEMBER
        if isinstance(message, AppendReply):
            drop = leading.on_append_reply(message, self._timers.now)
        elif isinstance(message, HeartbeatReply):
            drop = leading.on_heartbeat_reply(message, self._timers.now)
        else:
            drop = leading.on_chunk_reply(message, self._timers.now)
        self._after_commit()
        return drop

    def _on_read_index(self, message: ReadIndex) -> Drop | None:
        leading = self.leading
        if leading is None or message.term != self.term:
            return Drop.NOT_LEADER
        if message.sender not in leading.progress:
            return Drop.NOT_A_MEMBER
        return leading.on_read_index(message)

    _HANDLERS: ClassVar[dict[type[Message], Callable[..., Drop | None]]] = {
        PreVote: _on_pre_vote,
        PreVoteReply: _on_pre_vote_reply,
        Vote: _on_vote,
        VoteReply: _on_vote_reply,
        Append: _on_from_leader,
        AppendReply: _on_to_leader,
        Heartbeat: _on_from_leader,
        HeartbeatReply: _on_to_leader,
        InstallChunk: _on_from_leader,
        InstallChunkReply: _on_to_leader,
        TimeoutNow: _on_timeout_now,
        ReadIndex: _on_read_index,
        ReadIndexReply: _on_read_index_reply,
    }
