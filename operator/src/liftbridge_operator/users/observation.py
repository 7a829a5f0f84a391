"""Observation of a user, its resource, its Secret and its cluster, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.model.user import UserSpec
from liftbridge_operator.streams.observation import PresentCondition, Refused, SeenCluster
from liftbridge_operator.users.rules import Rules


class Limits(NamedTuple):
    """Quota of a principal; 0 is no limit."""

    publish_bytes: int = 0
    publish_messages: int = 0
    read_bytes: int = 0
    read_messages: int = 0
    subscriptions: int = 0
    streams: int = 0


NO_LIMITS = Limits()


class ObservedToken(NamedTuple):
    """An API token as stored in the metadata.

    Attributes:
        token_id: Public part.
        groups: Groups of its principal, among them the mark of a resource.
        created_s: Unix seconds.
        expires_s: Unix seconds; 0 for never.
    """

    token_id: str
    principal: str
    groups: tuple[str, ...]
    created_s: int
    expires_s: int


class Snapshot(NamedTuple):
    """Everything that brokers keep about callers.

    Attributes:
        is_on: Whether access rules are in force in the cluster.
        rules: Rules of single principals, by principal; without those of groups.
        quotas: Quotas of single principals.
        tokens: All tokens with the mark of a resource.
    """

    is_on: bool
    rules: Mapping[str, Rules]
    quotas: Mapping[str, Limits]
    tokens: tuple[ObservedToken, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a cluster offers to a user.

    Attributes:
        fault: Why a user of this specification cannot be served, with the remedy; empty for none.
        wait: What the cluster still lacks for that; empty for none.
        address: Host and port of the listener.
        ca: Authorities that clients trust, PEM; empty for those of the system.
        authority: Authority that signs certificates of users; None unless one is needed and
            readable.
    """

    fault: str = ""
    wait: str = ""
    address: str = ""
    ca: bytes = b""
    authority: Known | None = None


@dataclass(frozen=True, slots=True)
class ObservedSecret:
    """The Secret of a user.

    Attributes:
        is_own: Whether the resource owns it.
        owner: Description of its owner.
        is_current: Whether it has exactly what it should have, apart from the credential.
        token_id: Public part of the token in it; empty for none.
        former_id: That of the token that it had before; empty for none.
        certificate: Certificate in it, if its key fits; None otherwise.
    """

    is_own: bool
    owner: str = ""
    is_current: bool = False
    token_id: str = ""
    former_id: str = ""
    certificate: Known | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A `LiftbridgeUser` as read.

    Attributes:
        created: `metadata.creationTimestamp`.
        spec: None when it cannot be read.
        unread: Why; empty for none.
        principal: Name of the client at the brokers.
        has_finalizer: Whether it has the finalizer of the operator.
        confirmed: Value of the annotation that gives up a deletion; empty for none.
        granted: Operations that the status lists as added by this resource.
        has_quota: Whether the status claims the quota of the principal.
        conditions: Conditions of the status, by type.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    spec: UserSpec | None
    principal: str
    unread: str = ""
    is_deleting: bool = False
    has_finalizer: bool = False
    confirmed: str = ""
    granted: Rules = field(default_factory=dict)
    has_quota: bool = False
    observed_generation: int = -1
    conditions: Mapping[str, PresentCondition] = field(default_factory=dict)

    @property
    def secret_name(self) -> str:
        """Name of its Secret."""
        return (self.spec.secret_name if self.spec else None) or self.name

    @property
    def age(self) -> tuple[str, str]:
        """Sort key: creation time, then UID; the older of two resources has the lesser key."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True)
class Seen:
    """Observation of a pass, without the resource itself.

    Attributes:
        cluster: The cluster; `is_heard` says whether the next four fields are known.
        is_on: Whether access rules are in force.
        rules: Rules of the principal.
        limits: Quota of the principal; None for none.
        tokens: Tokens with the mark of the resource.
        offer: What the cluster offers.
        secret: None for no such Secret.
        older: An older resource of the same principal and cluster; empty for none.
        refused: Last refusal of an action.
        now_s: Unix seconds.
    """

    cluster: SeenCluster
    now_s: int
    is_on: bool = False
    rules: Rules = field(default_factory=dict)
    limits: Limits | None = None
    tokens: tuple[ObservedToken, ...] = ()
    offer: Offer = Offer()
    secret: ObservedSecret | None = None
    older: str = ""
    refused: Refused | None = None
