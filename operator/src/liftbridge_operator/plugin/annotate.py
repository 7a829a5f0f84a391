"""`approve`, `restart` and `drain`: annotations that request something from the operator.

Each write requires the resource to be unchanged since it was read, so that two users, or a user and
a change of the specification, do not undo each other. After a conflict the change is decided again
on the current resource.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.desired import LISTED_MAX, listed
from liftbridge_operator.cluster.observing.objects import Json, annotation_of, uid_of
from liftbridge_operator.cluster.observing.times import exact_text
from liftbridge_operator.kube.errors import ConflictError, NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.plugin.describe import KUBECTL, broker_names, is_approved, plan_of
from liftbridge_operator.plugin.exits import PluginError
from liftbridge_operator.plugin.lookup import (
    brokers_of,
    is_current,
    name_of,
    namespace_of,
    place_of,
    staleness,
)
from liftbridge_operator.plugin.port import Access
from liftbridge_operator.plugin.tables import counted

ATTEMPTS_MAX: Final = 8

Missing: TypeAlias = Callable[[Json], str]
"""Describes what a resource lacks until a request is carried out; empty for nothing."""

Annotations: TypeAlias = Mapping[str, str | None]
"""Annotations to write; None removes one. Empty if nothing needs to change."""


async def write(access: Access, resource: Object, change: Callable[[Json], Annotations]) -> Object:
    """Write annotations that follow from the resource.

    Args:
        access: Access to the API server.
        resource: The resource as read.
        change: Returns what to write, and is called again after a conflict; raises if the change is
            not allowed.

    Returns:
        The resource after the write.

    Raises:
        PluginError: The change is not allowed, or the resource was deleted, recreated, or changes
            too fast.
    """
    namespace, name, uid = namespace_of(resource), name_of(resource), uid_of(resource)
    for _ in range(ATTEMPTS_MAX):
        wanted = change(resource)
        if not wanted:
            return resource
        try:
            return await access.patch(
                CLUSTERS,
                namespace,
                name,
                {"metadata": {"annotations": dict(wanted)}},
                preconditions=Preconditions.of(resource),
            )
        except ConflictError:
            resource = await _again(access, namespace, name)
        except NotFoundError as error:
            raise PluginError(f"{namespace}/{name} was deleted in the meantime") from error
        if uid_of(resource) != uid:
            raise PluginError(f"{namespace}/{name} was deleted and recreated in the meantime")
    raise PluginError(f"{namespace}/{name} changes too fast to be updated; try again")


async def _again(access: Access, namespace: str, name: str) -> Object:
    try:
        return await access.get(CLUSTERS, namespace, name)
    except NotFoundError as error:
        raise PluginError(f"{namespace}/{name} was deleted in the meantime") from error


# -- approve ----------------------------------------------------------------------------------


def check_approvable(resource: Json, shown: str) -> None:
    """Refuse to approve anything but the plan that was shown, of the present specification.

    Raises:
        PluginError: There is no plan, it is a different one, or it is for an earlier specification.
    """
    stale, made = staleness(resource), plan_of(resource)
    place = place_of(resource)
    if stale:
        raise PluginError(f"{place}: {stale}; wait for its plan")
    if not made:
        raise PluginError(f"{place} has no plan to approve: there is nothing to do")
    if shown and made.get("hash") != shown:
        raise PluginError(
            f"{place}: the plan is now {made.get('hash')}, not {shown}; review it: "
            f"{KUBECTL} plan {name_of(resource)}"
        )


def approval(shown: str) -> Callable[[Json], Annotations]:
    """Return the change that approves the plan with this hash."""

    def change(resource: Json) -> Annotations:
        check_approvable(resource, shown)
        is_written = annotation_of(resource, marks.APPROVE) == shown
        return {} if is_written or is_approved(plan_of(resource)) else {marks.APPROVE: shown}

    return change


# -- restart ----------------------------------------------------------------------------------


def check_runs(resource: Json) -> None:
    """Refuse a request that the operator would not carry out.

    Raises:
        PluginError: The cluster is suspended, paused, or being deleted.
    """
    spec, place = resource.get("spec") or {}, place_of(resource)
    if (resource.get("metadata") or {}).get("deletionTimestamp"):
        raise PluginError(f"{place} is being deleted")
    if spec.get("suspend"):
        raise PluginError(f"{place} is suspended (spec.suspend): no broker runs")
    if spec.get("paused"):
        raise PluginError(f"{place} is paused (spec.paused): the operator changes nothing")


def restart_of_all(now_ms: int) -> tuple[str, Callable[[Json], Annotations]]:
    """Return the stamp of a restart of all brokers, unlike any earlier one, and the change."""
    stamp = exact_text(now_ms)

    def change(resource: Json) -> Annotations:
        check_runs(resource)
        return {names.RESTART: stamp}

    return stamp, change


def pods_of(resource: Json, brokers: Sequence[str]) -> dict[str, str]:
    """Return the UIDs of the pods of brokers, by name.

    Raises:
        PluginError: There is no such broker, or no pod of it.
    """
    known, found = brokers_of(resource), {}
    for name in brokers:
        check_known(resource, name)
        uid = (known.get(name) or {}).get("podUID")
        if not uid:
            raise PluginError(f"{name} has no pod, so there is nothing to restart")
        found[name] = str(uid)
    return found


def restart_of(uids: Sequence[str]) -> Callable[[Json], Annotations]:
    """Return the change that restarts single pods; it drops pods that no longer exist."""

    def change(resource: Json) -> Annotations:
        check_runs(resource)
        present = {str(one.get("podUID")) for one in brokers_of(resource).values()}
        before = listed(annotation_of(resource, marks.RESTART_PODS))
        wanted = dict.fromkeys([*(one for one in before if one in present), *uids])
        return _list_of(marks.RESTART_PODS, before, tuple(wanted))

    return change


# -- drain ------------------------------------------------------------------------------------


def check_known(resource: Json, broker: str) -> None:
    """Refuse a broker that the cluster does not have.

    Raises:
        PluginError: It has none of this name.
    """
    known = broker_names(resource)
    if broker not in known:
        there = ", ".join(known) or "none"
        raise PluginError(f"{place_of(resource)} has no broker {broker}; its brokers: {there}")


def drain_of(brokers: Sequence[str], *, is_over: bool) -> Callable[[Json], Annotations]:
    """Return the change that drains brokers, or ends their drain."""

    def change(resource: Json) -> Annotations:
        before = listed(annotation_of(resource, marks.DRAIN))
        if is_over:
            return _list_of(marks.DRAIN, before, tuple(one for one in before if one not in brokers))
        check_runs(resource)
        for name in brokers:
            check_known(resource, name)
        known = broker_names(resource)
        wanted = tuple(dict.fromkeys([*(one for one in before if one in known), *brokers]))
        if set(known) <= set(wanted):
            raise PluginError(
                f"{place_of(resource)}: all brokers would be drained, and none would be left to "
                f"lead; already drained: {', '.join(before) or 'none'}"
            )
        return _list_of(marks.DRAIN, before, wanted)

    return change


def _list_of(mark: str, before: Sequence[str], wanted: Sequence[str]) -> Annotations:
    if tuple(before) == tuple(wanted):
        return {}
    if len(wanted) > LISTED_MAX:
        raise PluginError(f"{mark} would list {len(wanted)} entries, more than {LISTED_MAX}")
    return {mark: ",".join(wanted) or None}


# -- progress ---------------------------------------------------------------------------------


def missing_of_restart(resource: Json, stamp: str) -> str:
    """Describe what is missing until all brokers are restarted; empty for nothing."""
    status = resource.get("status") or {}
    if status.get("lastRestartRequest") == stamp:
        return (
            "" if is_current(resource) and _is_ready(resource) else "the cluster is not ready yet"
        )
    made, under_way = plan_of(resource), status.get("disruption") or {}
    steps = made.get("stepCount")
    if under_way:
        return f"{under_way.get('pod')} is being restarted, {steps or 0} to go"
    return f"{steps} to go" if steps else "the operator has not planned it yet"


def missing_of_pods(resource: Json, uids: Mapping[str, str]) -> str:
    """Describe what is missing until these pods are restarted; empty for nothing."""
    known = brokers_of(resource)
    same = [name for name, uid in uids.items() if (known.get(name) or {}).get("podUID") == uid]
    if same:
        return f"{', '.join(same)} not restarted yet"
    away = [name for name in uids if not (known.get(name) or {}).get("ready")]
    if away:
        return f"{', '.join(away)} not ready yet"
    under_way = (resource.get("status") or {}).get("disruption") or {}
    return f"{under_way.get('pod')} is not yet proven to be back" if under_way else ""


def missing_of_drain(resource: Json, brokers: Sequence[str]) -> str:
    """Describe what drained brokers still lead; empty for nothing."""
    known = brokers_of(resource)
    leader = (resource.get("status") or {}).get("metadataLeader")
    found = []
    for name in brokers:
        one = known.get(name) or {}
        if not one.get("cordoned"):
            found.append(f"{name} is not cordoned yet")
        elif one.get("leaders"):
            found.append(f"{name} still leads {counted(one['leaders'], 'partition')}")
        elif name == leader:
            found.append(f"{name} still leads the metadata group")
    return "; ".join(found)


def missing_of_return(resource: Json, brokers: Sequence[str]) -> str:
    """Name the brokers that are still cordoned after a drain; empty for none."""
    known = brokers_of(resource)
    cordoned = [name for name in brokers if (known.get(name) or {}).get("cordoned")]
    return f"{', '.join(cordoned)} still cordoned" if cordoned else ""


def _is_ready(resource: Json) -> bool:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )
