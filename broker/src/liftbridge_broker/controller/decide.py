"""Decisions: map a command and a state to records and an answer, or to a refusal.

Every guard is behind this function (rule R0): `decide` runs on all nodes
when a command is committed, so a zombie, a retry or a reordered request does no harm, and running
it before proposing is only an early refusal. It is pure: it reads the state and changes nothing.
Its result for equal input must not change between versions that share a log, except by a feature
level (C21).
"""

from typing import assert_never

from liftbridge_broker.controller import activity, brokers, keys, partitions, reassignment, streams
from liftbridge_broker.controller.callers import access, quotas, tokens
from liftbridge_broker.controller.callers.commands import (
    AccessCommand,
    ChangeRules,
    CreateToken,
    ExpireToken,
    RevokeToken,
    SetAccess,
    SetQuota,
    TokenCommand,
)
from liftbridge_broker.controller.checks import check_groups_level
from liftbridge_broker.controller.commands import (
    ActivityCommand,
    AdvertiseListeners,
    AlterPartition,
    AlterStream,
    Bootstrap,
    BrokerCommand,
    CancelReassignment,
    ChangeLeader,
    ClusterCommand,
    Command,
    ConfirmActivity,
    CordonBroker,
    CreateEncryptedStream,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    InitPublisher,
    KeyCommand,
    MarkStream,
    PartitionCommand,
    PauseStream,
    RecoverUnclean,
    RegisterBroker,
    RemoveBroker,
    ReportMasterKeys,
    Resign,
    ResumeStream,
    RewrapDataKeys,
    SetActivity,
    SetCatchUpRate,
    SetFeatureLevel,
    SetMasterKey,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    StreamCommand,
    UnfenceBroker,
)
from liftbridge_broker.controller.consumer_groups import groups
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
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
            decision = _decide_cluster(state, index, command)
        elif isinstance(command, BrokerCommand):
            decision = _decide_broker(state, index, command)
        elif isinstance(command, PartitionCommand):
            decision = _decide_partition(state, index, command)
        elif isinstance(command, AccessCommand):
            decision = _decide_access(state, command)
        elif isinstance(command, TokenCommand):
            decision = _decide_token(state, command)
        elif isinstance(command, GroupCommand):
            decision = _decide_group(state, index, command)
        elif isinstance(command, ActivityCommand):
            decision = _decide_activity(state, command)
        elif isinstance(command, KeyCommand):
            decision = _decide_keys(state, index, command)
        else:
            decision = _decide_stream(state, index, command)
    except LiftbridgeError as refusal:
        # The traceback refers to frames that hold the decision: a cycle for the collector.
        return Decision((), refusal.with_traceback(None))
    return decision


def _decide_cluster(state: ClusterState, index: MetadataIndex, command: ClusterCommand) -> Decision:
    match command:
        case Bootstrap():
            decision = brokers.bootstrap(state, index, command)
        case SetFeatureLevel():
            decision = brokers.set_feature_level(state, index, command)
        case SetCatchUpRate():
            decision = brokers.set_catch_up_rate(state, command)
        case SetQuota():
            decision = quotas.set_quota(state, command)
        case _:
            assert_never(command)
    return decision


def _decide_access(state: ClusterState, command: AccessCommand) -> Decision:
    match command:
        case SetAccess():
            decision = access.set_access(state, command)
        case ChangeRules():
            decision = access.change_rules(state, command)
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


def _decide_token(state: ClusterState, command: TokenCommand) -> Decision:
    match command:
        case CreateToken():
            decision = tokens.create_token(state, command)
        case ExpireToken():
            decision = tokens.expire_token(state, command)
        case RevokeToken():
            decision = tokens.revoke_token(state, command)
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


def _decide_activity(state: ClusterState, command: ActivityCommand) -> Decision:
    match command:
        case SetActivity():
            decision = activity.set_activity(state, command)
        case ConfirmActivity():
            decision = activity.confirm_activity(state, command)
        case _:
            assert_never(command)
    return decision


def _decide_keys(state: ClusterState, index: MetadataIndex, command: KeyCommand) -> Decision:
    match command:
        case CreateEncryptedStream():
            decision = keys.create_encrypted_stream(state, index, command)
        case RewrapDataKeys():
            decision = keys.rewrap_data_keys(state, command)
        case SetMasterKey():
            decision = keys.set_master_key(state, command)
        case ReportMasterKeys():
            decision = keys.report_master_keys(state, index, command)
        case _:
            assert_never(command)
    return decision
