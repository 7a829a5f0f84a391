"""Decisions: map a command and a state to records and an answer, or to a refusal.

Every guard is behind this function (rule R0): `decide` runs on all nodes
when a command is committed, so a zombie, a retry or a reordered request does no harm, and running
it before proposing is only an early refusal. It is pure: it reads the state and changes nothing.
Its result for equal input must not change between versions that share a log, except by a feature
level (C21).
"""

from typing import assert_never

from liftbridge_broker.controller import brokers, groups, partitions, reassignment, streams
from liftbridge_broker.controller.checks import check_groups_level
from liftbridge_broker.controller.commands import (
    AdvertiseListeners,
    AlterPartition,
    AlterStream,
    Bootstrap,
    BrokerCommand,
    CancelReassignment,
    ChangeCoordinator,
    ChangeLeader,
    ClusterCommand,
    Command,
    CordonBroker,
    CreateStream,
    DeclareUnclean,
    DeleteGroup,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    GroupCommand,
    InitPublisher,
    JoinGroup,
    LeaveGroup,
    MarkStream,
    PartitionCommand,
    PauseStream,
    RecoverUnclean,
    RegisterBroker,
    ReleasePartitions,
    RemoveBroker,
    Resign,
    ResumeStream,
    SetCatchUpRate,
    SetFeatureLevel,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    StreamCommand,
    UnfenceBroker,
)
from liftbridge_broker.controller.records import Decision
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import MetadataIndex


def decide(state: ClusterState, index: MetadataIndex, command: Command) -> Decision:
    """Decide on a command.

    Args:
        state: State after every entry before `index`.
        index: Index of the command in the log; before proposing, the lowest one it may get.
        command: The request, with unchecked values.

    Returns:
        Records to replay with the answer, or the refusal without records.
    """
    try:
        if isinstance(command, ClusterCommand):
            return _decide_cluster(state, index, command)
        if isinstance(command, BrokerCommand):
            return _decide_broker(state, index, command)
        if isinstance(command, PartitionCommand):
            return _decide_partition(state, index, command)
        if isinstance(command, GroupCommand):
            return _decide_group(state, index, command)
        return _decide_stream(state, index, command)
    except LiftbridgeError as refusal:
        # The traceback refers to frames that hold the decision: a cycle for the collector.
        return Decision((), refusal.with_traceback(None))


def _decide_cluster(state: ClusterState, index: MetadataIndex, command: ClusterCommand) -> Decision:
    match command:
        case Bootstrap():
            decision = brokers.bootstrap(state, index, command)
        case SetFeatureLevel():
            decision = brokers.set_feature_level(state, index, command)
        case SetCatchUpRate():
            decision = brokers.set_catch_up_rate(state, command)
        case _:
            assert_never(command)
    return decision


def _decide_broker(state: ClusterState, index: MetadataIndex, command: BrokerCommand) -> Decision:
    match command:
        case RegisterBroker():
            decision = brokers.register_broker(state, index, command)
        case UnfenceBroker():
            decision = brokers.unfence_broker(state, index, command)
        case FenceBroker():
            decision = brokers.fence_broker(state, index, command)
        case ShutDownBroker():
            decision = brokers.shut_down_broker(state, index, command)
        case AdvertiseListeners():
            decision = brokers.advertise_listeners(state, index, command)
        case CordonBroker():
            decision = brokers.cordon_broker(state, index, command)
        case RemoveBroker():
            decision = brokers.remove_broker(state, index, command)
        case _:
            assert_never(command)
    return decision


def _decide_partition(
    state: ClusterState, index: MetadataIndex, command: PartitionCommand
) -> Decision:
    match command:
        case AlterPartition():
            decision = partitions.alter_partition(state, index, command)
        case StartReassignment():
            decision = reassignment.start_reassignment(state, index, command)
        case CancelReassignment():
            decision = reassignment.cancel_reassignment(state, index, command)
        case ElectPreferred():
            decision = partitions.elect_preferred(state, index, command)
        case RecoverUnclean():
            decision = partitions.recover_unclean(state, index, command)
        case ChangeLeader():
            decision = partitions.change_leader(state, index, command)
        case DeclareUnclean():
            decision = partitions.declare_unclean(state, index, command)
        case Resign():
            decision = partitions.resign(state, index, command)
        case _:
            assert_never(command)
    return decision


def _decide_stream(state: ClusterState, index: MetadataIndex, command: StreamCommand) -> Decision:
    match command:
        case CreateStream():
            decision = streams.create_stream(state, index, command)
        case DeleteStream():
            decision = streams.delete_stream(state, index, command)
        case AlterStream():
            decision = streams.alter_stream(state, index, command)
        case PauseStream():
            decision = streams.pause_stream(state, index, command)
        case ResumeStream():
            decision = streams.resume_stream(state, index, command)
        case SetReadonly():
            decision = streams.set_readonly(state, index, command)
        case InitPublisher():
            decision = streams.init_publisher(state, index, command)
        case MarkStream():
            decision = streams.mark_stream(state, command)
        case _:
            assert_never(command)
    return decision


def _decide_group(state: ClusterState, index: MetadataIndex, command: GroupCommand) -> Decision:
    check_groups_level(state)  # guard Group.level
    match command:
        case JoinGroup():
            decision = groups.join_group(state, index, command)
        case LeaveGroup():
            decision = groups.leave_group(state, index, command)
        case ChangeCoordinator():
            decision = groups.change_coordinator(state, index, command)
        case ReleasePartitions():
            decision = groups.release_partitions(state, command)
        case DeleteGroup():
            decision = groups.delete_group(state, command)
        case _:
            assert_never(command)
    return decision
