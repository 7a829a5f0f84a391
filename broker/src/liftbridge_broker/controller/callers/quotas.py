"""Commands about quotas: set, remove."""

from typing import Final

from liftbridge_broker.access.names import NAME_BYTES_MAX, fault_of
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.quotas import (
    EVERY_PRINCIPAL,
    NO_QUOTA,
    OF_PRINCIPALS,
    OF_STREAMS,
    Quota,
    QuotaKey,
    QuotaKind,
    quota_of,
)
from liftbridge_broker.controller.callers.commands import SetQuota
from liftbridge_broker.controller.records import Decision, Done, QuotaChanged
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError, LimitError
from liftbridge_broker.model.subjects import RESERVED_STREAMS

QUOTA_LEVEL: Final = 4
"""Lowest feature level at which there are quotas: older versions cannot read the command."""

QUOTAS_MAX: Final = 10_000
"""Maximum number of quotas of a cluster; each costs about 60 bytes of a snapshot."""

LIMIT_MAX: Final = 2**53
"""Largest limit: beyond it, programs that read JSON numbers as floats would change it."""


def check_level(state: ClusterState) -> None:
    """Refuse commands about quotas that a broker of the cluster could not read.

    Raises:
        FailedPreconditionError: The feature level in force is too low.
    """
    if state.feature_level < QUOTA_LEVEL:  # guard Quota.level
        raise FailedPreconditionError(
            f"quotas need feature level {QUOTA_LEVEL}, and {state.feature_level} is in force: "
            "upgrade all brokers, then raise it"
        )


def set_quota(state: ClusterState, command: SetQuota) -> Decision:
    """Set the limits of a principal or a stream; without any, its quota is removed."""
    check_level(state)
    key, quota = _key_of(command), _quota_of(command)
    if quota == NO_QUOTA:
        return Decision((QuotaChanged(key, None),) if key in state.quotas else (), Done())
    if key not in state.quotas and len(state.quotas) >= QUOTAS_MAX:
        raise LimitError(f"{QUOTAS_MAX} quotas exist, which is the limit: remove unused ones")
    return Decision((QuotaChanged(key, quota),), Done())


def check_streams(state: ClusterState, principal: str) -> None:
    """Refuse a stream of a principal that has created as many as its quota allows.

    Raises:
        LimitError: It has no more to create.
    """
    most = quota_of(state.quotas, principal).streams if principal else 0
    if not most:
        return
    count = sum(stream.created_by == principal for stream in state.streams.values())
    if count >= most:  # guard Quota.streams
        raise LimitError(
            f"quota of principal {principal} exceeded: {count} streams exist that it created, "
            f"at most {most} are allowed; delete one or get a larger quota"
        )


def _key_of(command: SetQuota) -> QuotaKey:
    kinds = [kind for kind in QuotaKind if kind == command.kind]
    if not kinds:
        raise InvalidRequestError(f"kind {command.kind[:40]!r} of a quota: principal or stream")
    name = command.name
    if kinds == [QuotaKind.PRINCIPAL] and name != EVERY_PRINCIPAL:
        fault = fault_of(Principal(name))
        if fault:
            raise InvalidRequestError(f"Invalid quota, its principal {fault}")
    if kinds == [QuotaKind.STREAM] and not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"Invalid quota, the name of its stream is not 1 to {NAME_BYTES_MAX} bytes long"
        )
    if kinds == [QuotaKind.STREAM] and name in RESERVED_STREAMS:
        raise InvalidRequestError(f"Invalid quota, stream {name} is reserved for brokers")
    return QuotaKey(kinds[0], name)


def _quota_of(command: SetQuota) -> Quota:
    quota = Quota(*(getattr(command, limit) for limit in Quota._fields))
    is_principal = command.kind == QuotaKind.PRINCIPAL
    for limit, value in quota._asdict().items():
        if not 0 <= value <= LIMIT_MAX:
            raise InvalidRequestError(f"{limit} {value} of a quota: must be 0 to {LIMIT_MAX}")
        if value and limit in (OF_STREAMS if is_principal else OF_PRINCIPALS):
            raise InvalidRequestError(f"{limit} {value}: a {command.kind} has no such limit")
    return quota
