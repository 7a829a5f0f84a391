"""Decisions about partitions: in-sync sets and leaders (C5, C9 to C12, C19).

Marks such as `# guard C5.6` name guards of the rules in docs/spec/replication.md; a list names the
test that fails when a guard is removed.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.brokers import check_session
from liftbridge_broker.controller.commands import (
    MEMBER_ALREADY,
    AlterPartition,
    ChangeLeader,
    DeclareUnclean,
    ElectPreferred,
    LeaderChange,
    Leadership,
    RecoverUnclean,
    ReplicaAnswer,
    Resign,
)
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.elections import led, led_uncleanly, with_isr, with_session
from liftbridge_broker.controller.reassignment import (
    complete_if_due,
    grow,
    partition_answer,
)
from liftbridge_broker.controller.records import (
    Cause,
    Decision,
    Outcomes,
    PartitionOutcome,
)
from liftbridge_broker.controller.recovery import best_answer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidPartitionEpochError,
    InvalidRequestError,
    LiftbridgeError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownPartitionError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId, stream_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import UncleanMode

LIST_MAX: Final = 100_000
"""Maximum number of partitions in a command, to bound memory."""


def alter_partition(state: ClusterState, index: MetadataIndex, command: AlterPartition) -> Decision:
    """Decide C5. The order of the checks is Kafka's; a duplicate request fails the sixth."""
    check_session(state, command.broker, command.broker_epoch)  # guard C5.1
    draft = Draft(state, index)
    before = draft.partition(command.partition_id)  # guard C5.2
    _check_epochs(before, command)
    _check_members(before, command)
    for member in command.isr:
        _check_eligible(draft, before, member.broker, member.replica_epoch)
    if before.is_recovering and not command.is_recovering:
        before = replace(before, is_recovering=False, partition_epoch=index)
    members = [member.broker for member in command.isr]
    min_isr = draft.min_isr(before)
    altered = with_isr(before, members, draft.brokers, index, min_isr)
    # The leader waits for an answer in a new partition epoch even when the set is the same.
    altered = replace(altered, partition_epoch=index)
    after = complete_if_due(draft, altered)  # guard C5.10
    draft.put(after, Cause.ISR_ALTERED if after is altered else Cause.REASSIGNED)
    if after is not altered:
        grow(draft, state.streams[stream_of(after.partition_id)])
    return draft.decision(partition_answer(before, after))


def _check_epochs(partition: PartitionState, command: AlterPartition) -> None:
    name = f"partition {partition.partition_id}"
    is_behind = (
        command.leader_epoch > partition.leader_epoch
        or command.partition_epoch > partition.partition_epoch
    )
    if is_behind:  # guard C5.3
        raise NotControllerError(
            f"{name} is at epochs {partition.leader_epoch} and {partition.partition_epoch}, "
            f"behind {command.leader_epoch} and {command.partition_epoch}"
        )
    if command.leader_epoch < partition.leader_epoch:  # guard C5.4
        raise FencedLeaderEpochError(
            f"{name} has leader epoch {partition.leader_epoch}, not {command.leader_epoch}"
        )
    if command.broker != partition.leader:  # guard C5.5
        raise InvalidRequestError(f"{name} is not led by broker {command.broker}")
    if command.partition_epoch != partition.partition_epoch:  # guard C5.6
        raise InvalidPartitionEpochError(
            f"{name} has partition epoch {partition.partition_epoch}, not {command.partition_epoch}"
        )


def _check_members(partition: PartitionState, command: AlterPartition) -> None:
    name = f"partition {partition.partition_id}"
    members = [member.broker for member in command.isr]
    if not set(members) <= set(partition.replicas):  # guard C5.7_replicas
        raise InvalidRequestError(f"{name}: the in-sync set names a broker without a replica")
    if len(set(members)) != len(members):  # guard C5.7_twice
        raise InvalidRequestError(f"{name}: the in-sync set names a broker twice")
    if partition.leader not in members:  # guard C5.7_leader
        raise InvalidRequestError(f"{name}: the in-sync set lacks the leader")
    if command.is_recovering and len(members) != 1:  # guard C5.8_alone
        raise InvalidRequestError(f"{name} is recovering, only its leader can be in sync")
    if command.is_recovering and not partition.is_recovering:  # guard C5.8_back
        raise InvalidRequestError(f"{name} is not recovering, a leader cannot change that")


def _check_eligible(
    draft: Draft, partition: PartitionState, broker: BrokerId, replica_epoch: int
) -> None:
    """KIP-841 and KIP-903: alive, not stopping, and known to the leader by its current session."""
    name = f"partition {partition.partition_id}: broker {broker}"
    state = draft.brokers[broker]
    if state.fenced:  # guard C5.9_fenced
        raise IneligibleReplicaError(f"{name} is fenced")
    if state.in_controlled_shutdown:  # guard C5.9_shutdown
        raise IneligibleReplicaError(f"{name} is about to stop")
    if replica_epoch == MEMBER_ALREADY:
        if broker not in partition.isr:  # guard C5.9_member
            raise IneligibleReplicaError(f"{name} was not in sync before")
        return
    if replica_epoch != partition.replica_epoch(broker):  # guard C5.9_session
        raise IneligibleReplicaError(
            f"{name} has replica epoch {partition.replica_epoch(broker)}, not {replica_epoch}"
        )


def elect_preferred(state: ClusterState, index: MetadataIndex, command: ElectPreferred) -> Decision:
    """Decide C9, partition by partition."""
    draft = Draft(state, index)

    def prefer(number: PartitionId) -> None:
        partition = draft.partition(number)
        first = partition.replicas[0]
        if partition.leader == first:
            return
        if first not in partition.isr:  # guard C9.isr
            raise FailedPreconditionError(f"broker {first} is not in sync")
        if not draft.brokers[first].can_lead:  # guard C9.can_lead
            raise FailedPreconditionError(f"broker {first} is fenced or about to stop")
        if partition.is_recovering:  # guard C9.recovering
            raise FailedPreconditionError(f"partition {number} is recovering")
        draft.put(led(partition, first, index), Cause.PREFERRED)

    return draft.decision(_each(command.partitions, prefer))


def _each(partitions: Iterable[PartitionId], act: Callable[[PartitionId], None]) -> Outcomes:
    """Apply a decision to each partition of a list; after a refusal, continue with the rest.

    Raises:
        InvalidRequestError: The list is too long.
    """
    numbers = tuple(partitions)
    if len(numbers) > LIST_MAX:
        raise InvalidRequestError(f"{len(numbers)} partitions in one command, limit {LIST_MAX}")
    outcomes: list[PartitionOutcome] = []
    for number in numbers:
        code, text = "", ""
        try:
            act(number)
        except LiftbridgeError as refusal:
            code, text = refusal.code, refusal.text
        outcomes.append(PartitionOutcome(number, code, text))
    return Outcomes(tuple(outcomes))


def recover_unclean(state: ClusterState, index: MetadataIndex, command: RecoverUnclean) -> Decision:
    """C10: elect an incomplete replica; the record notes that acknowledged data may be lost."""
    draft = Draft(state, index)
    before = draft.partition(command.partition_id)
    name = f"partition {before.partition_id}"
    if command.partition_epoch != before.partition_epoch:  # guard C10.epoch
        raise InvalidPartitionEpochError(
            f"{name} has partition epoch {before.partition_epoch}, not {command.partition_epoch}"
        )
    if before.leader is not None:  # guard C10.leader
        raise FailedPreconditionError(f"{name} is led by broker {before.leader}")
    if command.chosen not in before.replicas:  # guard C10.replica
        raise InvalidRequestError(f"{name} has no replica on broker {command.chosen}")
    if draft.brokers[command.chosen].fenced:  # guard C10.fenced
        raise FailedPreconditionError(f"broker {command.chosen} is fenced")
    if command.mode is not UncleanMode.MANUAL:
        _check_recovery(draft, before, command)
    after = led_uncleanly(before, command.chosen, index, draft.min_isr(before))
    draft.put(after, Cause.RECOVERED_UNCLEANLY)
    return draft.decision(partition_answer(before, after))


def _check_recovery(draft: Draft, partition: PartitionState, command: RecoverUnclean) -> None:
    """Check a recovery by the controller: the mode must allow it, the answers must justify it."""
    name = f"partition {partition.partition_id}"
    mode = draft.policy(partition.partition_id).unclean_mode
    is_proactive = command.mode is UncleanMode.PROACTIVE
    if mode is UncleanMode.MANUAL:  # guard C10.manual
        raise FailedPreconditionError(f"{name} can be recovered only by an operator")
    if is_proactive and mode is not UncleanMode.PROACTIVE:  # guard C10.proactive
        raise FailedPreconditionError(
            f"{name} cannot be recovered before all replicas have reported"
        )
    for answer in command.answers:
        _check_answer(draft, partition, answer)
    if not is_proactive:
        if partition.isr or partition.elr or not partition.last_known_elr:  # guard C10.pools
            raise FailedPreconditionError(
                f"{name} has complete replicas, or none that was last known to be complete"
            )
        answered = {answer.broker for answer in command.answers}
        if not answered >= set(partition.last_known_elr):  # guard C10.all
            raise FailedPreconditionError(
                f"{name}: not all of its last known replicas have reported"
            )
    if best_answer(command.answers, partition.replicas) != command.chosen:  # guard C10.best
        raise InvalidRequestError(
            f"{name}: broker {command.chosen} did not report the most records"
        )


def _check_answer(draft: Draft, partition: PartitionState, answer: ReplicaAnswer) -> None:
    if answer.broker not in partition.replicas:  # guard C10.answer_replica
        raise InvalidRequestError(
            f"partition {partition.partition_id} has no replica on broker {answer.broker}"
        )
    if draft.brokers[answer.broker].broker_epoch != answer.broker_epoch:  # guard C10.answer_epoch
        raise StaleBrokerEpochError(f"broker {answer.broker} reported in a session that has ended")


def change_leader(state: ClusterState, index: MetadataIndex, command: ChangeLeader) -> Decision:
    """C11, partition by partition: the old leader leaves the in-sync set as well.

    Otherwise acks that wait for all in-sync replicas would hang until it is removed for lag.
    """
    draft = Draft(state, index)
    changes = {change.partition_id: change for change in command.changes}
    if len(changes) != len(command.changes):
        raise InvalidRequestError("a partition is listed twice")

    def replace_leader(number: PartitionId) -> None:
        _replace_leader(draft, changes[number])

    return draft.decision(_each(changes, replace_leader))


def _replace_leader(draft: Draft, change: LeaderChange) -> None:
    partition = draft.partition(change.partition_id)
    _check_leadership(partition, change.exclude, change.leader_epoch)
    if change.partition_epoch != partition.partition_epoch:  # guard C11.partition_epoch
        raise InvalidPartitionEpochError(
            f"partition {partition.partition_id} has partition epoch "
            f"{partition.partition_epoch}, not {change.partition_epoch}"
        )
    isr = [one for one in partition.isr if one != change.exclude]
    if not any(draft.brokers[one].can_lead for one in isr):  # guard C11.successor
        raise FailedPreconditionError(
            f"partition {partition.partition_id} has no other broker to lead it"
        )
    min_isr = draft.min_isr(partition)
    changed = with_isr(partition, isr, draft.brokers, draft.index, min_isr, avoid=change.exclude)
    draft.put(changed, Cause.REPORTED)


def _check_leadership(partition: PartitionState, leader: BrokerId, leader_epoch: int) -> None:
    if leader_epoch != partition.leader_epoch:  # guard C11.leader_epoch C19.leader_epoch
        raise FencedLeaderEpochError(
            f"partition {partition.partition_id} has leader epoch {partition.leader_epoch}, "
            f"not {leader_epoch}"
        )
    if leader != partition.leader:  # guard C11.leader C19.leader
        raise InvalidRequestError(
            f"partition {partition.partition_id} is not led by broker {leader}"
        )


def declare_unclean(state: ClusterState, index: MetadataIndex, command: DeclareUnclean) -> Decision:
    """C12: as if the broker had been fenced and restarted uncleanly, for one partition."""
    check_session(state, command.broker, command.broker_epoch)  # guard C12.broker_epoch
    draft = Draft(state, index)
    before = draft.partition(command.partition_id)
    epoch = before.replica_epoch(command.broker)
    if epoch is None:
        raise UnknownPartitionError(
            f"partition {before.partition_id} has no replica on broker {command.broker}"
        )
    if epoch != command.replica_epoch:  # guard C12.replica_epoch
        raise StaleBrokerEpochError(
            f"partition {before.partition_id}: broker {command.broker} has replica epoch {epoch}, "
            f"not {command.replica_epoch}"
        )
    isr = [one for one in before.isr if one != command.broker]
    after = with_isr(
        with_session(before, command.broker, index),  # guard C12.session
        isr,
        draft.brokers,
        index,
        draft.min_isr(before),
        unclean=(command.broker,),  # guard C12.unclean
    )
    draft.put(after, Cause.DECLARED_UNCLEAN)
    return draft.decision(partition_answer(before, after))


def resign(state: ClusterState, index: MetadataIndex, command: Resign) -> Decision:
    """C19, partition by partition, wherever another in-sync replica can lead."""
    check_session(state, command.broker, command.broker_epoch)  # guard C19.broker_epoch
    draft = Draft(state, index)
    given_up = {partition.partition_id: partition for partition in command.partitions}
    if len(given_up) != len(command.partitions):
        raise InvalidRequestError("a partition is listed twice")

    def give_up(number: PartitionId) -> None:
        _give_up(draft, given_up[number], command)

    return draft.decision(_each(given_up, give_up))


def _give_up(draft: Draft, leadership: Leadership, command: Resign) -> None:
    partition = draft.partition(leadership.partition_id)
    _check_leadership(partition, command.broker, leadership.leader_epoch)
    isr = [one for one in partition.isr if one != command.broker]
    able = [one for one in isr if draft.brokers[one].can_lead]
    if command.successor:
        able = [one for one in able if one == command.successor]
    if not able:  # guard C19.successor
        raise FailedPreconditionError(
            f"partition {partition.partition_id} has no other broker to lead it"
        )
    changed = led(partition, able[0], draft.index)
    if command.leaves_isr:
        min_isr = draft.min_isr(partition)
        changed = with_isr(changed, isr, draft.brokers, draft.index, min_isr)
    draft.put(changed, Cause.RESIGNED)
