"""Commands about callers; see `controller.commands`."""

from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.access.rules import AccessRule

ACCESS_LEVEL: Final = 4
"""Lowest feature level at which the metadata may hold access rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Create an API token.

    Attributes:
        token_id: Public part of the token, chosen at random.
        principal: Whom its bearer acts for.
        groups: Groups of the principal.
        verifier: Argon2id hash of the secret part, in the PHC form.
        created: Wall clock of the broker that took the request, nanoseconds since 1970.
        expires: End of the token, nanoseconds since 1970; 0 for none.
        created_by: Principal that asked for it, for people; empty if unknown.
    """

    token_id: str
    principal: str
    groups: tuple[str, ...] = ()
    verifier: str = field(default="", repr=False)
    created: int = 0
    expires: int = 0
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireToken:
    """Bring the end of an API token forward, to nanoseconds since 1970."""

    token_id: str
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    """Remove an API token."""

    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAccess:
    """Turn access control of the cluster on or off.

    Attributes:
        is_on: Whether access rules are in force from now on, on every broker.
        super_users: Principals that get every right if nobody may change the rules yet.
    """

    is_on: bool
    super_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """Add operations to access rules, and take operations from them, all or nothing.

    Attributes:
        granted: Rules with the operations to add.
        revoked: Rules with the operations to take away; they need not exist.
    """

    granted: tuple[AccessRule, ...] = ()
    revoked: tuple[AccessRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """Set all limits of a principal or a stream; 0 is none.

    Attributes:
        kind: `QuotaKind`, as text.
        name: Name of the principal or stream.
        publish_bytes: See `access.quotas.Quota`, as the others.
    """

    kind: str
    name: str
    publish_bytes: int = 0
    publish_messages: int = 0
    read_bytes: int = 0
    read_messages: int = 0
    subscriptions: int = 0
    streams: int = 0
    stored_bytes: int = 0


TokenCommand = CreateToken | ExpireToken | RevokeToken
AccessCommand = SetAccess | ChangeRules
