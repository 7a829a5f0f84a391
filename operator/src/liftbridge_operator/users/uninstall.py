"""Prepare the removal of a release: no resource may wait for an operator that no longer runs.

The operator is stopped first and its Lease acquired, so that no process adds a finalizer again.
Then the operator's finalizer is removed from each `Stream` and `LiftbridgeUser`, and nothing else
changes. Messages and access stay at the brokers, also those of resources that are being deleted: an
uninstall does not request their end. Namespaces of another release are left alone
(`process.claims`); a release for some namespaces has no such Job.
"""

import asyncio
from typing import Final

import structlog

from liftbridge_operator.kube.errors import ConflictError, NotFoundError, UnavailableError
from liftbridge_operator.kube.finalizers import has_finalizer, write_finalizer
from liftbridge_operator.kube.kinds import DEPLOYMENTS, STREAMS, USERS, Kind
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.process.claims import AllClaims
from liftbridge_operator.process.clock import Clock
from liftbridge_operator.process.lease import Lease
from liftbridge_operator.streams import marks as stream_marks
from liftbridge_operator.users import marks as user_marks

LEASE_S: Final = 120.0
"""Time in which the operator and its Lease have to end."""

ATTEMPTS_MAX: Final = 5

FINALIZERS: Final = {STREAMS: stream_marks.FINALIZER, USERS: user_marks.FINALIZER}

log = structlog.get_logger("liftbridge.operator")


async def uninstall(kube: Kube, lease: Lease, *, namespace: str, name: str, clock: Clock) -> int:
    """Stop the operator, and remove its finalizer from all of its streams and users.

    Args:
        kube: The API server; writes of resources check the lease.
        lease: Lease of the operator, under this process' identity.
        namespace: Namespace of the operator.
        name: Name of its Deployment.
        clock: Time.

    Returns:
        Number of resources that had the finalizer.

    Raises:
        UnavailableError: The operator does not end, or the API server does not answer.
    """
    await _stop(kube, namespace, name)
    try:
        async with asyncio.timeout(LEASE_S):
            await lease.acquire()
    except TimeoutError as error:
        text = f"lease {namespace}/{name} is still held after {LEASE_S:g} s: the operator runs"
        raise UnavailableError(text) from error
    held = asyncio.get_running_loop().create_task(lease.hold())
    try:
        count = 0
        claims = AllClaims(kube, namespace=namespace, name=name, clock=clock, on_gain=lambda: None)
        for kind, one in await _of_nobody_else(kube, claims):
            count += await _let_go(kube, kind, one)
        log.info("resources_let_go", count=count)
        return count
    finally:
        held.cancel()


async def _stop(kube: Kube, namespace: str, name: str) -> None:
    """Scale the operator's Deployment to 0."""
    try:
        live = await kube.get(DEPLOYMENTS, namespace, name)
        await kube.patch(
            DEPLOYMENTS,
            namespace,
            name,
            {"spec": {"replicas": 0}},
            preconditions=Preconditions(live["metadata"]["uid"]),
            subresource="scale",
        )
    except NotFoundError:
        log.info("operator_not_there", namespace=namespace, name=name)


async def _of_nobody_else(kube: Kube, claims: AllClaims) -> list[tuple[Kind, Object]]:
    """List streams and users of all namespaces except those of another release."""
    await claims.settle()
    if claims.rivals:
        log.info("resources_left", release=claims.rival)
        return []
    found = [(STREAMS, one) for one in (await kube.list_all(STREAMS, "")).items]
    found += [(USERS, one) for one in (await kube.list_all(USERS, "")).items]
    return [one for one in found if not claims.is_left(one[1]["metadata"]["namespace"])]


async def _let_go(kube: Kube, kind: Kind, resource: Object) -> bool:
    """Remove the finalizer from a resource; return whether it had it.

    Raises:
        ConflictError: The resource changed during each of `ATTEMPTS_MAX` attempts.
    """
    namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if not has_finalizer(resource, FINALIZERS[kind]):
            return False
        try:
            await write_finalizer(kube, kind, resource, FINALIZERS[kind], is_added=False)
        except NotFoundError:
            return False
        except ConflictError:
            if attempt == ATTEMPTS_MAX:
                raise
            try:
                resource = await kube.get(kind, namespace, name)
            except NotFoundError:
                return False
        else:
            return True
    raise AssertionError("unreachable")
