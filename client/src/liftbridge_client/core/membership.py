"""Membership of one process in an incremental consumer group, without I/O.

Heartbeats report what the member still reads; the answers name what it may read. The difference is
what it begins to read, and what it is to let go of. Between two answers the member may read only
until its own session must have ended at the coordinator: the session counts here from the moment
the last answered heartbeat was sent, which is before the coordinator received it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from liftbridge_client.admin_model import PartitionName
from liftbridge_proto.ext.v1 import groups_pb2


@dataclass(slots=True, eq=False)
class Claim:
    """One time that a member may read a partition; a later time is another claim.

    Attributes:
        partition: The partition.
        stream_id: Id of the stream that the offsets belong to; 0 until it is known.
        begun_at: Offset at which reading began; `None` until it is known.
        next_offset: First offset not handed to the application; `None` until it is known where the
            group continues.
        finished: Offset of the last message that the application has finished; `None` for none.
        committed: Offset last stored under this claim; `None` for none.
        is_ending: Whether the member is to let go of it.
        is_over: Whether the member no longer has it.
    """

    partition: PartitionName
    stream_id: int = 0
    begun_at: int | None = None
    next_offset: int | None = None
    finished: int | None = None
    committed: int | None = None
    is_ending: bool = False
    is_over: bool = False

    @property
    def is_dirty(self) -> bool:
        """Return whether its position is not stored yet."""
        return self.finished is not None and self.finished != self.committed

    @property
    def has_finished(self) -> bool:
        """Return whether the application has finished any message of it."""
        finished, begun_at = self.finished, self.begun_at
        return finished is not None and begun_at is not None and finished >= begun_at


class Change(NamedTuple):
    """What an answer changes.

    Attributes:
        given: Claims to begin with.
        revoked: Claims to let go of.
    """

    given: Sequence[Claim]
    revoked: Sequence[Claim]


class Membership:
    """Epochs, session and claims of a member.

    A claim is reported as held until `let_go`, and no other member gets the partition before. Times
    are in seconds of one monotonic clock.

    Attributes:
        group: Name of the group.
        name: Name of the member.
        member_epoch: Membership; 0 while the member has to join.
        coordinator: Broker that takes the heartbeats; empty when unknown.
        pending_count: Further partitions for it, which others have not let go of yet.
        interval_seconds: Time between two heartbeats.
        session_seconds: Silence after which the coordinator removes it.
        valid_until: Time until which it may read.
    """

    def __init__(
        self, group: str, name: str, streams: Sequence[str], *, instance_id: str, zone: str
    ) -> None:
        """Describe a member that has not joined yet."""
        self.group = group
        self.name = name
        self.instance_id = instance_id
        self.member_epoch = 0
        self.coordinator = ""
        self.pending_count = 0
        self.interval_seconds = self.session_seconds = 0.0
        self.valid_until = -inf
        self._streams = tuple(streams)
        self._zone = zone
        self._group_epoch = 0
        self._claims: dict[PartitionName, Claim] = {}

    @property
    def claims(self) -> Sequence[Claim]:
        """Everything that it has, also what it is to let go of, in the order of the names."""
        return [self._claims[name] for name in sorted(self._claims)]

    def request(self) -> groups_pb2.HeartbeatRequest:
        """Build the next heartbeat: one that joins, or one that reports."""
        request = groups_pb2.HeartbeatRequest(
            group_id=self.group, member_id=self.name, member_epoch=self.member_epoch
        )
        if not self.member_epoch:
            request.streams.extend(self._streams)
            request.instance_id, request.zone = self.instance_id, self._zone
            return request
        request.group_epoch = self._group_epoch
        held: dict[str, list[int]] = {}
        for claim in self.claims:
            held.setdefault(claim.partition.stream, []).append(claim.partition.partition)
        for stream, numbers in held.items():
            request.held.add(stream=stream, partitions=numbers)
        return request

    def commit_request(self) -> groups_pb2.CommitPositionsRequest:
        """Build a request that stores positions of the present claims, still without positions."""
        return groups_pb2.CommitPositionsRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.member_epoch,
            group_epoch=self._group_epoch,
        )

    def on_answer(self, answer: groups_pb2.HeartbeatResponse, sent_at: float) -> Change:
        """Take the answer to a heartbeat that was sent at a time; the answers come in order.

        What is assigned while it is being let go of is let go of first: the next answer gives it
        again.
        """
        self.member_epoch = answer.member_epoch
        self._group_epoch = answer.group_epoch
        self.coordinator = answer.coordinator
        self.pending_count = answer.pending_count
        self.interval_seconds = answer.heartbeat_interval_ms / 1_000
        self.session_seconds = answer.session_timeout_ms / 1_000
        self.valid_until = sent_at + self.session_seconds
        assigned = {
            PartitionName(one.stream, number)
            for one in answer.assigned
            for number in one.partitions
        }
        revoked = [
            claim
            for claim in self.claims
            if claim.partition not in assigned and not claim.is_ending
        ]
        for claim in revoked:
            claim.is_ending = True
        given = [Claim(name) for name in sorted(assigned - self._claims.keys())]
        self._claims.update((claim.partition, claim) for claim in given)
        return Change(given, revoked)

    def let_go(self, claims: Iterable[Claim]) -> None:
        """Give claims up; the next heartbeat no longer reports them."""
        for claim in claims:
            claim.is_over = True
            if self._claims.get(claim.partition) is claim:
                del self._claims[claim.partition]

    def fence(self) -> Sequence[Claim]:
        """End all claims, because others may have the partitions; return them.

        The membership may go on: then the next answer gives what is still the member's.
        """
        self.valid_until = -inf
        ended = self.claims
        self.let_go(ended)
        return ended

    def on_unknown(self) -> Sequence[Claim]:
        """End the membership, after the group said that it is over; return the ended claims."""
        self.member_epoch = self._group_epoch = self.pending_count = 0
        return self.fence()
