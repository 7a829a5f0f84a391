"""Actions of a pass over a user, as values: a closed set."""

from dataclasses import dataclass

from liftbridge_operator.users.observation import Limits
from liftbridge_operator.users.rules import Rules


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add the finalizer, so that the identity ends before its resource does."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the finalizer: the identity is gone, or a user gave its removal up."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """Grant and revoke rules of the principal, all of them or none.

    Attributes:
        ledger: What the status lists as added by the resource, before the change is made: what is
            there by then, and what is to be added.
        is_drift: Whether this reverts drift.
    """

    granted: Rules
    revoked: Rules
    ledger: Rules
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class SetQuota:
    """Set the quota of the principal; without limits, remove it."""

    limits: Limits
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    """Issue a certificate for the principal, and write the Secret with it."""

    begins_s: int
    ends_s: int


@dataclass(frozen=True, slots=True)
class MakeToken:
    """Create a token for the principal, and write the Secret with it."""

    lifetime_s: int


@dataclass(frozen=True, slots=True)
class WriteSecret:
    """Write the Secret with the credential that it has, if any."""


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """End a token of the resource; never the one in the Secret while the user exists."""

    token_id: str
    after_s: int


OfResource = AddFinalizer | RemoveFinalizer
OfBrokers = ChangeRules | SetQuota | MakeToken | RevokeToken
OfSecret = IssueCertificate | MakeToken | WriteSecret
Action = OfResource | OfBrokers | OfSecret
