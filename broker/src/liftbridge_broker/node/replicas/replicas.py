"""Data plane of one broker: its roles for replicated partitions, and the fetch sessions.

Roles follow the applied metadata only. All partitions that another broker leads share one session
with it, and all partitions that another broker follows here share one with that follower; both are
processed once a turn, after its events (L1 to L8, F1 to F5).
"""

from typing import Final

from liftbridge_broker.controller.commands import Leadership, Resign
from liftbridge_broker.controller.state import StreamState, effective_min_isr, is_commit_mode
from liftbridge_broker.errors import WireError
from liftbridge_broker.model.fetching import FetchBody, FetchReplyBody
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    BrokerId,
    Instant,
    Offset,
    PartitionId,
    earliest,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MICROSECOND_NS, MILLISECOND_NS
from liftbridge_broker.node.partition.listening import Listening
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.refusals import leader_changed
from liftbridge_broker.node.replicas.following import Following
from liftbridge_broker.node.replicas.leading import Leading
from liftbridge_broker.node.replicas.role_context import LOOK_NS, ReplicationLimits, RoleContext
from liftbridge_broker.node.replicas.verifying import LogVerifications
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.fetch_sessions import (
    EVERY_FETCH,
    Answer,
    FollowerSession,
    LeaderSession,
    connection_lost,
)
from liftbridge_broker.replication.follower import FollowerCore
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_broker.storage.flush import effective_policy
from liftbridge_broker.wire.peer.bodies import Silence
from liftbridge_broker.wire.peer.fetch import records_of
from liftbridge_broker.wire.peer.messages import PeerHeader

WATCHES: Final = 4
"""Wake-ups within a reportable silence, so that a stalled loop shows as a gap."""

MOVE_NS: Final = 200 * MICROSECOND_NS
"""Silence that a leader is allowed more for each partition that it leads: about what the election
of another one costs. A pause that is shorter than the move of all of them is better waited for."""

CHECKS_MAX: Final = 256
"""Partitions that one turn checks; the next turn goes on."""

RESIGN_NS: Final = 10_000 * MILLISECOND_NS
"""Time between two attempts to transfer leaderships because of a full disk."""

NUMBER_MAX: Final = 1 << 62


class Replicas:
    """Roles of this broker for all replicated partitions, and its fetch sessions.

    Attributes:
        roles: State that the roles share.
        leading: Partitions that this broker leads.
        following: Partitions that another broker leads.
    """

    def __init__(
        self,
        roles: RoleContext,
        listening: Listening,
        link: PeerLink,
        rng: Rng,
        limits: ReplicationLimits,
    ) -> None:
        """Begin without roles."""
        self.roles = roles
        self._context = roles.context
        self._store = roles.context.store
        self._store.set_compaction_listener(self.on_compacted)
        self._listening = listening
        self._link = link
        self._rng = rng
        self._limits = limits
        self.leading: dict[PartitionId, Leading] = {}
        self.following: dict[PartitionId, Following] = {}
        self._ran_at = Instant(0)
        self._resign_at = Instant(0)
        self._look_again: dict[BrokerId, Instant] = {}
        self._verifications = LogVerifications(roles.context)

    def _verify(self, following: Following) -> None:
        """Verify a log after a read error."""
        self._verifications.add(following, self._context.now)
        self.roles.wake()

    # -- roles --------------------------------------------------------------------------------

    def on_brokers(self) -> None:
        """Handle a change of registrations or fences."""
        brokers = self._context.state.brokers
        self.roles.eligible = frozenset(
            broker.broker for broker in brokers.values() if broker.can_lead
        )
        for leader, session in self.roles.fetching.items():
            session.set_leader_broker_epoch(brokers[leader].broker_epoch)
        for leading in self.leading.values():
            if len(leading.core.state.isr) < len(leading.core.state.replicas):
                leading.on_eligible()
                self.roles.watch(leading.partition_id)
        self.roles.wake(*self.roles.fetching.values())

    def forget_positions(self) -> None:
        """Drop follower positions: the metadata skipped changes, so they prove nothing later (S73).

        Another broker may have led in between, and members of the in-sync set truncated for it.
        """
        for leading in self.leading.values():
            leading.has_gap = True

    def takes(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> bool:
        """Assign the role of a partition; return false if this broker has its only replica."""
        if not self._context.is_caught_up:
            return True
        is_alone = state.replicas == (self._context.broker,)
        if is_alone and not (state.is_recovering and state.leader == self._context.broker):
            if partition.replication is not None:
                self.drop(partition, now)
                partition.log.compacted_everywhere = Offset(OFFSET_MAX)
                policy = effective_policy(partition.options.fsync_policy)
                self._store.set_policy(partition.partition_id, policy, now)
                self._store.set_leader(partition.partition_id, is_leader=True)
            return False
        self.on_state(partition, stream, state, now)
        return True

    def on_state(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        """Take the role that the metadata assign for a partition (L1, L7, F1); idempotent."""
        if state.leader == self._context.broker:
            self._lead(partition, stream, state, now)
        elif state.leader is None:
            self.drop(partition, now)
            partition.follow(None)
            if not partition.offline_reason:
                self._store.set_leader(partition.partition_id, is_leader=False)
        else:
            self._follow(partition, stream, state, state.leader, now)

    def drop(self, partition: Partition, now: Instant) -> None:
        """Stop leading or following a partition."""
        partition_id = partition.partition_id
        leading = self.leading.pop(partition_id, None)
        if leading is not None:
            leading.close()
            self.roles.watched.pop(partition_id, None)
            self._listening.stop(partition)
            self._announce_leadership(partition_id, now)
        following = self.following.pop(partition_id, None)
        if following is not None:
            following.is_current = False
            self.roles.refused.pop(partition_id, None)
            self._leave(following)

    def _leave(self, following: Following) -> None:
        session = self.roles.fetching[following.leader]
        session.drop(following.partition_id)
        self.roles.wake(session)

    def on_compacted(self, partition_id: PartitionId) -> None:
        """Announce a compaction to other replicas, which then drop tombstones."""
        leading, following = self.leading.get(partition_id), self.following.get(partition_id)
        if leading is not None:
            leading.on_compacted()
        elif following is not None and not following.is_held:
            following.put_position()

    def _announce_leadership(self, partition_id: PartitionId, now: Instant) -> None:
        for session in self.roles.serving.values():
            session.on_leadership(partition_id, now)
        self.roles.wake(*self.roles.serving.values())

    def _lead(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        partition_id = state.partition_id
        min_isr, is_commit = effective_min_isr(stream, state), is_commit_mode(stream, state)
        leading = self.leading.get(partition_id)
        if leading is not None and leading.core.leader_epoch == state.leader_epoch:
            leading.core.on_state(state, min_isr=min_isr, is_commit_mode=is_commit, now=now)
            leading.is_commit_mode = is_commit
            self.roles.set_policy(partition, is_commit=is_commit, now=now)
            self._serve(leading, now)
            leading.on_state()
            return
        if leading is None:
            self.drop(partition, now)
        else:
            leading.close()
            self.roles.watched.pop(partition_id, None)
        log = partition.log
        core = LeaderCore(
            self._context.broker,
            log,
            state,
            min_isr=min_isr,
            is_commit_mode=is_commit,
            limits=self._limits.leader,
            now=now,
            kept=None if leading is None or leading.has_gap else leading.core,  # guard L7.gap
        )
        log.compacted_everywhere = core.compacted_everywhere
        leading = self.leading[partition_id] = Leading(self.roles, partition, core)
        leading.is_commit_mode = is_commit
        if partition.offline_reason:
            partition.rise(leading)
            leading.on_offline(partition.offline_reason)
            return
        if state.is_recovering:
            leading.report_loss()
            self._store.notes.lower_dropped(partition_id, log.log_end_offset, now)
        self.roles.set_policy(partition, is_commit=is_commit, now=now)
        self._store.set_leader(partition_id, is_leader=True, on_trimmed=leading.on_trimmed)
        partition.rise(leading)
        log.epochs.assign(state.leader_epoch, log.log_end_offset)
        self._store.journal_state(  # guard L1.journal
            partition_id, lambda: self._established(leading), now
        )

    def _established(self, leading: Leading) -> None:
        """Serve, now that the epoch and its start are durable (L1)."""
        if not leading.is_current:
            return  # another broker leads by now
        if leading.partition.offline_reason:
            return
        leading.core.on_established()
        self._serve(leading, self._context.now)
        leading.on_state()
        self._announce_leadership(leading.partition_id, self._context.now)

    def _serve(self, leading: Leading, now: Instant) -> None:
        """Start to accept records, if the partition is ready and has not started yet."""
        partition = leading.partition
        if leading.core.is_serving and partition.replication is not leading:
            partition.rise(leading)
        if leading.core.is_serving and partition.role is not Role.LEADER:
            partition.lead(leading, leading.core.leader_epoch, now, self._context.wall_ns)
            self._announce_leadership(leading.partition_id, now)
        if partition.role is Role.LEADER and not self.roles.is_self_fenced(now):
            self._listening.start(partition)

    def _follow(
        self,
        partition: Partition,
        stream: StreamState,
        state: PartitionState,
        leader: BrokerId,
        now: Instant,
    ) -> None:
        partition_id = state.partition_id
        is_commit = is_commit_mode(stream, state)
        following = self.following.get(partition_id)
        if following is None:
            self.drop(partition, now)
            core = FollowerCore(
                self._context.broker,
                partition.log,
                state,
                is_commit_mode=is_commit,
                limits=self._limits.follower,
                rng=self._rng,
                now=now,
            )
            partition.log.compacted_everywhere = Offset(
                0
            )  # until a leader of this epoch reports it
            following = self.following[partition_id] = Following(
                self.roles, partition, core, leader, self._verify
            )
        else:
            following.core.on_state(state, is_commit_mode=is_commit, now=now)
            if following.leader != leader:
                self._leave(following)
                following.leader = leader
        following.is_commit_mode = is_commit
        self._listening.stop(partition)
        partition.follow(following)
        self._session_with(leader, now)
        if partition.offline_reason:
            following.on_offline(partition.offline_reason)
            return
        following.begin()
        if not following.is_held:
            following.put_position()

    def _session_with(self, leader: BrokerId, now: Instant) -> FollowerSession:
        session = self.roles.fetching.get(leader)
        if session is None:
            session = self.roles.fetching[leader] = FollowerSession(
                leader,
                leader_broker_epoch=self._context.state.brokers[leader].broker_epoch,
                first_correlation_id=self._rng.randrange(NUMBER_MAX),
                limits=self._limits.session,
                now=now,
            )
        elif not session.partition_count:
            session.heard_at = max(session.heard_at, now)  # no fetch was sent meanwhile
        return session

    # -- messages -----------------------------------------------------------------------------

    def on_peer(self, header: PeerHeader, tail: bytes, now: Instant) -> bool:
        """Handle a message; return whether it belongs to the data plane."""
        match header.body:
            case FetchBody():
                self._on_fetch(header, header.body, now)
            case FetchReplyBody():
                self._on_fetch_reply(header, header.body, tail, now)
            case _:
                return False
        return True

    def _on_fetch(self, header: PeerHeader, body: FetchBody, now: Instant) -> None:
        follower = header.sender
        session = self.roles.serving.get(follower)
        if session is None:
            if follower not in self._context.state.brokers:
                return
            session = self.roles.serving[follower] = LeaderSession(
                follower,
                self.leading.get,
                first_session_id=1 + self._rng.randrange(NUMBER_MAX),
                limits=self._limits.leader_session,
            )
        answers = session.on_request(
            header.correlation_id,
            body,
            own_broker_epoch=self.roles.broker_epoch,
            follower_broker_epoch=header.broker_epoch,
            now=now,
        )
        for answer in answers:
            self._send_answer(follower, answer)
        self.roles.wake(session)

    def _send_answer(self, follower: BrokerId, answer: Answer) -> None:
        tail = b"".join(answer.pieces)
        self._link.send(
            follower, Channel.DATA, answer.body, tail, correlation_id=answer.correlation_id
        )

    def _on_fetch_reply(
        self, header: PeerHeader, body: FetchReplyBody, tail: bytes, now: Instant
    ) -> None:
        session = self.roles.fetching.get(header.sender)
        if session is None:
            return
        try:
            pieces = records_of(body, tail)
        except WireError:
            return  # like a lost answer: the session asks again
        if session.on_reply(header.correlation_id, body, now):
            for head, data in zip(body.partitions, pieces, strict=True):
                following = self.following.get(head.partition)
                if following is not None and following.leader == header.sender:
                    following.on_reply(head, data, now)
                    if not (following.is_refused or following.is_held):
                        self.roles.refused.pop(head.partition, None)
        self.roles.wake(session)

    # -- time ---------------------------------------------------------------------------------

    def flush(self, now: Instant) -> None:
        """Send messages that became due in this turn."""
        for session in self.roles.take_due():
            if isinstance(session, LeaderSession):
                answer = session.take_answer(now)
                if answer is not None:
                    self._send_answer(session.follower, answer)
            elif (request := session.next_request(now)) is not None:
                to, number = session.leader, request.correlation_id
                self._link.send(to, Channel.DATA, request.body, correlation_id=number)

    def on_timer(self, now: Instant) -> list[Silence]:
        """Run work that is due; return the silent leaders to report."""
        silences: list[Silence] = []
        gap, self._ran_at = now - self._ran_at, now
        if gap > self._limits.follower.silence_ns // 2:  # guard F4.stall
            self._restart_silence(now)  # this loop was stalled and may have missed messages (S78)
        self._resign_if_full(now)
        self._verifications.on_timer(now)
        if self.leading and self._store.slowness.take_hand_over(now):
            self._resign("storage slow", now)
        if self.roles.look_at is not None and now >= self.roles.look_at:
            self.roles.look_at = None
            self._propose(now)
        for partition_id in self.roles.catch_up.take_released(now):
            self.roles.notify(partition_id)
        for leader, session in self.roles.fetching.items():
            silences += self._silences(leader, session, now)
        self.roles.wake(*self.roles.fetching.values(), *self.roles.serving.values())
        self.flush(now)
        return silences

    def _resign_if_full(self, now: Instant) -> None:
        """Resign leaderships that other replicas can take, when the disk is full (L8)."""
        if not self._store.disk.is_full or now < self._resign_at:  # guard L8.resign
            return
        self._resign_at = Instant(now + RESIGN_NS)
        self._resign("storage full", now)

    def _resign(self, reason: str, now: Instant) -> None:
        given_up = tuple(
            Leadership(partition_id, leading.core.leader_epoch)
            for partition_id, leading in self.leading.items()
            if len(leading.core.state.isr) > 1
        )
        if given_up:
            command = Resign(
                broker=self._context.broker,
                broker_epoch=self.roles.broker_epoch,
                partitions=given_up,
                reason=reason,
            )
            self._context.propose(command, now, _ignore)

    def _propose(self, now: Instant) -> None:
        """Check the partitions whose in-sync set may have to change."""
        roles = self.roles
        for following in [self.following[partition_id] for partition_id in roles.refused]:
            following.repair()
        due = [one for one, moment in roles.watched.items() if moment <= now]
        due.sort(key=lambda one: one not in roles.window)  # first those without an answer in time
        for partition_id in due[:CHECKS_MAX]:
            if not roles.window.admits(partition_id):  # guard L5.window
                break
            self._check(partition_id, now)
        else:
            if len(due) > CHECKS_MAX:
                roles.look_at = now
        if roles.look_at is None and (roles.watched or roles.refused):
            roles.look_at = Instant(now + LOOK_NS)

    def _check(self, partition_id: PartitionId, now: Instant) -> None:
        watched = self.roles.watched
        if watched.pop(partition_id, None) is None:
            return  # a proposal before it ended its role
        leading = self.leading[partition_id]
        due = leading.next_deadline()
        if due is None or due <= now:
            leading.propose_if_due(now)
            due = leading.next_deadline()
        if due is not None and leading.is_current:
            watched[partition_id] = due

    def _silences(self, leader: BrokerId, session: FollowerSession, now: Instant) -> list[Silence]:
        """Return reports about partitions whose leader is silent (F4)."""
        if not session.partition_count:
            return []
        heard_at = _allowed_until(session)
        if now - heard_at >= self._limits.follower.silence_ns:
            if now < self._look_again.get(leader, now):
                return []
            self._look_again[leader] = Instant(now + max(LOOK_NS, _moved_ns(session)))
            looked_at = [one for one in self.following.values() if one.leader == leader]
        else:
            refused = (self.following[partition_id] for partition_id in self.roles.refused)
            looked_at = [one for one in refused if one.leader == leader]
        silences = (following.silence(heard_at, now) for following in looked_at)
        return [silence for silence in silences if silence is not None]

    def _restart_silence(self, now: Instant) -> None:
        for following in self.following.values():
            following.core.restart_silence(now)

    def excuse(self, now: Instant) -> None:
        """Restart silence and lag of others, as this broker could hear nobody until now."""
        self._restart_silence(now)  # guard F4.excused
        for leading in self.leading.values():
            leading.core.restart_lag(now)  # guard L5.excused

    def on_connected(self) -> None:
        """Begin all fetch sessions anew, as fetches and answers may be lost with a connection."""
        for fetching in self.roles.fetching.values():
            fetching.reset()  # guard Session.reconnected
        for follower in self.roles.serving:
            self._link.send(follower, Channel.DATA, connection_lost(), correlation_id=EVERY_FETCH)
        self.roles.wake(*self.roles.fetching.values())

    def repeat_reports(self) -> None:
        """Repeat reports to a new metadata leader, which knows none."""
        self._look_again.clear()
        for following in self.following.values():
            following.core.repeat_report()

    def fence(self, now: Instant, *, is_fenced: bool) -> None:
        """Stop NATS intake after this broker fenced itself, or resume it after an answer."""
        for leading in self.leading.values():
            if is_fenced:
                self._listening.stop(leading.partition)  # guard Self.intake
                leading.partition.readers.end(leader_changed(), stays=True)
            else:
                self._serve(leading, now)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        due = [
            self.roles.look_at,
            self.roles.catch_up.next_deadline(),
            self._verifications.next_deadline(),
        ]
        if self.following:
            due.append(Instant(self._ran_at + self._limits.follower.silence_ns // WATCHES))
        if self.roles.is_due:
            due.append(self._context.now)
        for fetching in self.roles.fetching.values():
            due.append(fetching.next_deadline())
            if fetching.partition_count:
                due.append(self._next_suspicion(fetching))
        due += [serving.next_deadline() for serving in self.roles.serving.values()]
        return earliest(*due)

    def _next_suspicion(self, session: FollowerSession) -> Instant:
        """Return the time of the next check of a silent leader, repeated during the silence."""
        first = Instant(_allowed_until(session) + self._limits.follower.silence_ns)
        return max(first, self._look_again.get(session.leader, first))


def _allowed_until(session: FollowerSession) -> Instant:
    """Return the time from which a leader's silence counts."""
    return Instant(session.heard_at + _moved_ns(session))


def _moved_ns(session: FollowerSession) -> int:
    """Return about how long it takes to elect other leaders for all partitions of a leader."""
    return MOVE_NS * session.partition_count


def _ignore(_outcome: object) -> None:
    """Ignore the outcome: the metadata show it."""
