"""Build the whole status of a `LiftbridgeUser` from the decision; stable when nothing changed."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from liftbridge_operator.cluster.observing.times import moment_text, since_text
from liftbridge_operator.model.catalogue.claim import Claim
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import UserConditionType
from liftbridge_operator.model.user import USER_KIND, UserSpec, UserStatus
from liftbridge_operator.users.actions import ChangeRules, SetQuota
from liftbridge_operator.users.decide import Decision, held_token, term_of
from liftbridge_operator.users.observation import NO_LIMITS, Resource, Seen
from liftbridge_operator.users.rules import manifest_of

_KEPT: Final = ("address", "tokenId", "expires", "renews", "lastSyncTime")


def status_of(
    resource: Resource, seen: Seen, decision: Decision, *, before: Mapping[str, Any], now_ms: int
) -> dict[str, Any]:
    """Build the whole status in its manifest form.

    What an action adds to the brokers is listed before it does so.

    Args:
        resource: The resource.
        seen: The observation.
        decision: The decision.
        before: The present status.
        now_ms: Unix milliseconds.
    """
    action = decision.action
    granted = action.ledger if isinstance(action, ChangeRules) else resource.granted
    has_quota = resource.has_quota
    if isinstance(action, SetQuota):
        has_quota = action.limits != NO_LIMITS or seen.limits is not None
    status: dict[str, Any] = {key: before[key] for key in _KEPT if key in before}
    status |= {
        "observedGeneration": resource.generation,
        "principal": resource.principal,
        "secretName": resource.secret_name,
        "granted": manifest_of(granted),
        "hasQuota": has_quota,
    }
    if resource.spec is not None:
        status |= {"authentication": _kind_of(resource.spec)}
        if seen.cluster.is_heard:
            status |= _of_credential(resource.spec, seen)
    status["conditions"] = [
        _condition(kind, claim, resource, now_ms) for kind, claim in decision.claims.items()
    ]
    return status


def _kind_of(spec: UserSpec) -> str:
    if spec.authentication.certificate is not None:
        return "Certificate"
    return "Token" if spec.authentication.token is not None else "ServiceAccount"


def _of_credential(spec: UserSpec, seen: Seen) -> dict[str, str]:
    found: dict[str, str] = {}
    if seen.offer.address:
        found["address"] = seen.offer.address
    token, term = held_token(seen), term_of(spec, seen)
    if token is not None:
        found["tokenId"] = token.token_id
    if term is not None:
        found |= {"expires": moment_text(term[0] * 1_000), "renews": moment_text(term[1] * 1_000)}
    return found


def _condition(
    kind: UserConditionType, claim: Claim, resource: Resource, now_ms: int
) -> dict[str, Any]:
    spec = load_catalogue().condition(USER_KIND, kind).reasons[claim.reason]
    before = resource.conditions.get(kind)
    since = moment_text(now_ms)
    if before is not None and before.status == spec.status:
        since = since_text(before.since, now_ms)
    return {
        "type": kind.value,
        "status": spec.status,
        "observedGeneration": resource.generation,
        "lastTransitionTime": since,
        "reason": spec.reason,
        "message": spec.text.fill(claim.values),
    }


def is_same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two statuses are equal, after defaults of the API server."""
    try:
        return UserStatus.model_validate(status) == UserStatus.model_validate(before)
    except ValidationError:
        return False
