"""Desired state of a resource, and the state kept in its status, as planner values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.objects import (
    Json,
    annotation_of,
    is_terminating,
    metadata_of,
)
from liftbridge_operator.cluster.observing.times import is_open, moment_ms, unknown_zones
from liftbridge_operator.cluster.planning import refusals
from liftbridge_operator.cluster.planning.decision import Memory, Refused, Wait
from liftbridge_operator.cluster.planning.observation import (
    NO_VOLUME,
    DesiredState,
    DesiredVolume,
    Disruption,
    Recorded,
    Replacement,
    SetShape,
)
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.operations import DisruptionMode, Gate, Rebalance
from liftbridge_operator.model.storage import Volume, VolumeFate
from liftbridge_operator.model.values import size_bytes

NEWER: Final = "only a newer operator knows this field"
ERRORS_MAX: Final = 5
"""Maximum number of reported errors of a specification."""

LISTED_MAX: Final = 100
"""Maximum number of items in an annotation: as many as a cluster may have brokers."""

RATE_MIN: Final = 1_024
"""Minimum catch-up rate of moves, bytes a second; brokers refuse a lower one."""

CURSORS_STREAM: Final = "__cursors"
"""Internal stream of cursors; its default replication factor follows the number of brokers."""

ACTIVITY_STREAM: Final = "__activity"
"""Internal stream of changes; its replication factor always follows the number of brokers."""


@dataclass(frozen=True, slots=True)
class Specification:
    """The specification of a resource, or the reason for which it cannot be parsed."""

    spec: ClusterSpec | None
    errors: tuple[str, ...] = ()


def specification_of(resource: Json) -> Specification:
    """Parse the specification, with the defaults of the API server.

    A specification that the API server accepted may still be invalid here: another version of the
    operator may have installed the CRD. It is never applied in part: that would remove a field that
    only a newer operator knows from brokers that have it.
    """
    given = resource.get("spec") or {}
    try:
        spec = ClusterSpec.model_validate(given)
    except ValidationError as error:
        found = tuple(
            f"spec.{'.'.join(str(part) for part in one['loc'])}: {one['msg']}"
            for one in error.errors()[:ERRORS_MAX]
        )
        return Specification(None, found)
    unread = spec.unread(given)[:ERRORS_MAX]
    if unread:
        return Specification(None, tuple(f"spec{path}: {NEWER}" for path in unread))
    return Specification(spec)


def desired_of(
    resource: Json,
    spec: ClusterSpec,
    *,
    revision: str,
    now_ms: int,
    refusals: Sequence[str] = (),
    automatic: Sequence[str] = (),
    causes: Sequence[str] = (),
) -> DesiredState:
    """Build the desired state from the specification and annotations.

    Args:
        resource: The LiftbridgeCluster.
        spec: Its specification.
        revision: Hash of the rendered pod template.
        now_ms: Time of day, for windows.
        refusals: Reasons for which it cannot be carried out.
        automatic: Streams whose replication factor follows the number of brokers.
        causes: Fields whose change altered the template.
    """
    metadata, disruption = metadata_of(resource), spec.disruption
    name = str(metadata.get("name") or "")
    zones = unknown_zones(disruption.windows)
    rate = size_bytes(disruption.catch_up_rate) if disruption.catch_up_rate is not None else 0
    allows = disruption.allow_unreplicated
    growing = [*automatic, ACTIVITY_STREAM]
    if spec.config.cursors.replication_factor in (None, -1):
        growing.append(CURSORS_STREAM)
    return DesiredState(
        name=name,
        generation=int(metadata.get("generation") or 0),
        replicas=spec.replicas,
        revision=revision,
        data_volume=NO_VOLUME if spec.storage.ephemeral else volume_of(spec.storage.data),
        config_errors=(
            *refusals,
            *(f"spec.disruption.windows: no time zone {zone} is known" for zone in zones),
            *(["spec.disruption.catchUpRate: less than 1Ki"] if 0 < rate < RATE_MIN else []),
        ),
        is_paused=spec.paused,
        is_suspended=spec.suspend,
        is_deleting=is_terminating(resource),
        needs_approval=disruption.mode is DisruptionMode.APPROVAL,
        approved_hash=annotation_of(resource, marks.APPROVE),
        is_window_open=is_open(disruption.windows, now_ms),
        allows_unavailable=spec.replicas == 1 if allows is None else allows,
        needs_full_isr=disruption.gate is Gate.FULL_ISR,
        is_rebalanced=spec.scaling.rebalance is Rebalance.AUTOMATIC,
        restarts=listed(annotation_of(resource, marks.RESTART_PODS)),
        drained=listed(annotation_of(resource, marks.DRAIN)),
        replace=tuple(
            Replacement(
                names.broker(name, replacement.broker),
                replacement.volume_uid,
                replacement.force,
            )
            for replacement in spec.replace_brokers
        ),
        raft_volume=NO_VOLUME if spec.storage.raft is None else volume_of(spec.storage.raft),
        feature_level=spec.feature_level or 0,
        catch_up_rate=rate,
        has_own_nats=spec.nats.embedded is not None,
        deletes_volumes=spec.storage.retention.when_scaled is VolumeFate.DELETE,
        automatic_factor=tuple(growing),
        causes=tuple(causes),
    )


def volume_of(storage: Volume) -> DesiredVolume:
    """Return the desired volume of the specification's storage."""
    return DesiredVolume(
        size_bytes(storage.size),
        storage.storage_class_name or "",
        storage.volume_attributes_class_name or "",
    )


def listed(text: str) -> tuple[str, ...]:
    """Parse a comma-separated annotation; return the first `LISTED_MAX` items."""
    items = dict.fromkeys(part.strip() for part in text.split(","))
    items.pop("", None)
    return tuple(items)[:LISTED_MAX]


def recorded_of(resource: Json) -> Recorded:
    """Read the state that the status keeps between passes."""
    status: Mapping[str, Any] = resource.get("status") or {}
    plan = status.get("plan") or {}
    return Recorded(
        disruption=_disruption(status.get("disruption") or {}),
        shape=_shape(status.get("remaking")),
        risks=tuple(str(risk.get("kind")) for risk in plan.get("risks") or ()),
        size=int(status["size"]) if status.get("size") is not None else None,
    )


def _disruption(kept: Json) -> Disruption | None:
    if not kept.get("restartId"):
        return None
    return Disruption(
        broker=str(kept.get("pod") or ""),
        pod_uid=str(kept.get("uid") or ""),
        token=str(kept.get("restartId")),
        expires_ms=moment_ms(kept.get("expires")),
        since_ms=moment_ms(kept.get("since")),
        partitions=int(kept.get("partitionCount") or 0),
    )


def _shape(kept: Json | None) -> SetShape | None:
    if kept is None:
        return None
    return SetShape(
        replicas=int(kept.get("replicas") or 0),
        revision=str(kept.get("revision") or ""),
        good_revision=str(kept.get("goodRevision") or ""),
        bad_revision=str(kept.get("badRevision") or ""),
    )


def memory_of(resource: Json) -> Memory:
    """Restore the memory of a restarted process from the status.

    Refused objects are retried at once, and reported until they are accepted.
    """
    waits = (resource.get("status") or {}).get("waits") or ()
    generation = int(metadata_of(resource).get("generation") or 0)
    return Memory(
        refused=tuple(
            Refused(
                refusals.KEEPING,
                str(wait["object"]),
                str(wait.get("what") or ""),
                str(wait.get("endsWhen") or ""),
                generation,
                count=1,
                until_ms=0,
            )
            for wait in waits
            if wait.get("what") in refusals.REFUSALS and "/" in str(wait.get("object"))
        ),
        waits=tuple(
            Wait(
                what=str(wait.get("what") or ""),
                object=str(wait.get("object") or ""),
                ends_when=str(wait.get("endsWhen") or ""),
                since_ms=moment_ms(wait.get("since")),
            )
            for wait in waits
        ),
    )
