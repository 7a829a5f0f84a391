"""Values of access rules: who may do what. See `AdminClient.access`."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, cast, get_args

from liftbridge_client.errors import UsageError
from liftbridge_proto.ext.v1 import access_pb2 as pb

ResourceKind = Literal["stream", "subject", "group", "cursor", "cluster"]
NameMatch = Literal["exact", "prefix", "pattern"]
Operation = Literal[
    "create",
    "delete",
    "alter",
    "describe",
    "pause",
    "set-readonly",
    "publish",
    "read",
    "attach",
    "join",
    "set",
    "grant",
    "all",
]

CLUSTER: Final = "cluster"
_KIND: Final = "RESOURCE_KIND_"
_MATCH: Final = "NAME_MATCH_"
_OPERATION: Final = "OPERATION_"


class Resource(NamedTuple):
    """Resources that a rule names.

    Attributes:
        kind: Kind of the resources.
        name: Name, its first characters, or a pattern with NATS wildcards. A cursor is named
            `STREAM/CURSOR`, the cluster `cluster`.
        match: Which of these `name` is.
    """

    kind: ResourceKind
    name: str
    match: NameMatch = "exact"

    def __str__(self) -> str:
        """Return the text that `resource_of` reads."""
        if self.kind == CLUSTER:
            return CLUSTER
        return f"{self.kind}:{self.name}{'*' if self.match == 'prefix' else ''}"


class AccessRule(NamedTuple):
    """A rule: operations that a principal may do, or may not, on resources.

    Attributes:
        principal: Name of a principal or group; a `*` at its end stands for any end, and alone for
            everyone, anonymous callers included.
        resource: The resources.
        operations: The operations; empty in the answer to a change if the rule was removed.
        is_denied: Whether they are denied, which wins over every rule that allows them.
        is_group: Whether `principal` names a group.
    """

    principal: str
    resource: Resource
    operations: Sequence[Operation]
    is_denied: bool = False
    is_group: bool = False


class AccessRules(NamedTuple):
    """All rules, whether they are in force in the cluster, and on the broker that answered."""

    rules: Sequence[AccessRule]
    is_on: bool
    is_enforced: bool


class Access(NamedTuple):
    """Whether something is allowed, and the rules that name it, up to 100."""

    is_allowed: bool
    rules: Sequence[AccessRule]


class NatsPermissions(NamedTuple):
    """Subjects that a principal may publish on and subscribe to, and denied ones, which win."""

    publish_allow: Sequence[str]
    publish_deny: Sequence[str]
    subscribe_allow: Sequence[str]
    subscribe_deny: Sequence[str]


def resource_of(text: str) -> Resource:
    """Parse resources: `KIND:NAME`, or `cluster`.

    A subject with NATS wildcards is a pattern. Of the others, a name that ends in `*` is a prefix,
    and one with other wildcards a pattern.

    Raises:
        UsageError: The text has another form.
    """
    if text == CLUSTER:
        return Resource("cluster", CLUSTER)
    kind, colon, name = text.partition(":")
    if not colon or not name or kind not in get_args(ResourceKind) or kind == CLUSTER:
        kinds = ", ".join(f"{one}:NAME" for one in get_args(ResourceKind)[:-1])
        raise UsageError(f"resource {text!r}: must be {kinds} or cluster")
    known = cast("ResourceKind", kind)
    if kind != "subject" and name.endswith("*"):
        return Resource(known, name[:-1], "prefix")
    return Resource(known, name, "pattern" if _has_wildcard(name) else "exact")


def _has_wildcard(name: str) -> bool:
    tokens = name.split(".")
    return "*" in tokens or tokens[-1] == ">"


def message_of(rule: AccessRule) -> pb.AccessRule:
    """Convert a rule to its message on the wire.

    Raises:
        UsageError: A kind, match or operation is unknown.
    """
    try:
        return pb.AccessRule(
            principal=rule.principal,
            is_group=rule.is_group,
            kind=kind_name(rule.resource.kind),
            match=_MATCH + rule.resource.match.upper(),
            name=rule.resource.name,
            is_denied=rule.is_denied,
            operations=map(operation_name, rule.operations),
        )
    except ValueError as error:
        raise UsageError(f"rule: {error}") from error


def kind_name(kind: ResourceKind) -> str:
    """Return the name of a kind of resource on the wire."""
    return _KIND + kind.upper()


def operation_name(operation: Operation) -> str:
    """Return the name of an operation on the wire."""
    return _OPERATION + operation.upper().replace("-", "_")


def rules_of(messages: Iterable[pb.AccessRule]) -> list[AccessRule]:
    """Convert rules from their messages; operations of later versions have their numbers."""
    return [
        AccessRule(
            message.principal,
            Resource(
                cast("ResourceKind", _word(pb.ResourceKind.items(), message.kind, _KIND)),
                message.name,
                cast("NameMatch", _word(pb.NameMatch.items(), message.match, _MATCH)),
            ),
            [
                cast("Operation", _word(pb.Operation.items(), operation, _OPERATION))
                for operation in message.operations
            ],
            message.is_denied,
            message.is_group,
        )
        for message in messages
    ]


def _word(items: Iterable[tuple[str, int]], value: int, prefix: str) -> str:
    names = (name for name, number in items if number == value)
    return next(names, f"{prefix}{value}").removeprefix(prefix).lower().replace("_", "-")
