"""Decide the action and the conditions of a stream from the observation: pure and total.

Checks in order: the cluster exists, admits the namespace and answers; no older resource has the
stream; the stream exists; its owner; its settings. At most one action.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import EventReason, Reason, StreamConditionType
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
    ObservedStream,
    Refused,
    Resource,
    Seen,
)
from liftbridge_operator.streams.obstacles import obstacle_of

CONFLICT_SECONDS: Final = 30.0
"""Time after which a resource that yields to another one is reconciled again."""
REFUSED_SECONDS: Final = 60.0
"""Time after which a request that brokers or the API server refused is retried."""

Type = StreamConditionType


@dataclass(frozen=True, slots=True)
class Decision:
    """Action, conditions and Event of a pass.

    Attributes:
        claims: All conditions; conditions reported only while True are absent otherwise.
        action: None to do nothing.
        ask: Fact to look up first; there is no action then.
        event: Event to write in addition.
        requeue_seconds: Time until the next pass without any change; 0 for none.
    """

    claims: Mapping[StreamConditionType, Claim]
    action: Action | None = None
    ask: Ask | None = None
    event: tuple[EventReason, Mapping[str, object]] | None = None
    requeue_seconds: float = 0.0


def decide_stream(resource: Resource, seen: Seen) -> Decision:
    """Decide the action and the conditions of a resource that is not being deleted.

    Args:
        resource: The resource.
        seen: The rest of the observation.
    """
    decision = _decided(resource, seen)
    action, before = decision.action, refusal_of(decision, seen)
    if before is None:
        return decision
    claims = dict(decision.claims)
    if isinstance(action, Create | Alter | SetReadonly):
        claims[Type.READY] = _invalid(before.detail)
        if seen.stream is not None:
            claims[Type.SYNCED] = Claim(Reason.REJECTED, {"detail": before.detail})
    else:
        values = {"stream": resource.stream_name, "detail": before.detail}
        claims[Type.READY] = Claim(Reason.REFUSED, values)
    return replace(
        decision,
        claims=claims,
        action=action if before.is_due else None,
        requeue_seconds=REFUSED_SECONDS,
    )


def refusal_of(decision: Decision, seen: Seen) -> Refused | None:
    """Return the last refusal if it concerns the decided action; None otherwise."""
    before = seen.refused
    if before is None or decision.action is None or before.what != change_of(decision.action):
        return None
    return before


def _decided(resource: Resource, seen: Seen) -> Decision:
    """Decide without regard to earlier refusals."""
    spec = resource.spec
    if spec is None:
        return Decision(_claims(resource, seen, _invalid(resource.unread)))
    against = obstacle_of(seen.cluster, resource.namespace)
    if against is not None:
        return Decision(_claims(resource, seen, against))
    if spec.management_policy is ManagementPolicy.OBSERVE:
        return _observe(resource, spec, seen)
    if _is_let_go(resource, spec, seen):
        return _let_go(resource, seen)
    return _bring_about(resource, spec, seen)


def _bring_about(resource: Resource, spec: StreamSpec, seen: Seen) -> Decision:
    """Create, adopt or maintain the stream of the resource."""
    if needs_finalizer(spec, seen) and not resource.has_finalizer:
        return Decision(_claims(resource, seen, _pending(resource, seen)), AddFinalizer())
    if seen.older:
        return _stand_back(resource, seen, seen.older)
    if seen.stream is None:
        return _create(resource, spec, seen)
    return _manage(resource, spec, seen, seen.stream)


def needs_finalizer(spec: StreamSpec, seen: Seen) -> bool:
    """Return whether deletion of the resource has to wait for the fate of the stream."""
    return spec.deletion_policy is DeletionPolicy.DELETE and not seen.is_namespaced


# -- obstacles ----------------------------------------------------------------------------------


def _invalid(detail: str) -> Claim:
    return Claim(Reason.INVALID_SPEC, {"detail": detail})


def _pending(resource: Resource, seen: Seen) -> Claim:
    """Return the claim of a step that has to complete before the resource owns the stream."""
    values = {"stream": resource.stream_name}
    if seen.stream is None:
        return Claim(Reason.CREATE_PENDING, values)
    return Claim(Reason.ALTERING, {**values, "fields": "its owner"})


def _stand_back(resource: Resource, seen: Seen, owner: str) -> Decision:
    """Report a conflict: another resource or program has the stream."""
    values = {"stream": resource.stream_name, "owner": owner}
    claims = _claims(resource, seen, Claim(Reason.CONFLICT, values))
    return Decision(claims, event=(EventReason.CONFLICT, values), requeue_seconds=CONFLICT_SECONDS)


# -- observe, release ---------------------------------------------------------------------------


def _observe(resource: Resource, spec: StreamSpec, seen: Seen) -> Decision:
    """Observe a stream without managing it; remove the mark left from managing it before."""
    values = {"stream": resource.stream_name}
    if seen.stream is None:
        return Decision(_claims(resource, seen, Claim(Reason.NOT_FOUND, values)))
    claims = _claims(resource, seen, Claim(Reason.OBSERVED, values))
    fields = (*_fixed(spec, seen.stream), *_differing(spec, seen.stream))
    if fields:
        claims[Type.SYNCED] = Claim(Reason.DRIFTED, {"fields": ", ".join(fields)})
    is_mine = seen.stream.owner == mark_of(resource.namespace, resource.name, resource.uid)
    return Decision(claims, Forget(seen.stream.stream_id) if is_mine else None)


def _is_let_go(resource: Resource, spec: StreamSpec, seen: Seen) -> bool:
    """Return whether to delete the stream without its resource, where no finalizer is allowed."""
    return (
        seen.is_namespaced
        and spec.deletion_policy is DeletionPolicy.DELETE
        and resource.confirmed != ""
        and resource.confirmed == resource.creation_id
    )


def _let_go(resource: Resource, seen: Seen) -> Decision:
    """Delete the confirmed stream; it is not recreated while the confirmation is set."""
    claims = _claims(resource, seen, Claim(Reason.DELETING, {"stream": resource.stream_name}))
    stream = seen.stream
    if stream is None or str(stream.stream_id) != resource.confirmed:
        return Decision(claims)
    if stream.owner != mark_of(resource.namespace, resource.name, resource.uid):
        return Decision(claims)
    return Decision(claims, Delete(stream.stream_id))


# -- create, adopt, keep ------------------------------------------------------------------------


def change_of(action: Action) -> str:
    """Return a key of a change, by which its refusal is recognised later."""
    if isinstance(action, OfResource):  # the same request, whatever the mark on the stream
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
    return Decision(_claims(resource, seen, _pending(resource, seen)), action)


def _manage(resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream) -> Decision:
    """Manage an existing stream: check its owner, then its settings."""
    mine = mark_of(resource.namespace, resource.name, resource.uid)
    fixed = _fixed(spec, stream)
    if stream.owner != mine:
        against = _of_owner(resource, spec, seen, stream)
        if against is not None:
            return against
    if fixed:
        values = {"stream": stream.name, "fields": ", ".join(fixed)}
        claims = _claims(resource, seen, Claim(Reason.DRIFTED, values))
        claims[Type.SYNCED] = Claim(Reason.DRIFTED, {"fields": values["fields"]})
        return Decision(claims)
    if stream.owner != mine:
        claims = _claims(resource, seen, _pending(resource, seen))
        is_adopted = not _is_own(resource, stream)
        return Decision(claims, Mark(stream.stream_id, stream.owner, is_adopted=is_adopted))
    return _keep(resource, spec, seen, stream)


def _of_owner(
    resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream
) -> Decision | None:
    """Return why a stream without this resource's mark is not adopted; None if it may be."""
    if stream.owner:
        if seen.holder is UNKNOWN:
            return Decision({}, ask=Ask.HOLDER)
        holder = seen.holder
        if holder is not None and holder.is_older:
            return _stand_back(resource, seen, holder.key)
        if holder is not None:
            return None  # a younger resource has it, and notices the new mark
    if spec.adoption_policy is AdoptionPolicy.NEVER and not _is_own(resource, stream):
        return _stand_back(resource, seen, "no resource, and adoptionPolicy is Never")
    return None


def _is_own(resource: Resource, stream: ObservedStream) -> bool:
    """Return whether an unmarked stream is the one that this resource was about to create.

    The status announces the creation before the request to the brokers, when there is no stream;
    the operator may have ended between their answer and the mark.
    """
    ready = resource.conditions.get(Type.READY)
    return stream.owner == "" and ready is not None and ready.reason == Reason.CREATE_PENDING


def _keep(resource: Resource, spec: StreamSpec, seen: Seen, stream: ObservedStream) -> Decision:
    """Change settings of the resource's stream that differ."""
    fields = _differing(spec, stream)
    is_drift = (
        resource.observed_generation == resource.generation
        and (ready := resource.conditions.get(Type.READY)) is not None
        and ready.reason == Reason.RECONCILED
    )
    action: Action | None = None
    if fields and fields != ("readonly",):
        factor = spec.replication_factor if "replicationFactor" in fields else 0
        wanted = settings_.settings_of(spec.config, _factor(spec, stream))
        changed = settings_.differences(wanted, stream.settings)
        names = tuple(field for field in fields if field != "readonly")
        action = Alter(changed, factor, names, is_drift)
    elif fields:
        action = SetReadonly(spec.readonly, is_drift)
    if action is None:
        claims = _claims(resource, seen, Claim(Reason.RECONCILED, {"stream": stream.name}))
        left = [
            one for one in _asked_before(resource, stream) if one not in settings_.asked_of(spec)
        ]
        if left:
            claims[Type.SYNCED] = Claim(Reason.SETTINGS_KEPT, {"fields": ", ".join(left)})
        return Decision(claims)
    names_ = ", ".join(fields)
    claims = _claims(
        resource, seen, Claim(Reason.ALTERING, {"stream": stream.name, "fields": names_})
    )
    claims[Type.SYNCED] = Claim(Reason.ALTERING, {"fields": names_})
    return Decision(claims, action)


def _asked_before(resource: Resource, stream: ObservedStream) -> tuple[str, ...]:
    """Return settings requested of this stream, not of a former one of its name."""
    return resource.asked if resource.creation_id == str(stream.stream_id) else ()


def _fixed(spec: StreamSpec, stream: ObservedStream) -> tuple[str, ...]:
    """Return paths of differing fields that cannot be changed."""
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
    """Return replicas of each partition, with -1 resolved as at creation."""
    return spec.replication_factor if spec.replication_factor > 0 else stream.factor


def _differing(spec: StreamSpec, stream: ObservedStream) -> tuple[str, ...]:
    """Return paths of differing fields that can be changed."""
    wanted = settings_.settings_of(spec.config, _factor(spec, stream))
    changed = settings_.differences(wanted, stream.settings)
    found = [settings_.path_of(name) for name in changed if name not in settings_.FIXED]
    if _factor(spec, stream) != stream.factor:
        found.append("replicationFactor")
    if any(partition.is_readonly != spec.readonly for partition in stream.partitions):
        found.append("readonly")
    return tuple(found)


# -- conditions ---------------------------------------------------------------------------------


def _claims(resource: Resource, seen: Seen, ready: Claim) -> dict[StreamConditionType, Claim]:
    """Return all conditions, with `Synced` and `Healthy` as far as they are known."""
    if ready.reason is Reason.CLUSTER_UNREACHABLE:
        return {Type.READY: ready, Type.SYNCED: ready, Type.HEALTHY: ready}
    unknown = unknown_of(resource, seen)
    if unknown is not None:
        return {Type.READY: ready, Type.SYNCED: unknown, Type.HEALTHY: unknown}
    assert seen.stream is not None
    return {Type.READY: ready, Type.SYNCED: Claim(Reason.EQUAL), Type.HEALTHY: health(seen.stream)}


def unknown_of(resource: Resource, seen: Seen) -> Claim | None:
    """Return the reason for an unknown state of a stream; None when it is known."""
    if not (seen.cluster.is_heard and seen.cluster.is_allowed):
        return Claim(Reason.CLUSTER_NOT_READY)
    if seen.stream is None:
        return Claim(Reason.NOT_FOUND, {"stream": resource.stream_name})
    return None


def health(stream: ObservedStream) -> Claim:
    """Return the worst state of partitions: offline, below min ISR, under-replicated, in sync."""
    offline = sum(not partition.leader for partition in stream.partitions)
    below = sum(one.in_sync < min(one.min_isr, len(one.replicas)) for one in stream.partitions)
    under = sum(partition.in_sync < len(partition.replicas) for partition in stream.partitions)
    for reason, count in (
        (Reason.PARTITIONS_OFFLINE, offline),
        (Reason.BELOW_MIN_ISR, below),
        (Reason.UNDER_REPLICATED, under),
    ):
        if count:
            return Claim(reason, {"partitions": count})
    return Claim(Reason.IN_SYNC, {"partitions": len(stream.partitions)})
