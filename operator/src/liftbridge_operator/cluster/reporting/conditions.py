"""Conditions of a cluster: the reason of each, with the texts of the catalogue.

Every condition is computed from the observation, never from its former value; an unknown state is
Unknown, never the former one. `Stalled` and `Progressing` are never True together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from liftbridge_operator.cluster.observing.times import moment_text, since_text
from liftbridge_operator.cluster.planning import plan
from liftbridge_operator.cluster.planning.refusals import REFUSALS
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_operator.cluster.reporting.account import Account, filled, listed
from liftbridge_operator.model.catalogue.load import Presence, load_catalogue
from liftbridge_operator.model.cluster import CLUSTER_KIND

CERTIFICATE_LEFT_MS: Final = 3_600_000
"""Minimum remaining validity of certificates at a restart, enough for a whole outage."""

Found = tuple[str, Mapping[str, object]]
"""A reason, and values of its text that override the general ones."""


def conditions(account: Account, before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compute all conditions, in the order of the catalogue.

    Args:
        account: Inputs of the status.
        before: The present status of the resource, for times.
    """
    known = {condition.get("type"): condition for condition in before.get("conditions") or ()}
    found = []
    for spec in load_catalogue().of_resource(CLUSTER_KIND):
        reason, values = _RULES[spec.type](account)
        if not reason and spec.presence is Presence.WHEN_TRUE:
            continue
        entry = spec.reasons[reason]
        own = {**account.values, **values}
        made = {
            "type": spec.type,
            "status": entry.status,
            "observedGeneration": account.status.generation,
            "reason": reason,
            "message": entry.text.fill(filled(own, entry.text.fields)),
        }
        found.append(_timed(made, known.get(spec.type), account.seen.now_ms))
    return found


def unread(
    before: Mapping[str, Any], message: str, *, generation: int, now_ms: int
) -> list[dict[str, Any]]:
    """Compute all conditions of a cluster with a forbidden read: its state is unknown.

    Args:
        before: The present status of the resource.
        message: Message of the API server about the forbidden read.
        generation: Generation of the resource.
        now_ms: Time of day.
    """
    known = {condition.get("type"): condition for condition in before.get("conditions") or ()}
    found = []
    for spec in load_catalogue().of_resource(CLUSTER_KIND):
        reason = "MissingRights" if spec.type in ("Ready", "Stalled") else "NotReconciled"
        entry = spec.reasons.get(reason)
        if entry is None or (spec.presence is Presence.WHEN_TRUE and reason == "NotReconciled"):
            found += [known[spec.type]] if spec.type == "Paused" and spec.type in known else []
            continue
        values = filled({"verb": "read", "object": message}, entry.text.fields)
        made = {
            "type": spec.type,
            "status": entry.status,
            "observedGeneration": generation,
            "reason": reason,
            "message": entry.text.fill(values),
        }
        found.append(_timed(made, known.get(spec.type), now_ms))
    return found


def values_of(account: Account, kind: str) -> dict[str, object]:
    """Return the values of all placeholders of a condition's texts."""
    return {**account.values, **_RULES[kind](account)[1]}


def _timed(made: dict[str, Any], before: Mapping[str, Any] | None, now_ms: int) -> dict[str, Any]:
    """Add the time of the last transition to a condition."""
    if before is not None and before.get("status") == made["status"]:
        since = since_text(str(before.get("lastTransitionTime")), now_ms)
        return {**made, "lastTransitionTime": since}
    return {**made, "lastTransitionTime": moment_text(now_ms)}


# -- each condition -----------------------------------------------------------------------------


def _first(cases: Iterable[tuple[bool, str]], otherwise: str) -> str:
    """Return the first reason that holds."""
    return next((reason for holds, reason in cases if holds), otherwise)


def _ready(account: Account) -> Found:
    desired, status = account.seen.desired, account.status
    reason = _first(
        (
            (desired.is_deleting, "Deleting"),
            (desired.is_paused, "Paused"),
            (account.stalled == "InvalidSpec", "InvalidSpec"),
            (account.stalled in REFUSALS, account.stalled),
            (account.stalled != "", "Blocked"),
            (status.is_ready, "Reconciled"),
            (desired.is_suspended and not status.replicas, "Suspended"),
        ),
        "",
    ) or _not_ready(account)
    values: dict[str, object] = {}
    if reason == "Blocked":
        values = dict(_blocked(account))
    elif reason == "PartitionsOffline":
        values = {"partitions": status.offline}
    return reason, values


def _not_ready(account: Account) -> str:
    """Return the reason for which a cluster is not ready yet, when no user has to act."""
    status, is_unknown = account.status, account.seen.metadata is None
    return _first(
        (
            (not account.is_founded, "Bootstrapping"),
            (status.progressing != "", status.progressing),
            (is_unknown and account.is_silent, "MetadataUnknown"),
            (is_unknown, "NoMetadataLeader"),
            (status.offline > 0, "PartitionsOffline"),
            (not account.is_whole, "BrokersNotReady"),
            (account.seen.desired.is_suspended, "Suspending"),
            (bool(status.waits), "Blocked"),
        ),
        "Reconciling",
    )


def _blocked(account: Account) -> Mapping[str, object]:
    if account.trouble is None:
        return {}
    return {"what": account.trouble[0], "detail": "until the API server accepts it"}


def _available(account: Account) -> Found:
    status, reports = account.status, account.seen.reports
    is_cut = bool(reports) and not any(report.is_nats_connected for report in reports)
    reason = _first(
        (
            (account.stalled == "QuorumLost", "QuorumLost"),
            (not account.is_founded, "Bootstrapping"),
            (account.seen.desired.is_suspended and not status.replicas, "Suspended"),
            (status.is_available is None, "MetadataUnknown"),
            (is_cut, "NatsUnreachable"),
            (status.is_available is True, "Serving"),
            (status.offline > 0, "PartitionsOffline"),
            (not status.ready_replicas, "BrokersNotReady"),
        ),
        "MetadataUnknown",
    )
    partitions = status.offline or len(list(account.view.partitions()))
    values: dict[str, object] = {"partitions": partitions}
    if reason == "QuorumLost":
        values |= _left(account)
    if reason == "NatsUnreachable":
        values["detail"] = "no broker is connected"
    return reason, values


def _progressing(account: Account) -> Found:
    if account.progressing:
        return account.progressing, {}
    if account.stalled:
        return "Waiting", {"detail": account.stalled}
    return "Complete", {}


def _reconciling(account: Account) -> Found:
    return account.progressing, {}


def _stalled(account: Account) -> Found:
    return account.stalled, _left(account) if account.stalled == "QuorumLost" else {}


def _left(account: Account) -> Mapping[str, object]:
    """Count the remaining voters after a lost majority: brokers that have metadata."""
    return {"alive": sum(1 for report in account.seen.reports if report.has_metadata)}


def _degraded(account: Account) -> Found:
    status, waits = account.status, {one.what: one for one in account.status.waits}
    if "AmbiguousIdentity" in waits:
        wait = waits["AmbiguousIdentity"]
        return "AmbiguousIdentity", {"pod": wait.object, "detail": wait.ends_when}
    for pod in account.view.pods.values():
        if account.view.is_node_lost(pod):
            return "NodeLost", {"pod": pod.name, "node": pod.node or "unknown"}
    if status.degraded:
        return _lacking(account, status.degraded[0])
    if account.seen.metadata is None and account.is_founded and status.replicas:
        return "MetadataUnknown", {}
    return _weakened(account)


def _weakened(account: Account) -> Found:
    """Return a problem that may reduce redundancy later."""
    for report in account.seen.reports:
        if report.is_retired and ordinal_of(report.broker) < account.seen.desired.replicas:
            return "RetiredVolume", {"broker": report.broker}
    if account.certificates.reason in ("Expiring", "Expired"):
        known = account.certificates
        detail = known.detail or "it has ended"
        return "CertificateExpiring", {"detail": detail, "time": moment_text(known.not_after_ms)}
    for broker, seconds in account.clocks_off.items():
        return "ClockSkew", {"broker": broker, "seconds": seconds}
    return "None", {}


def _lacking(account: Account, reason: str) -> Found:
    status = account.status
    full = [report.broker for report in account.seen.reports if report.is_disk_full]
    down = [name for name in account.view.names if not account.view.is_serving(name)]
    count = status.below_min_isr if reason == "BelowMinISR" else status.under_replicated
    return reason, {
        "partitions": count,
        "brokers": listed(down),
        "broker": listed(full),
    }


def _disruption(account: Account) -> Found:
    blockers = account.status.disruption_blockers
    if "MetadataUnknown" in blockers:
        return "RiskUnknown", {"detail": "no leader of the metadata group answers"}
    if not account.seen.desired.is_window_open:
        return "MaintenanceWindowClosed", {}
    if not blockers:
        return _of_links(account)
    behind = [blocker for blocker in blockers if "/" in blocker]
    away = [blocker for blocker in blockers if "/" not in blocker]
    if away:
        return "AnotherDisruption", {"object": away[0]}
    if any(partition.target for partition in account.view.partitions()):
        moving = sum(1 for partition in account.view.partitions() if partition.target)
        return "MovingPartitions", {"partitions": moving}
    return "IsrNotFull", {"partitions": len(behind), "worst": behind[0]}


def _of_links(account: Account) -> Found:
    """Return the blocker of a restart although all pods are ready and all replicas in sync."""
    view, reports = account.view, account.seen.reports
    down = [name for name in view.names if not view.is_serving(name)]
    if down:
        return "BrokerDown", {"brokers": listed(down)}
    cut = [report.broker for report in reports if not report.is_nats_connected]
    if cut:
        return "NatsUnreachable", {"brokers": listed(cut)}
    full = [report.broker for report in reports if report.is_disk_full]
    if full:
        return "VolumeFull", {"broker": full[0]}
    return _of_risks(account)


def _of_risks(account: Account) -> Found:
    """Return risks without consent, and certificates that expire soon."""
    known, view, desired = account.certificates, account.view, account.seen.desired
    if known.not_after_ms and known.not_after_ms - account.seen.now_ms < CERTIFICATE_LEFT_MS:
        return "CertificateExpiring", {"time": moment_text(known.not_after_ms)}
    if desired.allows_unavailable:
        return "Allowed", {}
    voters = [voter.member.broker for voter in view.voters()]
    needed = [name for name in voters if not view.keeps_majority_without(name)]
    if voters and len(needed) == len(voters):
        return "MetadataQuorumAtRisk", {"broker": needed[0]}
    alone = sum(1 for partition in view.partitions() if len(partition.replicas) == 1)
    return ("Unreplicated", {"partitions": alone}) if alone else ("Allowed", {})


def _nats(account: Account) -> Found:
    reports = account.seen.reports
    if not account.is_founded:
        return "NotReconciled", {}
    if not reports:
        return "MetadataUnknown", {}
    cut = [report.broker for report in reports if not report.is_nats_connected]
    if cut:
        return "NatsUnreachable", {"brokers": listed(cut)}
    apart = _without_routes(account)
    if apart:
        return "RoutesMissing", {"brokers": listed(apart)}
    return "Connected", {"brokers": len(reports)}


def _without_routes(account: Account) -> list[str]:
    """Return brokers whose NATS server lacks routes, once all brokers have settled."""
    view = account.view
    return [] if view.absent() else [name for name in view.names if view.lacks_routes(name)]


def _storage(account: Account) -> Found:
    if account.lost:
        return "Lost", {"claim": account.lost[0]}
    if account.pending:
        claims = [*account.view.claims.values(), *account.seen.raft_claims]
        found = next((claim for claim in claims if claim.name == account.pending[0]), None)
        kind = (found.class_name if found else "") or "that is the default"
        detail = f"for a volume of class {kind}"
        if found and found.attributes_class:
            detail += f" with VolumeAttributesClass {found.attributes_class}"
        return "Pending", {"claim": account.pending[0], "detail": detail}
    for report in account.seen.reports:
        if report.is_disk_full:
            return "Full", {"broker": report.broker}
        if report.damage:
            return "Broken", {"broker": report.broker, "detail": report.damage}
    return _of_sizes(account)


def _of_sizes(account: Account) -> Found:
    """Return the state of usable volumes that may be growing."""
    growing = plan.growing(account.view)
    for one in (claim for claim in growing if claim.infeasible):
        kind = one.class_name or "of its volume"
        return "VolumeCannotGrow", {"object": one.name, "class": kind, "detail": one.infeasible}
    if account.unresized:
        return "FileSystemResizePending", {"claim": account.unresized[0]}
    for one in growing:
        values = {"claim": one.name, "from": one.capacity_bytes, "to": one.requested_bytes}
        return "Resizing", values
    for one, attributes in plan.modified(account.view):
        values = {"claim": one.name, "class": attributes}
        detail = one.attributes_state or "its driver reports nothing"
        return "AttributesPending", {**values, "detail": detail}
    if not plan.in_use(account.view) and not (account.spec and account.spec.storage.ephemeral):
        return "NotReconciled", {}
    return _of_kinds(account)


def _of_kinds(account: Account) -> Found:
    """Return the state of usable volumes, which may differ from the desired ones."""
    for claim, volume in plan.in_use(account.view):
        kind, size = volume.storage_class, volume.size_bytes
        values = {"claim": claim.name, "class": claim.class_name, "wanted": kind}
        if kind and claim.class_name != kind:
            return "OtherClass", values
        if size and claim.requested_bytes > size:
            return "Larger", values | {"from": claim.requested_bytes, "to": size}
        if claim.attributes_class and not volume.attributes_class and account.spec:
            return "OtherAttributes", values | {"class": claim.attributes_class}
    return "Bound", {}


def _certificates(account: Account) -> Found:
    known = account.certificates
    return known.reason, {"detail": known.detail, "time": moment_text(known.not_after_ms)}


def _monitoring(account: Account) -> Found:
    return account.monitoring


def _paused(account: Account) -> Found:
    return ("Paused" if account.seen.desired.is_paused else "NotPaused"), {}


_RULES: Final[Mapping[str, Callable[[Account], Found]]] = {
    "Ready": _ready,
    "Available": _available,
    "Progressing": _progressing,
    "Degraded": _degraded,
    "Reconciling": _reconciling,
    "Stalled": _stalled,
    "DisruptionAllowed": _disruption,
    "NatsConnected": _nats,
    "StorageReady": _storage,
    "CertificatesReady": _certificates,
    "MonitoringReady": _monitoring,
    "Paused": _paused,
}
