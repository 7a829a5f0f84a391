"""What to do with a stream, and what to say of it, from what was seen: pure and total.

In turn: may the resource go, does it have a cluster that answers and lets it in, does another
resource come first, is there a stream, whose is it, and is it as it should be. At most one action.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from liftbridge_operator.catalogue.claim import Claim
from liftbridge_operator.catalogue.names import EventReason, Reason, StreamConditionType
from liftbridge_operator.model.stream import (
    AdoptionPolicy,
    DeletionPolicy,
    ManagementPolicy,
    StreamSpec,
)
from liftbridge_operator.streams import settings as settings_
from liftbridge_operator.streams.actions import (
    Action,
    AddFinalizer,
    Alter,
    Create,
    Delete,
    Forget,
    Mark,
    OfResource,
    SetReadonly,
)
from liftbridge_operator.streams.marks import mark_of
from liftbridge_operator.streams.observation import (
    UNKNOWN,
    Ask,
    ClusterState,
    ObservedStream,
    Refused,
    Resource,
    Seen,
)

CONFLICT_SECONDS: Final = 30.0
"""Time after which a resource that stands back looks again."""
REFUSED_SECONDS: Final = 60.0
"""Time after which brokers, or the API server, are asked again what they have refused."""

Type = StreamConditionType


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and what to say.

    Attributes:
        claims: All conditions; of those told only while they are True, the ones that are.
        action: None to do nothing.
        ask: What has to be looked up first; there is no action then.
        event: Something that is told besides.
        requeue_seconds: When to look again although nothing may happen; 0 for never.
    """

    claims: Mapping[StreamConditionType, Claim]
    action: Action | None = None
    ask: Ask | None = None
    event: tuple[EventReason, Mapping[str, object]] | None = None
    requeue_seconds: float = 0.0


def decide_stream(resource: Resource, seen: Seen) -> Decision:
    """What to do with a resource that is not being deleted, and what to say of it.

    Args:
        resource: The resource.
        seen: Everything else.
    """
    decision = _decided(resource, seen)
    action, before = decision.action, refusal_of(decision, seen)
    if before is None:
        return decision
    said = dict(decision.claims)
    if isinstance(action, Create | Alter | SetReadonly):
        said[Type.READY] = _invalid(before.detail)
        if seen.stream is not None:
            said[Type.SYNCED] = Claim(Reason.REJECTED, {"detail": before.detail})
    else:
        values = {"stream": resource.stream_name, "detail": before.detail}
        said[Type.READY] = Claim(Reason.REFUSED, values)
    return replace(
        decision,
        claims=said,
        action=action if before.is_due else None,
        requeue_seconds=REFUSED_SECONDS,
    )


def refusal_of(decision: Decision, seen: Seen) -> Refused | None:
    """What was said just before against what is to be done; None when nothing was."""
    before = seen.refused
    if before is None or decision.action is None or before.what != change_of(decision.action):
        return None
    return before


def _decided(resource: Resource, seen: Seen) -> Decision:
    """The decision, whatever was refused before."""
    spec = resource.spec
    if spec is None:
        return Decision(_said(resource, seen, _invalid(resource.unread)))
    against = _of_cluster(resource, seen)
    if against is not None:
        return Decision(_said(resource, seen, against))
    if spec.management_policy is ManagementPolicy.OBSERVE:
        return _observe(resource, spec, seen)
    if _is_let_go(resource, spec, seen):
        return _let_go(resource, seen)
    return _bring_about(resource, spec, seen)


def _bring_about(resource: Resource, spec: StreamSpec, seen: Seen) -> Decision:
    """The stream is to be there, and this resource's own."""
    if needs_finalizer(spec, seen) and not resource.has_finalizer:
        return Decision(_said(resource, seen, _pending(resource, seen)), AddFinalizer())
    if seen.older:
        return _stand_back(resource, seen, seen.older)
    if seen.stream is None:
        return _create(resource, spec, seen)
    return _manage(resource, spec, seen, seen.stream)


def needs_finalizer(spec: StreamSpec, seen: Seen) -> bool:
    """Whether the deletion of the resource has to wait for what becomes of the stream."""
    return spec.deletion_policy is DeletionPolicy.DELETE and not seen.is_namespaced


# -- what stands in the way ---------------------------------------------------------------------


def _of_cluster(resource: Resource, seen: Seen) -> Claim | None:
    """Why nothing can be done with the cluster."""
    cluster = seen.cluster
    if cluster.state in (ClusterState.MISSING, ClusterState.HIDDEN):
        return Claim(Reason.CLUSTER_NOT_FOUND, {"cluster": cluster.name})
    if not cluster.is_allowed:
        values = {"cluster": cluster.name, "namespace": resource.namespace}
        return Claim(Reason.NOT_ALLOWED, values)
    detail = {ClusterState.DELETING: "it is being deleted", ClusterState.PAUSED: "it is paused"}
    if cluster.state in detail:
        values = {"cluster": cluster.name, "detail": detail[cluster.state]}
        return Claim(Reason.CLUSTER_NOT_READY, values)
    if cluster.is_heard:
        return None
    if not cluster.answered:
        values = {"cluster": cluster.name, "detail": "none of its brokers has answered yet"}
        return Claim(Reason.CLUSTER_NOT_READY, values)
    return Claim(Reason.CLUSTER_UNREACHABLE, {"cluster": cluster.name, "time": cluster.answered})


def _invalid(detail: str) -> Claim:
    return Claim(Reason.INVALID_SPEC, {"detail": detail})


def _pending(resource: Resource, seen: Seen) -> Claim:
    """Something is under way before the stream is this resource's own."""
    values = {"stream": resource.stream_name}
    if seen.stream is None:
        return Claim(Reason.CREATE_PENDING, values)
    return Claim(Reason.ALTERING, {**values, "fields": "who manages it"})


def _stand_back(resource: Resource, seen: Seen, owner: str) -> Decision:
    """Somebody else has the stream."""
    values = {"stream": resource.stream_name, "owner": owner}
    said = _said(resource, seen, Claim(Reason.CONFLICT, values))
    return Decision(said, event=(EventReason.CONFLICT, values), requeue_seconds=CONFLICT_SECONDS)


# -- watched only, let go -----------------------------------------------------------------------


def _observe(resource: Resource, spec: StreamSpec, seen: Seen) -> Decision:
    """A stream that is only watched; a mark from a time when it was managed is taken back."""
    values = {"stream": resource.stream_name}
    if seen.stream is None:
        return Decision(_said(resource, seen, Claim(Reason.NOT_FOUND, values)))
    said = _said(resource, seen, Claim(Reason.OBSERVED, values))
    fields = (*_fixed(spec, seen.stream), *_differing(spec, seen.stream))
    if fields:
        said[Type.SYNCED] = Claim(Reason.DRIFTED, {"fields": ", ".join(fields)})
    is_mine = seen.stream.owner == mark_of(resource.namespace, resource.name, resource.uid)
    return Decision(said, Forget(seen.stream.stream_id) if is_mine else None)


def _is_let_go(resource: Resource, spec: StreamSpec, seen: Seen) -> bool:
    """Whether the stream is deleted though the resource stays: where no finalizer may hold it."""
    return (
        seen.is_namespaced
        and spec.deletion_policy is DeletionPolicy.DELETE
        and resource.confirmed != ""
        and resource.confirmed == resource.creation_id
    )


def _let_go(resource: Resource, seen: Seen) -> Decision:
    """Delete the stream that was confirmed; it is not created again while that stands."""
    said = _said(resource, seen, Claim(Reason.DELETING, {"stream": resource.stream_name}))
    stream = seen.stream
    if stream is None or str(stream.stream_id) != resource.confirmed:
        return Decision(said)
    if stream.owner != mark_of(resource.namespace, resource.name, resource.uid):
        return Decision(said)
    return Decision(said, Delete(stream.stream_id))


# -- create, adopt, keep ------------------------------------------------------------------------


def change_of(action: Action) -> str:
    """Names a change, so that a refusal of it is known again."""
    if isinstance(action, OfResource):  # whatever is on the stream, it is the same request
        return type(action).__name__
    return repr(action)


def _create(resource: Resource, spec: StreamSpec, seen: Seen) -> Decision:
    action = Create(
        resource.stream_name,
        spec.subject,
        spec.group or "",
        spec.partitions,
        spec.replication_factor,
        settings_.settings_of(spec.config, spec.replication_factor),
        is_again=resource.creation_id != "",
    )
    return Decision(_said(resource, seen, _pending(resource, seen)), action)


def _manage(resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream) -> Decision:
    """A stream that is there: whose it is, then what it is."""
    mine = mark_of(resource.namespace, resource.name, resource.uid)
    fixed = _fixed(spec, stream)
    if stream.owner != mine:
        against = _of_owner(resource, spec, seen, stream)
        if against is not None:
            return against
    if fixed:
        values = {"stream": stream.name, "fields": ", ".join(fixed)}
        said = _said(resource, seen, Claim(Reason.DRIFTED, values))
        said[Type.SYNCED] = Claim(Reason.DRIFTED, {"fields": values["fields"]})
        return Decision(said)
    if stream.owner != mine:
        said = _said(resource, seen, _pending(resource, seen))
        is_adopted = not _is_own(resource, stream)
        return Decision(said, Mark(stream.stream_id, stream.owner, is_adopted=is_adopted))
    return _keep(resource, spec, seen, stream)


def _of_owner(
    resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream
) -> Decision | None:
    """Why a stream that is not marked as this resource's is not taken over."""
    if stream.owner:
        if seen.holder is UNKNOWN:
            return Decision({}, ask=Ask.HOLDER)
        holder = seen.holder
        if holder is not None and holder.is_older:
            return _stand_back(resource, seen, holder.key)
        if holder is not None:
            return None  # the younger one has it, and learns of this one by the mark
    if spec.adoption_policy is AdoptionPolicy.NEVER and not _is_own(resource, stream):
        return _stand_back(resource, seen, "nobody, and adoptionPolicy is Never")
    return None


def _is_own(resource: Resource, stream: ObservedStream) -> bool:
    """Whether an unmarked stream is the one that this resource was about to create.

    The status says so before the brokers are asked, when there is no stream; between their answer
    and the mark the operator may have ended.
    """
    ready = resource.told.get(Type.READY)
    return stream.owner == "" and ready is not None and ready.reason == Reason.CREATE_PENDING


def _keep(resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream) -> Decision:
    """The resource's own stream: change what differs."""
    fields = _differing(spec, stream)
    is_drift = (
        resource.observed_generation == resource.generation
        and (ready := resource.told.get(Type.READY)) is not None
        and ready.reason == Reason.RECONCILED
    )
    action: Action | None = None
    if fields and fields != ("readonly",):
        factor = spec.replication_factor if "replicationFactor" in fields else 0
        wanted = settings_.settings_of(spec.config, _factor(spec, stream))
        changed = settings_.differences(wanted, stream.settings)
        names = tuple(one for one in fields if one != "readonly")
        action = Alter(changed, factor, names, is_drift)
    elif fields:
        action = SetReadonly(spec.readonly, is_drift)
    if action is None:
        said = _said(resource, seen, Claim(Reason.RECONCILED, {"stream": stream.name}))
        left = [
            one for one in _asked_before(resource, stream) if one not in settings_.asked_of(spec)
        ]
        if left:
            said[Type.SYNCED] = Claim(Reason.SETTINGS_KEPT, {"fields": ", ".join(left)})
        return Decision(said)
    names_ = ", ".join(fields)
    said = _said(resource, seen, Claim(Reason.ALTERING, {"stream": stream.name, "fields": names_}))
    said[Type.SYNCED] = Claim(Reason.ALTERING, {"fields": names_})
    return Decision(said, action)


def _asked_before(resource: Resource, stream: ObservedStream) -> tuple[str, ...]:
    """What was asked for of this stream, and not of a former one of its name."""
    return resource.asked if resource.creation_id == str(stream.stream_id) else ()


def _fixed(spec: StreamSpec, stream: ObservedStream) -> tuple[str, ...]:
    """Paths of what differs and cannot be changed."""
    found = [
        name
        for name, asked, present in (
            ("subject", spec.subject, stream.subject),
            ("group", spec.group or "", stream.group),
            ("partitions", spec.partitions, stream.partition_count),
        )
        if asked != present
    ]
    wanted = settings_.settings_of(spec.config, _factor(spec, stream))
    changed = settings_.differences(wanted, stream.settings)
    found += [settings_.path_of(name) for name in changed if name in settings_.FIXED]
    return tuple(found)


def _factor(spec: StreamSpec, stream: ObservedStream) -> int:
    """Replicas of each partition, with -1 as it was resolved at creation."""
    return spec.replication_factor if spec.replication_factor > 0 else stream.factor


def _differing(spec: StreamSpec, stream: ObservedStream) -> tuple[str, ...]:
    """Paths of what differs and can be changed."""
    wanted = settings_.settings_of(spec.config, _factor(spec, stream))
    changed = settings_.differences(wanted, stream.settings)
    found = [settings_.path_of(name) for name in changed if name not in settings_.FIXED]
    if _factor(spec, stream) != stream.factor:
        found.append("replicationFactor")
    if any(one.is_readonly != spec.readonly for one in stream.partitions):
        found.append("readonly")
    return tuple(found)


# -- what is said -------------------------------------------------------------------------------


def _said(resource: Resource, seen: Seen, ready: Claim) -> dict[StreamConditionType, Claim]:
    """All conditions, with the rest as far as it is known beside the first."""
    if ready.reason is Reason.CLUSTER_UNREACHABLE:
        return {Type.READY: ready, Type.SYNCED: ready, Type.HEALTHY: ready}
    unknown = unknown_of(resource, seen)
    if unknown is not None:
        return {Type.READY: ready, Type.SYNCED: unknown, Type.HEALTHY: unknown}
    assert seen.stream is not None
    return {Type.READY: ready, Type.SYNCED: Claim(Reason.EQUAL), Type.HEALTHY: health(seen.stream)}


def unknown_of(resource: Resource, seen: Seen) -> Claim | None:
    """Why nothing is known of a stream; None when something is."""
    if not (seen.cluster.is_heard and seen.cluster.is_allowed):
        return Claim(Reason.CLUSTER_NOT_READY)
    if seen.stream is None:
        return Claim(Reason.NOT_FOUND, {"stream": resource.stream_name})
    return None


def health(stream: ObservedStream) -> Claim:
    """Whether partitions have leaders and all their replicas in sync; the worst that is not so."""
    offline = sum(not one.leader for one in stream.partitions)
    below = sum(one.in_sync < min(one.min_isr, len(one.replicas)) for one in stream.partitions)
    under = sum(one.in_sync < len(one.replicas) for one in stream.partitions)
    for reason, count in (
        (Reason.PARTITIONS_OFFLINE, offline),
        (Reason.BELOW_MIN_ISR, below),
        (Reason.UNDER_REPLICATED, under),
    ):
        if count:
            return Claim(reason, {"partitions": count})
    return Claim(Reason.IN_SYNC, {"partitions": len(stream.partitions)})
