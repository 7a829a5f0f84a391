"""What each method of every service needs: operations on the resources that its request names.

A method that is missing here is refused to everybody once access control is on, and a test compares
the table with the descriptors of the services.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from liftbridge_broker.access.rules import (
    CLUSTER_NAME,
    Operation,
    ResourceKind,
    cursor_name,
)


class Need(NamedTuple):
    """An operation on each resource that a request names.

    Attributes:
        operation: The operation.
        kind: Kind of the resources.
        names: Returns their names from a decoded request.
        may_match: Whether a name may be a pattern; then no resource that it matches may be denied.
    """

    operation: Operation
    kind: ResourceKind
    names: Callable[[Any], Iterable[str]]
    may_match: bool = False


class Known:
    """Some right, whichever: such a method shows what the caller has rights on, or nothing."""


KNOWN: Final = Known()
Needs = tuple[Need, ...] | Known

OPEN: Final[Needs] = ()
"""Needs of a method that everybody may call."""


def _name(request: Any) -> Iterable[str]:
    return (request.name,)


def _stream(request: Any) -> Iterable[str]:
    return (request.stream,)


def _group(request: Any) -> Iterable[str]:
    return (request.groupId,)


def _own_group(request: Any) -> Iterable[str]:
    return (request.group_id,)


def _positioned(request: Any) -> Iterable[str]:
    return (position.stream for position in request.positions)


def _joined(request: Any) -> Iterable[str]:
    return (request.consumer.groupId,) if request.consumer.groupId else ()


def _subject(request: Any) -> Iterable[str]:
    return (request.subject,)


def _attached(request: Any) -> Iterable[str]:
    """Return the subjects of a new stream; partitions above 0 have subjects of their own."""
    more = (f"{request.subject}.*",) if request.partitions > 1 else ()
    return (request.subject, *more)


def _inbox(request: Any) -> Iterable[str]:
    """Return the subject to which the broker publishes an ack for the client."""
    return (request.ackInbox,) if request.ackInbox else ()


def _cursor(request: Any) -> Iterable[str]:
    return (cursor_name(request.stream, request.cursorId),)


def _cluster(_request: Any) -> Iterable[str]:
    return (CLUSTER_NAME,)


def _within(field: str, need: Need) -> Need:
    """Return the same need for a request that is a field of another one."""
    return need._replace(names=lambda request: need.names(getattr(request, field)))


def _stream_needs(operation: Operation, names: Callable[[Any], Iterable[str]] = _stream) -> Needs:
    return (Need(operation, ResourceKind.STREAM, names),)


def _own_group_needs(operation: Operation) -> Needs:
    return (Need(operation, ResourceKind.GROUP, _own_group),)


def _cluster_needs(operation: Operation) -> Needs:
    return (Need(operation, ResourceKind.CLUSTER, _cluster),)


_INBOX: Final = Need(Operation.PUBLISH, ResourceKind.SUBJECT, _inbox)
_JOIN: Final[Needs] = (Need(Operation.JOIN, ResourceKind.GROUP, _group),)
_CREATE: Final = (
    Need(Operation.CREATE, ResourceKind.STREAM, _name),
    Need(Operation.ATTACH, ResourceKind.SUBJECT, _attached),
)
_SET_CURSOR: Final = Need(Operation.SET, ResourceKind.CURSOR, _cursor)
_VIEW: Final = _cluster_needs(Operation.DESCRIBE)
_CHANGE: Final = _cluster_needs(Operation.ALTER)
_GRANT: Final = _cluster_needs(Operation.GRANT)

_API: Final[Mapping[str, Needs]] = {
    "CreateStream": _CREATE,
    "DeleteStream": _stream_needs(Operation.DELETE, _name),
    "PauseStream": _stream_needs(Operation.PAUSE, _name),
    "SetStreamReadonly": _stream_needs(Operation.SET_READONLY, _name),
    "Subscribe": (
        Need(Operation.READ, ResourceKind.STREAM, _stream),
        Need(Operation.JOIN, ResourceKind.GROUP, _joined),
    ),
    "FetchMetadata": KNOWN,
    "FetchPartitionMetadata": _stream_needs(Operation.DESCRIBE),
    "Publish": (Need(Operation.PUBLISH, ResourceKind.STREAM, _stream), _INBOX),
    "PublishAsync": _stream_needs(Operation.PUBLISH),  # its acks go to the call alone
    "PublishToSubject": (Need(Operation.PUBLISH, ResourceKind.SUBJECT, _subject), _INBOX),
    "SetCursor": (_SET_CURSOR,),
    "FetchCursor": (Need(Operation.READ, ResourceKind.CURSOR, _cursor),),
    "JoinConsumerGroup": (
        Need(Operation.JOIN, ResourceKind.GROUP, _group),
        Need(Operation.READ, ResourceKind.STREAM, lambda request: request.streams),
    ),
    "LeaveConsumerGroup": _JOIN,
    "FetchConsumerGroupAssignments": _JOIN,
    "ReportConsumerGroupCoordinator": _JOIN,
}
_DATA: Final[Mapping[str, Needs]] = {
    "CreateStream": tuple(_within("stream", need) for need in _CREATE),
    "AlterStream": _stream_needs(Operation.ALTER, _name),
    "InitPublisher": _stream_needs(Operation.PUBLISH),
    "ListStreams": KNOWN,
    "PartitionBounds": _stream_needs(Operation.DESCRIBE),
    "AwaitNews": KNOWN,
    "FetchBatches": _stream_needs(Operation.READ),
    "PublishBatch": _stream_needs(Operation.PUBLISH),
    "SetCursor": (_within("cursor", _SET_CURSOR),),
    "WhoAmI": OPEN,
}
_ADMIN: Final[Mapping[str, Needs]] = {
    "Identity": OPEN,
    "Bootstrap": _CHANGE,
    "ClusterStatus": _VIEW,
    "ListBrokers": _VIEW,
    "BrokerStatus": _VIEW,
    "ListPartitions": _VIEW,
    "CheckRestart": _VIEW,
    "VerifyRestart": _CHANGE,
    "CordonBroker": _CHANGE,
    "UncordonBroker": _CHANGE,
    "RemoveBroker": _CHANGE,
    "TransferLeadership": _CHANGE,
    "ElectPreferred": _CHANGE,
    "ElectUnclean": _CHANGE,
    "TransferMetadataLeadership": _CHANGE,
    "AddLearner": _CHANGE,
    "PromoteLearner": _CHANGE,
    "RemoveMember": _CHANGE,
    "StartReassignment": _CHANGE,
    "ListReassignments": _VIEW,
    "CancelReassignment": _CHANGE,
    "Retire": _CHANGE,
    "SetFeatureLevel": _CHANGE,
    "SetCatchUpRate": _CHANGE,
    "SetStreamOwner": _CHANGE,
    "ListSettings": _VIEW,
    "ReloadSettings": _CHANGE,
    "KeysStatus": _VIEW,
    "RotateKeys": _CHANGE,
    "RewrapKeys": _CHANGE,
}
_GROUPS: Final[Mapping[str, Needs]] = {
    # A pattern is the name of no stream: only a rule that covers all names it matches has it too.
    "Heartbeat": (
        Need(Operation.JOIN, ResourceKind.GROUP, _own_group),
        Need(Operation.READ, ResourceKind.STREAM, lambda request: request.streams, may_match=True),
    ),
    "Leave": _own_group_needs(Operation.JOIN),
    "CommitPositions": (
        Need(Operation.JOIN, ResourceKind.GROUP, _own_group),
        Need(Operation.READ, ResourceKind.STREAM, _positioned),
    ),
    "ListGroups": _VIEW,
    "DescribeGroup": _own_group_needs(Operation.DESCRIBE),
    "DeleteGroup": _own_group_needs(Operation.DELETE),
    "EvictMember": _own_group_needs(Operation.DELETE),
    # Offsets and times of a stream, but nothing of its messages.
    "GroupLag": (
        Need(Operation.DESCRIBE, ResourceKind.GROUP, _own_group),
        Need(Operation.DESCRIBE, ResourceKind.STREAM, _stream),
    ),
    "ResetPositions": (
        Need(Operation.DELETE, ResourceKind.GROUP, _own_group),
        Need(
            Operation.DESCRIBE,
            ResourceKind.STREAM,
            lambda request: dict.fromkeys(one.stream for one in request.positions),
        ),
    ),
}
_TOKENS: Final[Mapping[str, Needs]] = {
    # Who makes a token chooses whom it acts for.
    "CreateToken": _GRANT,
    "ListTokens": _GRANT,
    "RevokeToken": _GRANT,
}
_QUOTAS: Final[Mapping[str, Needs]] = {"SetQuota": _CHANGE, "ListQuotas": _VIEW}
_ACCESS: Final[Mapping[str, Needs]] = {
    "ListRules": _VIEW,
    "ChangeRules": _GRANT,
    "DisableAccess": _GRANT,
    "CheckAccess": _VIEW,
    "ConvertPolicy": _VIEW,
    "NatsPermissions": _VIEW,
}
_SERVICES: Final[Mapping[str, Mapping[str, Needs]]] = {
    "proto.API": _API,
    "liftbridge.ext.v1.Data": _DATA,
    "liftbridge.ext.v1.Admin": _ADMIN,
    "liftbridge.ext.v1.Groups": _GROUPS,
    "liftbridge.ext.v1.Access": _ACCESS,
    "liftbridge.ext.v1.Tokens": _TOKENS,
    "liftbridge.ext.v1.Quotas": _QUOTAS,
    # Probes have no identity, and learn only whether the broker serves.
    "grpc.health.v1.Health": {"Check": OPEN, "List": OPEN, "Watch": OPEN},
    "grpc.reflection.v1.ServerReflection": {"ServerReflectionInfo": KNOWN},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": KNOWN},
}
NEEDS: Final[Mapping[str, Needs]] = {
    f"/{service}/{name}": needs
    for service, methods in _SERVICES.items()
    for name, needs in methods.items()
}
"""Needs by the path of the method."""
