"""Build the whole status of a `Stream` from the decision; stable when nothing changed."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from pydantic import ValidationError

from liftbridge_operator.cluster.observing.times import moment_ms, moment_text, since_text
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.load import ReasonSpec, load_catalogue
from liftbridge_operator.model.catalogue.names import Reason, StreamConditionType, WaitFor
from liftbridge_operator.model.stream import (
    PARTITIONS_SHOWN_MAX,
    STREAM_KIND,
    ManagementPolicy,
    StreamStatus,
)
from liftbridge_operator.streams.decide import Decision
from liftbridge_operator.streams.observation import ObservedStream, PresentCondition, Resource
from liftbridge_operator.streams.settings import asked_of, settings_of

WAIT_REPORTED_MS: Final = 30_000
"""Time after which a wait is reported."""

_WAITS: Final = {
    (StreamConditionType.READY, Reason.CLUSTER_NOT_FOUND): WaitFor.CLUSTER_NOT_READY,
    (StreamConditionType.READY, Reason.CLUSTER_NOT_READY): WaitFor.CLUSTER_NOT_READY,
    (StreamConditionType.READY, Reason.CLUSTER_UNREACHABLE): WaitFor.CLUSTER_NOT_READY,
    (StreamConditionType.READY, Reason.CONFLICT): WaitFor.CONFLICT,
    (StreamConditionType.READY, Reason.INVALID_SPEC): WaitFor.INVALID_SPEC,
    (StreamConditionType.READY, Reason.REFUSED): WaitFor.ACTION_REFUSED,
    (StreamConditionType.DELETION_BLOCKED, Reason.REFUSED): WaitFor.ACTION_REFUSED,
    (StreamConditionType.DELETION_BLOCKED, Reason.NOT_EMPTY): WaitFor.CONFIRMATION_REQUIRED,
    (
        StreamConditionType.DELETION_BLOCKED,
        Reason.CONFIRMATION_REQUIRED,
    ): WaitFor.CONFIRMATION_REQUIRED,
}

_STEADY: Final = frozenset({Reason.NOT_EMPTY})
"""Reasons whose text is kept while they hold, because its values change constantly."""


def status_of(
    resource: Resource,
    decision: Decision,
    stream: ObservedStream | None,
    *,
    before: Mapping[str, Any],
    now_ms: int,
) -> dict[str, Any]:
    """Build the whole status in its manifest form.

    Args:
        resource: The resource.
        decision: The decision.
        stream: The stream, if this resource may report it; None keeps the reported state.
        before: The present status.
        now_ms: Unix milliseconds.
    """
    conditions = [
        _condition(kind, claim, resource, now_ms) for kind, claim in decision.claims.items()
    ]
    kept = (
        *("creationId", "adopted", "partitions", "replicas", "configHash", "observedConfig"),
        "askedSettings",
    )
    status: dict[str, Any] = {name: before[name] for name in kept if name in before}
    status["observedGeneration"] = resource.generation
    status["streamName"] = resource.stream_name
    if before.get("lastSyncTime"):
        status["lastSyncTime"] = before["lastSyncTime"]
    if stream is not None:
        status.update(_of_stream(resource, stream))
    waits = [
        wait for condition in conditions if (wait := _wait(condition, resource, now_ms)) is not None
    ]
    if waits:
        status["waits"] = waits
    status["conditions"] = conditions
    return status


def _condition(
    kind: StreamConditionType, claim: Claim, resource: Resource, now_ms: int
) -> dict[str, Any]:
    spec = _reason(kind, claim.reason)
    before = resource.conditions.get(kind)
    message = spec.text.fill(claim.values)
    since = moment_text(now_ms)
    if before is not None and before.status == spec.status:
        since = since_text(before.since, now_ms)
        if before.reason == spec.reason and claim.reason in _STEADY:
            message = before.message
    return {
        "type": kind.value,
        "status": spec.status,
        "observedGeneration": resource.generation,
        "lastTransitionTime": since,
        "reason": spec.reason,
        "message": message,
    }


def _reason(kind: StreamConditionType, reason: Reason) -> ReasonSpec:
    return load_catalogue().condition(STREAM_KIND, kind).reasons[reason]


def _wait(condition: Mapping[str, Any], resource: Resource, now_ms: int) -> dict[str, Any] | None:
    """Return the wait that a condition causes, once it has lasted `WAIT_REPORTED_MS`."""
    place = StreamConditionType(condition["type"]), Reason(condition["reason"])
    what = _WAITS.get(place)
    if what is None or now_ms - moment_ms(condition["lastTransitionTime"]) < WAIT_REPORTED_MS:
        return None
    return {
        "what": what.value,
        "object": f"stream {resource.stream_name}",
        "since": condition["lastTransitionTime"],
        "endsWhen": _reason(*place).runbook[:256],
        "runbook": f"docs/reference/kubernetes/conditions.md, {', '.join(place)}",
    }


def _of_stream(resource: Resource, stream: ObservedStream) -> dict[str, Any]:
    """Build the fields of the status that describe the stream itself."""
    found: dict[str, Any] = {
        "creationId": str(stream.stream_id),
        "partitions": stream.partition_count,
        "replicas": stream.factor,
        "readonly": any(partition.is_readonly for partition in stream.partitions),
        "summary": {
            "total": len(stream.partitions),
            "offline": sum(not partition.leader for partition in stream.partitions),
            "underReplicated": sum(one.in_sync < len(one.replicas) for one in stream.partitions),
        },
        "observedConfig": {
            "retentionMaxBytes": stream.settings["retention_max_bytes"],
            "retentionMaxMessages": stream.settings["retention_max_messages"],
            "retentionMaxAge": _duration(int(stream.settings["retention_max_age"])),
            "minISR": stream.settings["min_isr"],
            "compactEnabled": stream.settings["compact_enabled"],
        },
    }
    if resource.spec is not None:
        is_same_stream = resource.creation_id == str(stream.stream_id)
        former = resource.asked if is_same_stream else ()
        if resource.spec.management_policy is ManagementPolicy.MANAGE:
            found["askedSettings"] = sorted({*former, *asked_of(resource.spec)})
        wanted = settings_of(resource.spec.config, resource.spec.replication_factor)
        text = repr(sorted(wanted.items()))
        found["configHash"] = sha256(text.encode()).hexdigest()[:12]
    if len(stream.partitions) <= PARTITIONS_SHOWN_MAX:
        found["partitionDetails"] = [
            {
                "partition": partition.number,
                **({"leader": partition.leader} if partition.leader else {}),
                "replicas": list(partition.replicas),
                "inSync": partition.in_sync,
            }
            for partition in stream.partitions
        ]
    return found


def _duration(ms: int) -> str:
    """Format a duration in the form of manifests: `168h`, `90s`, `0`."""
    if not ms:
        return "0"
    for unit, length in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"


def is_same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two statuses are equal, after defaults of the API server."""
    try:
        return StreamStatus.model_validate(status) == StreamStatus.model_validate(before)
    except ValidationError:
        return False


def conditions_of(status: Mapping[str, Any]) -> dict[str, PresentCondition]:
    """Return the conditions of a status, by type."""
    return {
        condition["type"]: PresentCondition(
            condition["status"],
            condition["reason"],
            condition["message"],
            condition.get("observedGeneration", -1),
            condition["lastTransitionTime"],
        )
        for condition in status.get("conditions", ())
    }
