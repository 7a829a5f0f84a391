"""Access rules: a principal, a resource by its name, operations, and whether they are allowed.

A rule names principals and resources as Kafka's do (KIP-11, KIP-290): a deny wins over every allow,
and what no rule allows is refused. Rules live in the metadata of the cluster; a policy file of the
original is read as rules, too.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import (
    CURSOR_ID_BYTES_MAX,
    NAME_BYTES_MAX,
    SUBJECT_BYTES_MAX,
    check_group,
    check_stream_name,
    check_subject,
    has_wildcard,
)

PRINCIPAL_BYTES_MAX: Final = 512
"""Longest name of a principal or group in a rule, in bytes of UTF-8."""

EVERYONE: Final = "*"
"""Principal of rules for all callers, anonymous ones included."""

CLUSTER_NAME: Final = "cluster"
"""Name of the only resource of kind `CLUSTER`."""


class ResourceKind(IntEnum):
    """Kind of a resource; values are those of `metadata.proto` and `access.proto`."""

    STREAM = 1
    SUBJECT = 2
    GROUP = 3
    CURSOR = 4
    CLUSTER = 5


class NameMatch(IntEnum):
    """How a rule names resources; values are those of `metadata.proto` and `access.proto`."""

    EXACT = 1
    PREFIX = 2
    PATTERN = 3


class Operation(IntEnum):
    """What a caller does with a resource; values are bits of `AccessRule.operations`.

    `ALL` is a bit of its own, so that it also stands for operations of later versions.
    """

    CREATE = 1 << 0
    DELETE = 1 << 1
    ALTER = 1 << 2
    PAUSE = 1 << 3
    SET_READONLY = 1 << 4
    DESCRIBE = 1 << 5
    PUBLISH = 1 << 6
    READ = 1 << 7
    ATTACH = 1 << 8
    JOIN = 1 << 9
    SET = 1 << 10
    GRANT = 1 << 11
    ALL = 1 << 31


OPERATIONS: Final[Mapping[ResourceKind, tuple[Operation, ...]]] = {
    ResourceKind.STREAM: (
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.PAUSE,
        Operation.SET_READONLY,
        Operation.DESCRIBE,
        Operation.PUBLISH,
        Operation.READ,
    ),
    ResourceKind.SUBJECT: (Operation.ATTACH, Operation.PUBLISH),
    ResourceKind.GROUP: (Operation.JOIN, Operation.DESCRIBE, Operation.DELETE),
    ResourceKind.CURSOR: (Operation.SET, Operation.READ),
    ResourceKind.CLUSTER: (Operation.DESCRIBE, Operation.ALTER, Operation.GRANT),
}
"""Operations of each kind of resource, besides `ALL`."""

MASKS: Final[Mapping[ResourceKind, int]] = {
    kind: sum(operations) for kind, operations in OPERATIONS.items()
}
"""The same as bits."""

CURSOR_BYTES_MAX: Final = NAME_BYTES_MAX + 1 + CURSOR_ID_BYTES_MAX
_BYTES_MAX: Final[Mapping[ResourceKind, int]] = {
    ResourceKind.STREAM: NAME_BYTES_MAX,
    ResourceKind.SUBJECT: SUBJECT_BYTES_MAX,
    ResourceKind.GROUP: NAME_BYTES_MAX,
    ResourceKind.CURSOR: CURSOR_BYTES_MAX,
    ResourceKind.CLUSTER: len(CLUSTER_NAME),
}


class RuleKey(NamedTuple):
    """What identifies a rule: two rules with the same key are one, with both their operations."""

    principal: str
    is_group: bool
    kind: ResourceKind
    match: NameMatch
    name: str
    is_denied: bool


class AccessRule(NamedTuple):
    """A rule.

    Attributes:
        principal: Name of a principal or group. A `*` at its end stands for any end, and alone for
            everyone.
        is_group: Whether it names a group.
        kind: Kind of the resource.
        match: How `name` names resources.
        name: Name, first characters of the names, or a pattern in the syntax of NATS wildcards. A
            cursor is named `STREAM/CURSOR`.
        is_denied: Whether the operations are denied.
        operations: Bits of `Operation`; 0 for none.
    """

    principal: str
    is_group: bool
    kind: ResourceKind
    match: NameMatch
    name: str
    is_denied: bool
    operations: int

    @property
    def key(self) -> RuleKey:
        """What identifies it."""
        return RuleKey(*self[:-1])


def cursor_name(stream: str, cursor_id: str) -> str:
    """Return the name of a cursor as a resource; names of streams with `/` are not confused.

    A rule for `orders/` matches the cursors of the stream `orders`, and those of streams whose name
    begins with `orders/`.
    """
    return f"{stream}/{cursor_id}"


def super_rules(principal: str) -> tuple[AccessRule, ...]:
    """Return the rules that allow a principal everything."""
    every = dict.fromkeys(ResourceKind, (NameMatch.PREFIX, ""))
    every[ResourceKind.SUBJECT] = NameMatch.PATTERN, ">"
    every[ResourceKind.CLUSTER] = NameMatch.EXACT, CLUSTER_NAME
    return tuple(
        AccessRule(
            principal=principal,
            is_group=False,
            kind=kind,
            match=match,
            name=name,
            is_denied=False,
            operations=int(Operation.ALL),
        )
        for kind, (match, name) in every.items()
    )


def operations_of(kind: ResourceKind, operations: int) -> int:
    """Return the bits of the single operations that a rule for a kind of resource names."""
    mask = MASKS[kind]
    return mask if operations & Operation.ALL else operations & mask


def check_principal(principal: str) -> None:
    """Refuse the name of a principal or group that is empty, too long or unprintable.

    Raises:
        InvalidRequestError: Names the value and the rule.
    """
    length = len(principal.encode())
    if not 1 <= length <= PRINCIPAL_BYTES_MAX or not principal.isprintable():
        raise InvalidRequestError(
            f"principal {principal[:80]!r}: must be 1 to {PRINCIPAL_BYTES_MAX} bytes of printable "
            "text"
        )


def check_rule(rule: AccessRule) -> None:
    """Refuse a rule that no resource or operation can meet, or that is too long.

    Raises:
        InvalidRequestError: Names the value, the rule and the place.
    """
    check_principal(rule.principal)
    mask = MASKS[rule.kind]
    if not rule.operations or rule.operations & ~(mask | Operation.ALL):
        named = ", ".join(operation_name(one) for one in OPERATIONS[rule.kind])
        raise InvalidRequestError(
            f"operations of a rule for a {rule.kind.name.lower()}: must be some of {named}, or all"
        )
    length = len(rule.name.encode())
    if length > _BYTES_MAX[rule.kind] or not rule.name.isprintable():
        raise InvalidRequestError(
            f"{rule.kind.name.lower()} {rule.name[:80]!r}: must be at most "
            f"{_BYTES_MAX[rule.kind]} bytes of printable text"
        )
    if rule.match is NameMatch.PATTERN:
        _check_pattern(rule.kind, rule.name)
    elif rule.match is NameMatch.PREFIX:
        _check_prefix(rule.kind, rule.name)
    else:
        _CHECKS[rule.kind](rule.name)


def _check_pattern(kind: ResourceKind, name: str) -> None:
    if kind is ResourceKind.CLUSTER:
        _check_cluster_name(name)
    check_subject(name)
    if not has_wildcard(name):
        raise InvalidRequestError(
            f"pattern {name[:80]!r}: has no wildcard '*' or '>'; name it exactly"
        )
    if name.endswith("*") and kind is not ResourceKind.SUBJECT:
        # Written down, it would be read as a prefix, which may name more.
        raise InvalidRequestError(
            f"pattern {name[:80]!r}: ends in '*'; name a prefix, or a pattern with '>'"
        )


def _check_prefix(kind: ResourceKind, name: str) -> None:
    if kind is ResourceKind.CLUSTER:
        raise InvalidRequestError(f"cluster {name[:80]!r}: must be named exactly")
    if kind is ResourceKind.SUBJECT:
        raise InvalidRequestError(
            f"prefix {name[:80]!r}: subjects are named exactly, or by a pattern that ends in '.>'"
        )
    if any(character in name for character in "*>"):
        raise InvalidRequestError(f"prefix {name[:80]!r}: must not contain '*' or '>'")


def _check_cluster_name(name: str) -> None:
    if name != CLUSTER_NAME:
        raise InvalidRequestError(f"cluster {name[:80]!r}: must be {CLUSTER_NAME!r}")


def operation_name(operation: Operation) -> str:
    """Return the name of an operation for people."""
    return str(operation.name).lower().replace("_", "-")


def text_of(rule: AccessRule) -> str:
    """Return a rule as one line for people and logs."""
    effect = "deny" if rule.is_denied else "allow"
    whose = "group " if rule.is_group else ""
    names = [one for one in (*OPERATIONS[rule.kind], Operation.ALL) if rule.operations & one]
    operations = ",".join(map(operation_name, names))
    kind = rule.kind.name.lower()
    end = "*" if rule.match is NameMatch.PREFIX else ""
    return f"{effect} {whose}{rule.principal} {operations} {kind}:{rule.name}{end}"


def _check_subject_name(name: str) -> None:
    check_subject(name)
    if has_wildcard(name):
        raise InvalidRequestError(f"subject {name[:80]!r}: has wildcards; name it as a pattern")


def _check_group_name(name: str) -> None:
    if not name:
        raise InvalidRequestError("group '': must not be empty")
    check_group(name)


def _check_cursor_name(name: str) -> None:
    stream, slash, cursor_id = name.rpartition("/")
    if not slash or not stream or not cursor_id:
        raise InvalidRequestError(f"cursor {name[:80]!r}: must be STREAM/CURSOR")


_CHECKS: Final[Mapping[ResourceKind, Callable[[str], None]]] = {
    ResourceKind.STREAM: check_stream_name,
    ResourceKind.SUBJECT: _check_subject_name,
    ResourceKind.GROUP: _check_group_name,
    ResourceKind.CURSOR: _check_cursor_name,
    ResourceKind.CLUSTER: _check_cluster_name,
}
