"""Decide the action and the conditions of a user from the observation: pure and total.

Checks in order: the cluster exists, admits the namespace and answers; no older resource has the
principal; the Secret is free; the cluster can serve the user. Then at most one action: rules,
quota, credential, former tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.names import EventReason, Reason, UserConditionType
from liftbridge_operator.model.units import SECOND_NS
from liftbridge_operator.model.user import COMMON_NAME_MAX, UserQuotas, UserSpec
from liftbridge_operator.model.values import duration_ns, size_bytes
from liftbridge_operator.streams.observation import Refused
from liftbridge_operator.streams.obstacles import obstacle_of
from liftbridge_operator.users import rules as rules_
from liftbridge_operator.users.actions import (
    Action,
    AddFinalizer,
    ChangeRules,
    IssueCertificate,
    MakeToken,
    OfResource,
    RevokeToken,
    SetQuota,
    WriteSecret,
)
from liftbridge_operator.users.observation import (
    NO_LIMITS,
    Limits,
    ObservedToken,
    Resource,
    Seen,
)

LOOK_SECONDS: Final = 60.0
"""Time after which a user at rest is compared with its cluster again."""
WAIT_SECONDS: Final = 10.0
"""Time after which a cluster that cannot be used is looked at again."""
CONFLICT_SECONDS: Final = 30.0
"""Time after which a resource that yields to another one is reconciled again."""
REFUSED_SECONDS: Final = 60.0
"""Time after which a request that brokers or the API server refused is retried."""
OVERLAP_SECONDS: Final = 3_600
"""Time for which a former token stays valid after the Secret has the next one: a kubelet updates a
Secret within minutes, and clients read it again."""
CLOCK_SECONDS: Final = 300
"""Difference of the clocks of operator and brokers that is allowed for: certificates are valid that
long before their issue, and a token may end that much later than asked for."""
TOKENS_MAX: Final = 4
"""Tokens of one resource at a time; beyond it the oldest former ones end at once."""

Type = UserConditionType


@dataclass(frozen=True, slots=True)
class Decision:
    """Action, conditions and Event of a pass.

    Attributes:
        claims: All conditions; conditions reported only while True are absent otherwise.
        action: None to do nothing.
        event: Event to write in addition.
        requeue_seconds: Time until the next pass without any change.
    """

    claims: Mapping[UserConditionType, Claim]
    action: Action | None = None
    event: tuple[EventReason, Mapping[str, object]] | None = None
    requeue_seconds: float = LOOK_SECONDS


def decide_user(resource: Resource, seen: Seen) -> Decision:
    """Decide the action and the conditions of a resource that is not being deleted.

    Args:
        resource: The resource.
        seen: The rest of the observation.
    """
    decision = _decided(resource, seen)
    before = refusal_of(decision, seen)
    if before is None:
        return decision
    if isinstance(decision.action, ChangeRules | SetQuota):
        ready = Claim(Reason.INVALID_SPEC, {"detail": before.detail})
    else:
        values = {"principal": resource.principal, "detail": before.detail}
        ready = Claim(Reason.REFUSED, values)
    return replace(
        decision,
        claims={**decision.claims, Type.READY: ready},
        action=decision.action if before.is_due else None,
        requeue_seconds=REFUSED_SECONDS,
    )


def refusal_of(decision: Decision, seen: Seen) -> Refused | None:
    """Return the last refusal if it concerns the decided action; None otherwise."""
    before = seen.refused
    if before is None or decision.action is None or before.what != change_of(decision.action):
        return None
    return before


def change_of(action: Action) -> str:
    """Return a key of an action, by which its refusal is recognised later."""
    if isinstance(action, IssueCertificate | OfResource):  # the same request at any time
        return type(action).__name__
    return repr(action)


def _decided(resource: Resource, seen: Seen) -> Decision:
    """Decide without regard to earlier refusals."""
    spec = resource.spec
    if spec is None:
        return Decision(claims_of(seen, Claim(Reason.INVALID_SPEC, {"detail": resource.unread})))
    against = obstacle_of(seen.cluster, resource.namespace)
    if against is not None:
        return _without_cluster(resource, seen, against)
    hindrance = _hindrance(resource, spec, seen)
    if hindrance is not None:
        return hindrance
    values = {"principal": resource.principal}
    action = _next(resource, spec, seen)
    if action is not None:
        return Decision(claims_of(seen, Claim(Reason.PROVISIONING, values)), action)
    return Decision(
        claims_of(seen, Claim(Reason.RECONCILED, values)),
        requeue_seconds=min(LOOK_SECONDS, max(1.0, _renews_s(spec, seen) - seen.now_s)),
    )


def _without_cluster(resource: Resource, seen: Seen, against: Claim) -> Decision:
    """Wait for the cluster; take everything away where the namespace is no longer allowed."""
    claims = claims_of(seen, against)
    if against.reason is not Reason.NOT_ALLOWED or not seen.cluster.is_heard:
        return Decision(claims, requeue_seconds=WAIT_SECONDS)
    event = (EventReason.NOT_ALLOWED, against.values)
    return Decision(claims, withdrawal(resource, seen), event, WAIT_SECONDS)


def _hindrance(resource: Resource, spec: UserSpec, seen: Seen) -> Decision | None:
    """Return why nothing is done at the brokers yet; None if nothing hinders it."""
    fault = _fault(resource, spec, seen)
    if fault:
        return Decision(claims_of(seen, Claim(Reason.INVALID_SPEC, {"detail": fault})))
    if not resource.has_finalizer:
        values = {"principal": resource.principal}
        return Decision(claims_of(seen, Claim(Reason.PROVISIONING, values)), AddFinalizer())
    rival = _rival(resource, spec, seen)
    if rival is not None:
        claims = claims_of(seen, Claim(Reason.CONFLICT, rival))
        return Decision(claims, None, (EventReason.CONFLICT, rival), CONFLICT_SECONDS)
    if seen.offer.wait:
        waiting = {"cluster": seen.cluster.name, "detail": seen.offer.wait}
        claims = claims_of(seen, Claim(Reason.CLUSTER_NOT_READY, waiting))
        return Decision(claims, requeue_seconds=WAIT_SECONDS)
    return None


def _next(resource: Resource, spec: UserSpec, seen: Seen) -> Action | None:
    """Return the next action of a user that nothing hinders: rights before the credential."""
    return (
        _of_rules(resource, spec, seen)
        or _of_quota(resource, spec, seen)
        or _of_credential(spec, seen)
        or _of_former(spec, seen)
    )


# -- obstacles ----------------------------------------------------------------------------------


def _fault(resource: Resource, spec: UserSpec, seen: Seen) -> str:
    """Return why the specification cannot be carried out, with the remedy; empty for none."""
    if resource.principal == names.operator_leaf(spec.cluster_ref.name):
        return f"principal {resource.principal} is that of the operator; choose another one"
    if spec.authentication.certificate and len(resource.principal) > COMMON_NAME_MAX:
        return f"principal: a certificate has at most {COMMON_NAME_MAX} characters; shorten it"
    return seen.offer.fault


def _rival(resource: Resource, spec: UserSpec, seen: Seen) -> dict[str, object] | None:
    """Return what another owner has: the principal, the quota or the Secret."""
    secret = seen.secret
    if seen.older:
        return {
            "object": f"principal {resource.principal}",
            "owner": f"LiftbridgeUser {seen.older}",
        }
    if secret is not None and not secret.is_own:
        return {"object": f"Secret {resource.secret_name}", "owner": secret.owner}
    wanted = limits_of(spec.quotas)
    if wanted != NO_LIMITS and not resource.has_quota and seen.limits not in (None, wanted):
        owner = "another client of the brokers, until `liftbridge quota remove`"
        return {"object": f"the quota of {resource.principal}", "owner": owner}
    return None


# -- rules and quota ----------------------------------------------------------------------------


def _of_rules(resource: Resource, spec: UserSpec, seen: Seen) -> ChangeRules | None:
    """Add operations that are missing, and take away own ones that are no longer wanted."""
    wanted = rules_.rules_of(spec.access)
    granted = rules_.minus(wanted, seen.rules)
    dropped = rules_.minus(resource.granted, wanted)
    revoked = rules_.both(dropped, seen.rules)
    if not granted and not dropped:
        return None
    ledger = rules_.plus(rules_.minus(resource.granted, rules_.minus(dropped, revoked)), granted)
    is_drift = bool(rules_.both(granted, resource.granted)) and is_settled(resource)
    return ChangeRules(granted, revoked, ledger, is_drift)


def _of_quota(resource: Resource, spec: UserSpec, seen: Seen) -> SetQuota | None:
    wanted, present = limits_of(spec.quotas), seen.limits or NO_LIMITS
    if wanted == NO_LIMITS and not resource.has_quota:
        return None  # a quota of this principal belongs to whoever set it
    if wanted == present and resource.has_quota == (wanted != NO_LIMITS):
        return None
    return SetQuota(wanted, is_drift=wanted != NO_LIMITS and is_settled(resource))


def limits_of(quotas: UserQuotas | None) -> Limits:
    """Return the limits of a specification."""
    if quotas is None:
        return NO_LIMITS
    return Limits(
        size_bytes(quotas.publish_bytes) if quotas.publish_bytes else 0,
        quotas.publish_messages or 0,
        size_bytes(quotas.read_bytes) if quotas.read_bytes else 0,
        quotas.read_messages or 0,
        quotas.subscriptions or 0,
        quotas.streams or 0,
    )


def is_settled(resource: Resource) -> bool:
    """Return whether the present specification was reconciled before."""
    ready = resource.conditions.get(Type.READY)
    return (
        resource.observed_generation == resource.generation
        and ready is not None
        and ready.reason == Reason.RECONCILED
    )


# -- credentials --------------------------------------------------------------------------------


def _of_credential(spec: UserSpec, seen: Seen) -> Action | None:
    """Make the credential if it is missing, due or not trusted; keep the rest of the Secret."""
    if spec.authentication.certificate is not None:
        if _is_certificate_due(spec, seen):
            return _certificate(spec, seen)
    elif spec.authentication.token is not None:
        action = _of_token(seconds_of(spec.authentication.token.lifetime), seen)
        if action is not None:
            return action
    if seen.secret is None or not seen.secret.is_current:
        return WriteSecret()
    return None


def _of_token(lifetime_s: int, seen: Seen) -> MakeToken | RevokeToken | None:
    """Make a token if none is held or it is due, once there is room for it."""
    held = held_token(seen)
    lost = _lost(seen)
    if lost is not None:
        return RevokeToken(lost.token_id, 0)
    if held is not None and not _is_due(held.expires_s, lifetime_s, seen.now_s):
        return None
    others = sorted((one for one in seen.tokens if one != held), key=lambda one: one.created_s)
    if len(seen.tokens) >= TOKENS_MAX and others:
        return RevokeToken(others[0].token_id, 0)
    return MakeToken(lifetime_s)


def _lost(seen: Seen) -> ObservedToken | None:
    """Return a token that no Secret ever held: a pass created it and could not write the Secret."""
    held, secret = held_token(seen), seen.secret
    if held is None or secret is None:
        return None
    later = (one for one in seen.tokens if one.created_s > held.created_s)
    return next((one for one in later if one.token_id != secret.former_id), None)


def _of_former(spec: UserSpec, seen: Seen) -> RevokeToken | None:
    """End former tokens after the overlap.

    Brokers count it from their time. If theirs is ahead, the end that they have set looks too late
    here, and to ask again would change nothing.
    """
    held, after_s = held_token(seen), overlap_s(spec)
    latest_s = seen.now_s + after_s + min(after_s, CLOCK_SECONDS)
    for one in seen.tokens:
        if one != held and (not one.expires_s or one.expires_s > latest_s):
            return RevokeToken(one.token_id, after_s)
    return None


def held_token(seen: Seen) -> ObservedToken | None:
    """Return the token in the Secret, if brokers still know it."""
    secret = seen.secret
    if secret is None or not secret.token_id:
        return None
    return next((one for one in seen.tokens if one.token_id == secret.token_id), None)


def overlap_s(spec: UserSpec) -> int:
    """Return for how long a former token stays valid."""
    token = spec.authentication.token
    return min(OVERLAP_SECONDS, seconds_of(token.lifetime) // 3) if token else OVERLAP_SECONDS


def _is_certificate_due(spec: UserSpec, seen: Seen) -> bool:
    held = seen.secret.certificate if seen.secret is not None else None
    authority, certificate = seen.offer.authority, spec.authentication.certificate
    assert authority is not None, "a cluster without an authority has a fault or a wait"
    assert certificate is not None
    if held is None or held.issuer_key_id != authority.key_id:
        return True
    # Nothing is gained by a certificate that ends with its authority, as the held one does.
    is_last = held.not_after_s == authority.not_after_s
    return _is_due(held.not_after_s, seconds_of(certificate.duration), seen.now_s) and not is_last


def _certificate(spec: UserSpec, seen: Seen) -> IssueCertificate:
    authority, certificate = seen.offer.authority, spec.authentication.certificate
    assert authority is not None
    assert certificate is not None
    ends_s = min(seen.now_s + seconds_of(certificate.duration), authority.not_after_s)
    return IssueCertificate(max(seen.now_s - CLOCK_SECONDS, authority.not_before_s), ends_s)


def _is_due(ends_s: int, length_s: int, now_s: int) -> bool:
    """Return whether a third of its length or less is left, or more than a new one would have."""
    left_s = ends_s - now_s
    return bool(ends_s) and (left_s <= length_s // 3 or left_s > length_s + CLOCK_SECONDS)


def term_of(spec: UserSpec, seen: Seen) -> tuple[int, int] | None:
    """Return when the credential in the Secret ends, and when it is replaced; None for none."""
    if spec.authentication.certificate is not None:
        held = seen.secret.certificate if seen.secret is not None else None
        if held is None:
            return None
        length = seconds_of(spec.authentication.certificate.duration)
        return held.not_after_s, held.not_after_s - length // 3
    token = held_token(seen)
    if spec.authentication.token is None or token is None or not token.expires_s:
        return None
    length = seconds_of(spec.authentication.token.lifetime)
    return token.expires_s, token.expires_s - length // 3


def _renews_s(spec: UserSpec, seen: Seen) -> int:
    term = term_of(spec, seen)
    return term[1] if term is not None else seen.now_s + int(LOOK_SECONDS)


def seconds_of(text: str) -> int:
    """Convert a duration to whole seconds."""
    return duration_ns(text) // SECOND_NS


# -- the end ------------------------------------------------------------------------------------


def withdrawal(resource: Resource, seen: Seen) -> Action | None:
    """Return the next action that takes the identity away; None when nothing is left."""
    for token in seen.tokens:
        return RevokeToken(token.token_id, 0)
    if resource.granted:
        revoked = rules_.both(resource.granted, seen.rules)
        return ChangeRules({}, revoked, revoked)
    if resource.has_quota:
        return SetQuota(NO_LIMITS)
    return None


def claims_of(seen: Seen, ready: Claim) -> dict[UserConditionType, Claim]:
    """Return all conditions."""
    if ready.reason is Reason.CLUSTER_UNREACHABLE:
        return {Type.READY: ready, Type.ENFORCED: ready}
    if not (seen.cluster.is_heard and seen.cluster.is_allowed):
        return {Type.READY: ready, Type.ENFORCED: Claim(Reason.CLUSTER_NOT_READY)}
    if seen.is_on:
        return {Type.READY: ready, Type.ENFORCED: Claim(Reason.RULES_APPLY)}
    return {
        Type.READY: ready,
        Type.ENFORCED: Claim(Reason.ACCESS_OFF, {"cluster": seen.cluster.name}),
    }
