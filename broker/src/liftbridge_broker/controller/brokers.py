"""Decisions about brokers: sessions, fencing, stopping, leaving (C1 to C3, C13, C20, C21).

Marks such as `# guard C1.removed` name guards of the rules in docs/spec/replication.md; a list
names the test that fails when a guard is removed.
"""

from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.commands import (
    ROOM_LEVEL,
    AdvertiseListeners,
    Bootstrap,
    CordonBroker,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    SetCatchUpRate,
    SetFeatureLevel,
    ShutDownBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.consumer_groups.groups import hand_over_groups
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.elections import elect, with_isr, with_session
from liftbridge_broker.controller.reassignment import grow
from liftbridge_broker.controller.records import (
    Bootstrapped,
    BrokerEpochAnswer,
    CatchUpRateSet,
    Cause,
    Decision,
    Done,
    FeatureLevelSet,
)
from liftbridge_broker.controller.state import (
    NOTHING_APPLIED,
    RESTARTS_MAX,
    BrokerState,
    ClusterState,
    Restart,
)
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    StaleBrokerEpochError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.listeners import fault_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.model.subjects import check_group

CATCH_UP_RATE_MIN: Final = 1_024
"""Lowest catch-up rate: a slower reassignment would not end."""
BROKERS_MAX: Final = 1_024
"""Maximum number of brokers of a cluster, including removed brokers, to bound memory."""


def bootstrap(state: ClusterState, index: MetadataIndex, command: Bootstrap) -> Decision:
    """Set the cluster id once; a repeat with the same id gets the same answer."""
    if not command.cluster_id:
        raise InvalidRequestError("Invalid cluster id, cannot be empty")
    if state.cluster_id == command.cluster_id:
        return Decision((), Done())
    if state.cluster_id:  # guard Bootstrap.once
        raise FailedPreconditionError(
            f"cluster is {state.cluster_id} already, not {command.cluster_id}"
        )
    draft = Draft(state, index)
    _check_feature_level(state, command.feature_level)
    draft.records.append(Bootstrapped(command.cluster_id, command.feature_level))
    return draft.decision(Done())


def register_broker(state: ClusterState, index: MetadataIndex, command: RegisterBroker) -> Decision:
    """C1: start a session, fenced until caught up; replicas that may have lost data stop counting.

    A live session of another process is replaced only by one with the same data directory, whose
    lock proves that the former process has ended.
    """
    known = _check_registration(state, command)
    if known is not None and known.incarnation_id == command.incarnation_id:
        return Decision((), BrokerEpochAnswer(known.broker_epoch))  # guard C1.retry
    former = [] if known is None else [start.incarnation_id for start in known.restarts]
    if command.incarnation_id in former:  # guard C1.former
        # The earlier process would replace the session of a later process, and be trusted with its
        # data.
        raise FailedPreconditionError(
            f"process {command.incarnation_id} of broker {command.broker} is over"
        )
    draft = Draft(state, index)
    if known is not None and not known.fenced:
        # The former process has ended: a quick restart need not wait for its session to end.
        _fence(draft, known, Cause.REGISTERED)  # guard C1.fence_first
    keeps = known is not None and not known.removed
    broker = BrokerState(
        broker=command.broker,
        broker_epoch=index,
        incarnation_id=command.incarnation_id,
        data_dir_id=command.data_dir_id,
        host=command.host,
        port=command.port,
        zone=command.zone,
        version=command.version,
        feature_level=command.feature_level,
        fenced=True,
        cordoned=keeps and known is not None and known.cordoned,
        draining=keeps and known is not None and known.draining,
        restarts=_restarts(command, known),
        listeners=known.listeners if keeps and known is not None else (),
        replicas_max=command.replicas_max if _knows_room(state) else 0,
    )
    draft.put_broker(broker, Cause.REGISTERED)
    _renew_replicas(draft, command, known)
    if command.feature_level == 0:
        _unfence(draft, broker)
    hand_over_groups(draft)
    return draft.decision(BrokerEpochAnswer(index))


def _knows_room(state: ClusterState) -> bool:
    """Return whether all brokers know replica limits, and so reach the same decision."""
    return state.feature_level >= ROOM_LEVEL  # guard Room.level


def _restarts(command: RegisterBroker, known: BrokerState | None) -> tuple[Restart, ...]:
    """Return the last starts, including this one."""
    before = () if known is None else known.restarts
    is_clean = known is not None and _stopped_in_order(command, known)
    started = Restart(command.incarnation_id, command.started, is_clean, command.version)
    return (*before, started)[-RESTARTS_MAX:]


def _stopped_in_order(command: RegisterBroker, known: BrokerState) -> bool:
    """Return whether the previous process shut down cleanly, on the same data directory."""
    return (
        known.data_dir_id == command.data_dir_id
        and command.previous_broker_epoch == known.broker_epoch
    )


def _check_registration(state: ClusterState, command: RegisterBroker) -> BrokerState | None:
    """Refuse a broker that must not begin a session; else return its previous registration."""
    if not command.broker or not command.incarnation_id or not command.data_dir_id:
        raise InvalidRequestError("Invalid registration, broker and identities cannot be empty")
    check_group(command.broker)
    if command.feature_level < state.feature_level:  # guard C21.registration
        raise FailedPreconditionError(
            f"broker {command.broker} knows feature level {command.feature_level}, "
            f"the cluster is at {state.feature_level}"
        )
    known = state.brokers.get(command.broker)
    if known is None:
        if len(state.brokers) >= BROKERS_MAX:
            raise LimitError(f"{len(state.brokers)} brokers exist, limit {BROKERS_MAX}")
        return None
    if known.removed and known.data_dir_id == command.data_dir_id:  # guard C1.removed
        raise FailedPreconditionError(f"broker {command.broker} was removed from the cluster")
    is_live = not known.fenced
    if is_live and known.data_dir_id != command.data_dir_id:  # guard C1.data_dir
        raise FailedPreconditionError(
            f"broker {command.broker} is registered with data directory {known.data_dir_id}, "
            f"not {command.data_dir_id}"
        )
    return known


def _renew_replicas(draft: Draft, command: RegisterBroker, known: BrokerState | None) -> None:
    """Begin a new session of every replica, and remove unclean ones from the pools."""
    broker = command.broker
    same_data = known is not None and known.data_dir_id == command.data_dir_id  # guard C1.wiped
    is_clean = (
        known is not None
        and same_data
        and command.previous_broker_epoch == known.broker_epoch  # guard C1.marker
    )
    verified = frozenset(command.clean_partitions if same_data else ())
    damaged = frozenset(command.quarantined_partitions)
    for before in draft.replicas_of(broker):
        number = before.partition_id
        partition = before
        is_whole = is_clean or (
            number in verified and _may_be_verified(draft, before, command.known_index)
        )
        if not is_whole or number in damaged:  # guard C1.unclean
            isr = [one for one in partition.isr if one != broker]
            partition = _moved(draft, partition, isr, unclean=broker)
        partition = with_session(partition, broker, draft.index)  # guard C1.session
        draft.put(partition, Cause.REGISTERED)


def _may_be_verified(draft: Draft, partition: PartitionState, known_index: int) -> bool:
    """Return whether a replica may hold all acknowledged records despite an unclean shutdown.

    Only under fsync policy `commit`, or for a sole replica under `auto`, did no record count before
    it was on disk. The broker must also have known the policy in force throughout.
    """
    policy = draft.policy(partition.partition_id)
    is_commit = policy.fsync_policy is FsyncPolicy.COMMIT
    is_alone = policy.fsync_policy is FsyncPolicy.AUTO and len(partition.replicas) == 1
    return (is_commit or is_alone) and (  # guard C1.policy
        policy.fsync_index <= known_index  # guard C1.policy_index
    )


def _moved(
    draft: Draft, partition: PartitionState, isr: list[BrokerId], *, unclean: BrokerId
) -> PartitionState:
    return with_isr(
        partition, isr, draft.brokers, draft.index, draft.min_isr(partition), unclean=(unclean,)
    )


def unfence_broker(state: ClusterState, index: MetadataIndex, command: UnfenceBroker) -> Decision:
    """C2: let the broker lead; elect leaders for partitions that waited for it."""
    broker = check_session(state, command.broker, command.broker_epoch)  # guard C2.epoch
    if command.want_fence:  # guard C2.want_fence
        raise FailedPreconditionError(f"broker {broker.broker} asks to stay fenced")
    if command.applied_index < broker.registration_index:  # guard C2.applied
        raise FailedPreconditionError(
            f"broker {broker.broker} has applied {command.applied_index}, "
            f"needed {broker.registration_index}"
        )
    if not broker.fenced:
        return Decision((), Done())
    draft = Draft(state, index)
    _unfence(draft, broker)
    return draft.decision(Done())


def _unfence(draft: Draft, broker: BrokerState) -> None:
    draft.put_broker(replace(broker, fenced=False), Cause.UNFENCED)
    for partition in draft.replicas_of(broker.broker):
        if partition.leader is None:
            elected = elect(partition, draft.brokers, draft.index, draft.min_isr(partition))
            draft.put(elected, Cause.UNFENCED)
    for stream in draft.state.streams.values():
        grow(draft, stream)
    hand_over_groups(draft, returned=broker.broker)


def fence_broker(state: ClusterState, index: MetadataIndex, command: FenceBroker) -> Decision:
    """C3: remove the broker from all leaderships and in-sync sets."""
    broker = check_session(state, command.broker, command.broker_epoch)  # guard C3.epoch
    if broker.fenced:  # guard C3.fenced
        return Decision((), Done())
    draft = Draft(state, index)
    _fence(draft, broker, Cause.FENCED)
    hand_over_groups(draft)
    return draft.decision(Done())


def _fence(draft: Draft, broker: BrokerState, cause: Cause) -> None:
    draft.put_broker(replace(broker, fenced=True), cause)
    for partition in draft.replicas_of(broker.broker):
        isr = [one for one in partition.isr if one != broker.broker]
        if len(isr) < len(partition.isr):
            min_isr = draft.min_isr(partition)
            draft.put(with_isr(partition, isr, draft.brokers, draft.index, min_isr), cause)


def shut_down_broker(
    state: ClusterState, index: MetadataIndex, command: ShutDownBroker
) -> Decision:
    """C13: transfer leaderships, except where no other replica could lead."""
    broker = check_session(state, command.broker, command.broker_epoch)  # guard C13.epoch
    if broker.fenced or broker.in_controlled_shutdown:
        return Decision((), Done())  # guard C13.again
    draft = Draft(state, index)
    draft.put_broker(
        replace(broker, in_controlled_shutdown=True, controlled_shutdown_index=index),
        Cause.SHUTTING_DOWN,
    )
    for partition in draft.replicas_of(broker.broker):
        isr = [one for one in partition.isr if one != broker.broker]
        can_go_on = any(draft.brokers[one].can_lead for one in isr)
        if can_go_on and len(isr) < len(partition.isr):  # guard C13.last
            min_isr = draft.min_isr(partition)
            changed = with_isr(partition, isr, draft.brokers, index, min_isr)
            draft.put(changed, Cause.SHUTTING_DOWN)
    hand_over_groups(draft)
    return draft.decision(Done())


def advertise_listeners(
    state: ClusterState, index: MetadataIndex, command: AdvertiseListeners
) -> Decision:
    """Set the addresses that clients of other listeners get; nothing else changes."""
    broker = check_session(state, command.broker, command.broker_epoch)
    fault = fault_of(command.listeners)
    if fault:
        raise InvalidRequestError(f"Invalid listeners, {fault}")
    if command.listeners == broker.listeners:
        return Decision((), Done())
    draft = Draft(state, index)
    draft.put_broker(replace(broker, listeners=command.listeners), Cause.ADVERTISED)
    return draft.decision(Done())


def cordon_broker(state: ClusterState, index: MetadataIndex, command: CordonBroker) -> Decision:
    """C20: exclude the broker from placement; draining implies cordoning."""
    broker = _member(state, command.broker)
    cordoned = command.cordoned or command.draining
    if (broker.cordoned, broker.draining) == (cordoned, command.draining):
        return Decision((), Done())
    draft = Draft(state, index)
    changed = replace(broker, cordoned=cordoned, draining=command.draining)
    draft.put_broker(changed, Cause.CORDONED)
    return draft.decision(Done())


def remove_broker(state: ClusterState, index: MetadataIndex, command: RemoveBroker) -> Decision:
    """Remove a stopped broker without replicas permanently."""
    broker = check_session(state, command.broker, command.broker_epoch)  # guard Remove.epoch
    if not broker.fenced:  # guard Remove.fenced
        raise FailedPreconditionError(f"broker {broker.broker} is alive, stop it first")
    draft = Draft(state, index)
    held = sum(1 for _ in draft.replicas_of(broker.broker))
    if held:  # guard Remove.replicas
        raise FailedPreconditionError(f"broker {broker.broker} holds {held} replicas")
    gone = replace(
        broker,
        removed=True,
        cordoned=False,
        draining=False,
        in_controlled_shutdown=False,
        controlled_shutdown_index=NOTHING_APPLIED,
    )
    draft.put_broker(gone, Cause.REMOVED)
    return draft.decision(Done())


def set_feature_level(
    state: ClusterState, index: MetadataIndex, command: SetFeatureLevel
) -> Decision:
    """C21: raise the feature level; every broker must know the new level."""
    if command.feature_level == state.feature_level:
        return Decision((), Done())
    _check_feature_level(state, command.feature_level)
    draft = Draft(state, index)
    draft.records.append(FeatureLevelSet(command.feature_level))
    return draft.decision(Done())


def set_catch_up_rate(state: ClusterState, command: SetCatchUpRate) -> Decision:
    """Set the rate at which leaders copy for reassignments."""
    rate = command.bytes_per_second
    if rate and rate < CATCH_UP_RATE_MIN:
        raise InvalidRequestError(
            f"Invalid catch-up rate of {rate} bytes a second, must be 0 for no limit or at least "
            f"{CATCH_UP_RATE_MIN}"
        )
    if rate == state.catch_up_rate:
        return Decision((), Done())
    return Decision((CatchUpRateSet(rate),), Done())


def _check_feature_level(state: ClusterState, level: int) -> None:
    if level < state.feature_level:  # guard C21.back
        raise FailedPreconditionError(
            f"feature level {level} is below {state.feature_level}, which is in force"
        )
    for broker in state.brokers.values():
        if not broker.removed and broker.feature_level < level:  # guard C21.brokers
            raise FailedPreconditionError(
                f"broker {broker.broker} knows feature level {broker.feature_level}, not {level}"
            )


def check_session(state: ClusterState, broker: BrokerId, broker_epoch: int) -> BrokerState:
    """Return the state of a broker in its current session.

    Raises:
        StaleBrokerEpochError: The session has ended, or never existed.
    """
    known = state.brokers.get(broker)
    if known is None or known.removed or known.broker_epoch != broker_epoch:
        present = "none" if known is None or known.removed else f"{known.broker_epoch}"
        raise StaleBrokerEpochError(
            f"broker {broker} has broker epoch {present}, not {broker_epoch}"
        )
    return known


def _member(state: ClusterState, broker: BrokerId) -> BrokerState:
    known = state.brokers.get(broker)
    if known is None or known.removed:
        raise NotFoundError(f"broker {broker} does not exist")
    return known
