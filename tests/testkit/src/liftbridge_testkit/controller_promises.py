"""Checks the promises of the controller for each change, from outside (C1 to C13, I17).

The state alone tells whether it is valid; here is what must hold between the states before and
after a command, and over the whole life of a partition.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.controller.commands import (
    AlterPartition,
    CancelReassignment,
    ChangeLeader,
    Command,
    DeclareUnclean,
    ElectPreferred,
    FenceBroker,
    RecoverUnclean,
    RegisterBroker,
    RemoveBroker,
    Resign,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import BrokerState, ClusterState, effective_min_isr
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamId, stream_of
from liftbridge_broker.model.partitions import PartitionState

ASKS_FOR_ANOTHER: Final = (
    CancelReassignment,
    ChangeLeader,
    ElectPreferred,
    RecoverUnclean,
    Resign,
)
"""Commands that may replace a leader that could go on."""


@dataclass(slots=True)
class Promises:
    """Facts remembered about the states so far.

    Attributes:
        brokers: Brokers before the next command.
        partitions: Partitions before it.
        cluster_id: The cluster's name, empty while it has none.
        feature_level: Rules of decision that were in force.
    """

    brokers: dict[BrokerId, BrokerState] = field(default_factory=dict)
    partitions: dict[PartitionId, PartitionState] = field(default_factory=dict)
    cluster_id: str = ""
    feature_level: int = 0
    _sessions: dict[tuple[PartitionId, BrokerId], int] = field(default_factory=dict)
    _origins: dict[PartitionId, frozenset[BrokerId]] = field(default_factory=dict)
    _min_isrs: dict[StreamId, int] = field(default_factory=dict)

    def check(self, state: ClusterState, command: Command) -> list[str]:
        """Return the promises that a command broke; empty for none.

        Args:
            state: State after the command.
            command: The command, applied or refused.
        """
        broken = _broken_brokers(self.brokers, state.brokers, command)
        broken += self._broken_room(state)
        if self.cluster_id not in ("", state.cluster_id):
            broken.append("the name of a cluster stays")
        members = [broker for broker in state.brokers.values() if not broker.removed]
        level = state.feature_level
        if level < self.feature_level or any(member.feature_level < level for member in members):
            broken.append("every broker knows the rules in force, which are never former ones")
        partitions = {one.partition_id: one for _, one in state.partitions()}
        for number, after in partitions.items():
            before = self.partitions.get(number)
            if before is not None and before is not after:
                broken += self._broken_sessions(before, after, state)
                broken += _broken_replicas(before, after, state, command)
                broken += _broken_leader(before, after, state, command)
                broken += self._broken_end(before, after, state, command)
            self._remember(after)
        self.brokers = dict(state.brokers)
        self.partitions = partitions
        self._min_isrs = {one.stream_id: one.min_isr for one in state.streams.values()}
        self.cluster_id, self.feature_level = state.cluster_id, level
        return broken

    def _broken_room(self, state: ClusterState) -> list[str]:
        """A broker never gets more replicas than it told to have room for."""
        before = Counter(one for held in self.partitions.values() for one in held.replicas)
        after = Counter(one for _, held in state.partitions() for one in held.replicas)
        return [
            f"{broker} gets a replica beyond its {state.brokers[broker].replicas_max}"
            for broker, count in after.items()
            if count > before[broker] and 0 < state.brokers[broker].replicas_max < count
        ]

    def _remember(self, partition: PartitionState) -> None:
        number = partition.partition_id
        before = self.partitions.get(number)
        if not partition.is_reassigning:
            self._origins[number] = frozenset(partition.replicas)
        elif before is not None and _is_next_move(before, partition):
            self._origins[number] = frozenset(before.target)
        for broker, epoch in zip(partition.replicas, partition.replica_epochs, strict=True):
            self._sessions[number, broker] = epoch

    def _broken_sessions(
        self, before: PartitionState, after: PartitionState, state: ClusterState
    ) -> list[str]:
        """I17 for sessions of replicas: one that is added, or whose broker restarts, is new."""
        for broker, epoch in zip(after.replicas, after.replica_epochs, strict=True):
            is_new = (
                broker not in before.replicas
                or state.brokers[broker].broker_epoch != self.brokers[broker].broker_epoch
            )
            if is_new and epoch <= self._sessions.get((after.partition_id, broker), 0):
                return [f"a new session of {broker}'s replica"]
        return []

    def _broken_end(
        self, before: PartitionState, after: PartitionState, state: ClusterState, command: Command
    ) -> list[str]:
        """C7 and C8: how a move ends, also one that ended at once or made room for another."""
        origin = self._origins[after.partition_id]
        is_next = _is_next_move(before, after)
        has_ended = before.is_reassigning or before.replicas != after.replicas
        if not has_ended or (after.is_reassigning and not is_next):
            return []
        final = set(before.target if is_next else after.replicas)
        is_unclean = isinstance(command, CancelReassignment) and command.is_unclean
        stream_id = stream_of(after.partition_id)
        needed = effective_min_isr(state.streams[stream_id], after)
        if is_next:  # the same command may change the stream's number, as growth does
            needed = min(needed, self._min_isrs[stream_id], len(final))
        claims = {
            "the end of a move is a new leader epoch": after.leader_epoch > before.leader_epoch,
            "all that a move added are in sync at its end": final - origin <= set(after.isr),
            "a move leaves enough in sync": is_unclean or len(after.isr) >= needed,
            "a move that is given up leaves all as it was": not isinstance(
                command, CancelReassignment
            )
            or final == origin,
        }
        return [claim for claim, holds in claims.items() if not holds]


def _is_next_move(before: PartitionState, after: PartitionState) -> bool:
    """Return whether one command ended a move and began another, as growth does."""
    return before.is_reassigning and after.is_reassigning and before.target != after.target


def _broken_brokers(
    former: Mapping[BrokerId, BrokerState],
    present: Mapping[BrokerId, BrokerState],
    command: Command,
) -> list[str]:
    """C1 to C3, C13: what a session, a process, a data directory and a stop are."""
    broken: list[str] = []
    for broker, before in former.items():
        after = present[broker]
        is_same = before.incarnation_id == after.incarnation_id
        if is_same and before.broker_epoch != after.broker_epoch:
            broken.append(f"a process of {broker} has one session")
        if not before.fenced and before.data_dir_id != after.data_dir_id:
            broken.append(f"the live broker {broker} keeps its data directory")
        if _is_late(command, before) and before is not after:
            broken.append(f"a command about a former session of {broker} changes nothing")
        if is_same and before.in_controlled_shutdown and not after.removed:
            began = before.controlled_shutdown_index, after.controlled_shutdown_index
            if began[0] != began[1]:
                broken.append(f"{broker} begins to stop once")
        if before.removed and not after.removed and before.data_dir_id == after.data_dir_id:
            broken.append(f"the removed data directory of {broker} stays away")
        if after.removed and not after.fenced:
            broken.append(f"the removed broker {broker} is fenced")
    return broken


def _is_late(command: Command, broker: BrokerState) -> bool:
    """Return whether a command is about a former session of a broker."""
    return (
        isinstance(command, FenceBroker | RemoveBroker | ShutDownBroker | UnfenceBroker)
        and command.broker == broker.broker
        and command.broker_epoch != broker.broker_epoch
    )


def _broken_replicas(
    before: PartitionState, after: PartitionState, state: ClusterState, command: Command
) -> list[str]:
    """C6 and C20: where new replicas go."""
    added = [state.brokers.get(one) for one in after.replicas if one not in before.replicas]
    needed = effective_min_isr(state.streams[stream_of(before.partition_id)], before)
    claims = {
        "a move keeps the replicas that a commit needs": not isinstance(command, StartReassignment)
        or len(after.target or after.replicas) >= needed,
        "a new replica is on a broker of the cluster": all(
            one and not one.removed for one in added
        ),
        "a cordoned broker gets no new replica": not any(one and one.cordoned for one in added),
    }
    return [claim for claim, holds in claims.items() if not holds]


def _broken_leader(
    before: PartitionState, after: PartitionState, state: ClusterState, command: Command
) -> list[str]:
    """C4 and C13: a leader continues while it can, and no decision guesses complete replicas."""
    broken: list[str] = []
    # Growth may add replicas in the command that elects the only one there was.
    is_guess = (
        after.unclean_epoch > before.unclean_epoch
        and not isinstance(command, RecoverUnclean | CancelReassignment)
        and set(before.replicas) & set(after.replicas) != {after.leader}
    )
    if is_guess:
        broken.append("without a complete replica only the one there is leads unasked")
    leader = before.leader
    if leader is None or before.leader_epoch == after.leader_epoch:
        return broken
    is_moved = (before.target, before.replicas) != (after.target, after.replicas)
    if isinstance(command, ASKS_FOR_ANOTHER) or is_moved:
        return broken
    is_own = isinstance(command, RegisterBroker | DeclareUnclean) and command.broker == leader
    if is_own or state.brokers[leader].fenced or leader not in after.replicas:
        return broken
    members = {*before.isr, *(after.isr if isinstance(command, AlterPartition) else ())}
    others = [member for member in members if member != leader and state.brokers[member].can_lead]
    if state.brokers[leader].can_lead or not others:
        broken.append("a leader that can go on does")
    return broken
