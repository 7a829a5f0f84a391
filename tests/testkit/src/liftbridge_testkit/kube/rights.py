"""Rights of the operator: granted by its roles, used, and denied.

A right is written verb first, with the group after the kind: `get pods`, `patch leases.apps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from liftbridge_testkit.kube.audit import Request

AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-"
"""Prefix of labels of roles that are for users, not for the operator."""

EXECUTORS = "liftbridge.io/role"
"""Label of the role for drivers of pipelines, which the operator grants but does not have."""

BINDS = "bind clusterroles.rbac.authorization.k8s.io"
"""Right that creating a RoleBinding also requires; the audit log does not show its use."""

BINDINGS = "rolebindings.rbac.authorization.k8s.io"
CREATED = 201

NAMESPACES = "namespaces"


class Rights(NamedTuple):
    """Rights of an account, and their use in a period.

    Attributes:
        granted: Rights that its roles grant.
        used: Requests that succeeded, or were refused for a reason other than rights.
        denied: Requests without the right.
    """

    granted: frozenset[str]
    used: frozenset[str]
    denied: frozenset[str]

    @property
    def unused(self) -> list[str]:
        """Granted rights that were not used."""
        return sorted(self.granted - self.used)


def granted(roles: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the rights that Roles and ClusterRoles grant, except roles for others."""
    return frozenset(
        f"{verb} {_qualified(resource, group)}"
        for role in roles
        if not _is_for_others(role["metadata"].get("labels", {}))
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def _is_for_others(labels: Iterable[str]) -> bool:
    return any(label.startswith(AGGREGATED) or label == EXECUTORS for label in labels)


def _qualified(resource: str, group: str) -> str:
    """Return a name as in the audit log: `pods`, `pods/status`, `streams.liftbridge.io/status`."""
    kind, slash, part = resource.partition("/")
    return ".".join(filter(None, [kind, group])) + slash + part


def rights(
    roles: Iterable[dict[str, Any]],
    requests: Iterable[Request],
    user: str,
    since: datetime,
    starts: Sequence[tuple[datetime, datetime]] = (),
) -> Rights:
    """Compare the rights of a user with its requests.

    Args:
        roles: Roles of the user.
        requests: Requests in the audit log.
        user: Name of the user.
        since: Start for denials; a use counts at any time, such as at a start.
        starts: Times at which API servers started. An API server that is not ready yet knows no
            roles and denies everything; only later denials are reported.
    """
    used: set[str] = set()
    denied: set[str] = set()
    ended: set[str] = set()
    for request in requests:
        is_end = (request.verb, request.resource) == ("delete", NAMESPACES) and request.code < 400
        if is_end and request.at >= since:
            ended.add(request.name)
        if request.user == user:
            if not request.is_forbidden:
                used.add(f"{request.verb} {request.resource}")
                if request.verb == "patch" and request.code == CREATED:
                    # An apply of a new object needs both rights.
                    used.add(f"create {request.resource}")
                    used |= {BINDS} if request.resource == BINDINGS else set()
            elif request.namespace in ended:
                continue  # its Roles are deleted with it
            elif request.at >= since and not any(
                begin <= request.at <= end for begin, end in starts
            ):
                denied.add(f"{request.verb} {request.resource}")
    return Rights(granted(roles), frozenset(used), frozenset(denied))
