"""`status` and `plan`: the state of a cluster, and what a change will disrupt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.objects import Json, annotation_of, is_terminating
from liftbridge_operator.model import names
from liftbridge_operator.plugin import lookup
from liftbridge_operator.plugin.lookup import (
    condition_of,
    name_of,
    namespace_of,
    place_of,
    status_of,
)
from liftbridge_operator.plugin.port import COMMAND
from liftbridge_operator.plugin.tables import NOTHING, age, counted, table, yes

KUBECTL: Final = "kubectl " + COMMAND.removeprefix("kubectl-")
"""Command by which users call the plugin."""

STREAMS_SHOWN_MAX: Final = 50
"""Most streams in a text; those that are not ready come first. JSON has all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a command, as text and as a document."""

    text: str
    document: Any = field(default_factory=dict)


# -- status -----------------------------------------------------------------------------------


def overview(resources: Sequence[Json], now_ms: int) -> Answer:
    """Show several clusters, one per line."""
    rows = []
    for resource in resources:
        status, ready = status_of(resource), condition_of(resource, "Ready")
        is_known = lookup.is_current(resource)
        counts, spec = status.get("partitions") or {}, resource.get("spec") or {}
        rows.append(
            (
                namespace_of(resource),
                name_of(resource),
                str(ready.get("status") or "Unknown") if is_known else "Unknown",
                str(ready.get("reason") or "") if is_known else "NotObserved",
                f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
                str(status.get("version") or ""),
                str(counts.get("underReplicated", "")),
                str((status.get("plan") or {}).get("hash") or ""),
                age((resource.get("metadata") or {}).get("creationTimestamp"), now_ms),
            )
        )
    heading = (
        "NAMESPACE",
        "NAME",
        "READY",
        "REASON",
        "BROKERS",
        "VERSION",
        "BEHIND",
        "PLAN",
        "AGE",
    )
    text = "\n".join(table(heading, rows)) if rows else "There is no LiftbridgeCluster."
    documents = [
        {**lookup.summary_of(resource), "status": status_of(resource)} for resource in resources
    ]
    return Answer(text, {"clusters": documents})


def status(resource: Json, streams: Sequence[Json] | None, now_ms: int) -> Answer:
    """Show one cluster in detail."""
    sections = [
        _head(resource, now_ms),
        _brokers(resource),
        _partitions(resource),
        _conditions(resource, now_ms),
        _waits(resource, now_ms),
        _under_way(resource, now_ms),
        _streams(streams, now_ms),
    ]
    text = "\n\n".join("\n".join(lines) for lines in sections if lines)
    document = {
        **lookup.summary_of(resource),
        "spec": resource.get("spec") or {},
        "status": status_of(resource),
        "streams": None if streams is None else [_stream_document(stream) for stream in streams],
    }
    return Answer(text, document)


def _head(resource: Json, now_ms: int) -> list[str]:
    status, spec = status_of(resource), resource.get("spec") or {}
    ready = condition_of(resource, "Ready")
    stale = lookup.staleness(resource)
    word = str(ready.get("status") or "Unknown") if not stale else "Unknown"
    found = [
        f"{place_of(resource)}  Ready: {word}" + (f" ({ready['reason']})" if ready else ""),
        *([f"  ! {stale}."] if stale else []),
        *_notes(resource),
        f"  Brokers        {_counts(status, spec)}",
        f"  Version        {_versions(status)}",
        f"  Metadata       led by {status.get('metadataLeader') or 'no known broker'}",
        f"  Cluster id     {status.get('clusterId') or NOTHING}",
    ]
    found += [
        f"  Listener       {listener.get('name')} at {listener.get('address')}"
        for listener in status.get("listeners") or ()
    ]
    certificates = status.get("certificates") or {}
    if certificates:
        end = certificates.get("notAfter") or "unknown"
        found.append(f"  Certificates   {certificates.get('phase')}, valid until {end}")
    if certificates.get("peerKeys"):
        found.append(f"  Peer keys      {certificates['peerKeys']}")
    found.append(f"  Age            {age(resource['metadata'].get('creationTimestamp'), now_ms)}")
    return found


def _counts(status: Json, spec: Json) -> str:
    ready, wanted = status.get("readyReplicas", 0), spec.get("replicas", 0)
    return f"{ready} of {wanted} ready, {status.get('updatedReplicas', 0)} of the target revision"


def _versions(status: Json) -> str:
    has, wanted = status.get("version") or NOTHING, status.get("targetVersion")
    change = f", changing to {wanted}" if wanted and wanted != has else ""
    return f"{has}{change} (operator {status.get('operatorVersion') or NOTHING})"


def _notes(resource: Json) -> list[str]:
    """Notes on user requests that explain why the operator changes little."""
    spec = resource.get("spec") or {}
    drained = annotation_of(resource, marks.DRAIN)
    cases = (
        (is_terminating(resource), "the cluster is being deleted"),
        (bool(spec.get("paused")), "the cluster is paused: the operator changes nothing"),
        (bool(spec.get("suspend")), "the cluster is suspended: no broker runs"),
        (drained != "", f"drained: {drained}"),
    )
    return [f"  ! {text}." for holds, text in cases if holds]


def _brokers(resource: Json) -> list[str]:
    status = status_of(resource)
    leader, under_way = status.get("metadataLeader"), status.get("disruption") or {}
    rows = []
    for name, one in lookup.brokers_of(resource).items():
        notes = [
            text
            for holds, text in (
                (name == leader, "leads the metadata group"),
                (one.get("cordoned"), "cordoned"),
                (under_way.get("pod") == name, "is being restarted"),
                (not one.get("podUID"), "has no pod"),
            )
            if holds
        ]
        volumes = ",".join(
            f"{volume.get('capacity') or NOTHING} {volume.get('phase')}"
            for volume in one.get("volumes") or ()
        )
        rows.append(
            (
                name,
                yes(one.get("ready")),
                str(one.get("node") or ""),
                str(one.get("zone") or ""),
                yes(one.get("voter")),
                str(one.get("leaders", 0)),
                str(one.get("partitions", 0)),
                str(one.get("underReplicated", 0)),
                str(one.get("revision") or ""),
                volumes,
                ", ".join(notes),
            )
        )
    if not rows:
        return []
    heading = (
        *("BROKER", "READY", "NODE", "ZONE", "VOTER", "LEADS", "REPLICAS", "BEHIND"),
        *("REVISION", "VOLUMES", "NOTES"),
    )
    return table(heading, rows)


def _partitions(resource: Json) -> list[str]:
    counts = status_of(resource).get("partitions")
    if counts is None:
        return ["Partitions: unknown, the metadata group does not answer."]
    sentence = (
        f"Partitions: {counts.get('total', 0)}, of which {counts.get('offline', 0)} offline, "
        f"{counts.get('belowMinISR', 0)} below min ISR, {counts.get('underReplicated', 0)} "
        f"under-replicated, {counts.get('moving', 0)} moving."
    )
    rows = [
        (
            f"{one.get('stream')}/{one.get('partition')}",
            str(one.get("problem")),
            ", ".join(one.get("missing") or ()),
        )
        for one in counts.get("worst") or ()
    ]
    problems = table(("PARTITION", "PROBLEM", "NOT IN SYNC"), rows, "  ") if rows else []
    return [sentence, *problems]


def _conditions(resource: Json, now_ms: int) -> list[str]:
    rows = _condition_rows(status_of(resource).get("conditions") or (), now_ms)
    return table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows) if rows else []


def _condition_rows(conditions: Iterable[Json], now_ms: int) -> list[tuple[str, ...]]:
    return [
        (
            str(condition.get("type")),
            str(condition.get("status")),
            str(condition.get("reason")),
            age(condition.get("lastTransitionTime"), now_ms),
            str(condition.get("message") or ""),
        )
        for condition in conditions
    ]


def _waits(resource: Json, now_ms: int) -> list[str]:
    waits = status_of(resource).get("waits") or ()
    if not waits:
        return []
    found = ["Waiting for:"]
    for wait in waits:
        found.append(
            f"  {wait.get('what')} {wait.get('object')}, for {age(wait.get('since'), now_ms)}, "
            f"until {wait.get('endsWhen')}"
        )
        if wait.get("runbook"):
            found.append(f"      {wait['runbook']}")
    return found


def _under_way(resource: Json, now_ms: int) -> list[str]:
    status = status_of(resource)
    found = []
    under_way = status.get("disruption") or {}
    if under_way:
        since = age(under_way.get("since"), now_ms)
        found.append(f"Restart of {under_way.get('pod')}, for {since}.")
        found += [f"  {blocker}" for blocker in under_way.get("blockers") or ()]
    made = status.get("plan") or {}
    if made:
        steps = counted(int(made.get("stepCount") or 0), "step")
        found.append(
            f"Plan {made.get('hash')}: {steps}, {_approval(made)}. "
            f"See `{KUBECTL} plan {name_of(resource)}`."
        )
    return found + _held(resource)


def _held(resource: Json) -> list[str]:
    """Describe fields that the new operator renders differently, and how to apply them."""
    held = status_of(resource).get("held") or {}
    if not held:
        return []
    causes, take = "; ".join(held.get("causes") or ()), f"{KUBECTL} restart {name_of(resource)}"
    return [
        f"Held since the operator was replaced, until something else restarts brokers: {causes}.",
        f"Revision {held.get('revision')}; `{take}` applies it immediately.",
    ]


def _streams(streams: Sequence[Json] | None, now_ms: int) -> list[str]:
    if streams is None:
        return ["Streams: you are not allowed to list them."]
    if not streams:
        return []
    ordered = sorted(
        streams, key=lambda one: (condition_of(one, "Ready").get("status") == "True", place_of(one))
    )
    rows = []
    for one in ordered[:STREAMS_SHOWN_MAX]:
        row = _stream_document(one)
        created = (one.get("metadata") or {}).get("creationTimestamp")
        rows.append(
            (
                f"{row['namespace']}/{row['name']}",
                row["stream"],
                row["ready"],
                row["reason"],
                str(row["partitions"]),
                str(row["replicas"]),
                str(row["underReplicated"]),
                age(created, now_ms),
                "" if row["ready"] == "True" else row["message"],
            )
        )
    heading = (
        *("RESOURCE", "STREAM", "READY", "REASON", "PARTITIONS", "REPLICAS", "BEHIND", "AGE"),
        "MESSAGE",
    )
    more = len(ordered) - len(rows)
    return [*table(heading, rows), *([f"and {counted(more, 'stream')} more"] if more else [])]


def _stream_document(stream: Json) -> dict[str, Any]:
    status, spec = status_of(stream), stream.get("spec") or {}
    ready = condition_of(stream, "Ready")
    is_known = lookup.is_current(stream)
    return {
        "namespace": namespace_of(stream),
        "name": name_of(stream),
        "stream": status.get("streamName") or spec.get("streamName") or name_of(stream),
        "ready": str(ready.get("status") or "Unknown") if is_known else "Unknown",
        "reason": str(ready.get("reason") or "") if is_known else "NotObserved",
        "message": str(ready.get("message") or ""),
        "partitions": status.get("partitions") or spec.get("partitions") or 1,
        "replicas": status.get("replicas") or spec.get("replicationFactor") or 0,
        "underReplicated": (status.get("summary") or {}).get("underReplicated", 0),
    }


# -- plan -------------------------------------------------------------------------------------


def plan_of(resource: Json) -> Json:
    """Plan of the resource; empty if there is nothing to do."""
    found: Json = status_of(resource).get("plan") or {}
    return found


def is_approved(made: Json) -> bool:
    """Return whether exactly this plan was approved."""
    return bool(made.get("hash")) and made.get("approvedHash") == made.get("hash")


def _approval(made: Json) -> str:
    if is_approved(made):
        return "approved"
    if made.get("needsApproval"):
        return "waits for approval"
    return "starts automatically"


def plan(resource: Json) -> Answer:
    """Show what the current specification and pending requests will disrupt."""
    made, stale = plan_of(resource), lookup.staleness(resource)
    lines = [f"! {stale[0].upper()}{stale[1:]}."] if stale else []
    held = dict(status_of(resource).get("held") or {}) or None
    document = {**lookup.summary_of(resource), "plan": dict(made) or None, "held": held}
    if not made:
        lines.append(f"{place_of(resource)}: there is nothing to do.")
        lines += _held(resource)
        return Answer("\n".join(lines), document)
    lines += [
        f"{place_of(resource)}: plan {made.get('hash')}, {_approval(made)}.",
        f"  Revision {made.get('revision')} of generation {made.get('generation')}, "
        + counted(int(made.get("replicas") or 0), "broker"),
        "",
    ]
    steps = made.get("steps") or ()
    rows = [
        (str(number), str(one.get("action")), str(one.get("object")), str(one.get("cause")))
        for number, one in enumerate(steps, 1)
    ]
    lines += table(("STEP", "ACTION", "OBJECT", "CAUSE"), rows)
    more = int(made.get("stepCount") or 0) - len(rows)
    if more > 0:
        lines.append(f"and {counted(more, 'step')} more")
    lines += ["", *_risks(made)]
    if made.get("needsApproval") and not is_approved(made):
        lines += [
            "",
            f"Approve it: {KUBECTL} approve {name_of(resource)} --hash {made.get('hash')}",
        ]
    return Answer("\n".join(lines), document)


def _risks(made: Json) -> list[str]:
    risks = made.get("risks") or ()
    if not risks:
        return ["Nothing becomes unavailable: leaders are moved away before each restart."]
    found = ["Risks:"]
    for risk in risks:
        word = "accepted" if risk.get("accepted") else "not accepted"
        found.append(f"  {risk.get('kind')} ({word}): {risk.get('text')}")
    return found


def brokers_on(resource: Json, node: str) -> list[str]:
    """Brokers of a cluster that run on a node."""
    return [name for name, one in lookup.brokers_of(resource).items() if one.get("node") == node]


def broker_names(resource: Json) -> list[str]:
    """Names of current and future brokers, whether or not the operator has seen them."""
    wanted = (resource.get("spec") or {}).get("replicas")
    count = wanted if isinstance(wanted, int) else 0
    made = [names.broker(name_of(resource), one) for one in range(count)]
    return list(dict.fromkeys([*lookup.brokers_of(resource), *made]))
