"""`LiftbridgeUser`: one client of a cluster (`liftbridgeusers.liftbridge.io`).

It says how the client proves who it is, what it may do, and how much it may use. Name and kind of
proof cannot be changed, so that an identity is one thing from its creation to its end.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import (
    ListOf,
    Model,
    Rule,
    RuleReason,
    exactly_one,
    immutable,
    option,
)
from liftbridge_operator.model.cluster_status import Note, Short
from liftbridge_operator.model.conditions import Conditions, Status
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Duration,
    DurationText,
    Label,
    ObjectName,
    Size,
    Timestamp,
)

USER_KIND: Final = "LiftbridgeUser"

RULES_MAX: Final = 100
"""Access rules of one user; a cluster has room for 5,000."""

COMMON_NAME_MAX: Final = 64
"""Longest common name of a certificate (X.509)."""

# Visible ASCII except `*`, which would make a rule for the principal one for others, too.
_PRINCIPAL_PATTERN: Final = r"^[!-)+-~]+$"

Principal = Annotated[
    str, StringConstraints(min_length=1, max_length=256, pattern=_PRINCIPAL_PATTERN)
]
"""Name by which brokers know a client."""


class ResourceKind(StrEnum):
    """Kind of what an access rule is about."""

    STREAM = "Stream"
    SUBJECT = "Subject"
    GROUP = "Group"
    CURSOR = "Cursor"
    CLUSTER = "Cluster"


class Operation(StrEnum):
    """What an access rule is about; `All` includes operations of later versions."""

    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    PAUSE = "Pause"
    SET_READONLY = "SetReadonly"
    DESCRIBE = "Describe"
    PUBLISH = "Publish"
    READ = "Read"
    ATTACH = "Attach"
    JOIN = "Join"
    SET = "Set"
    GRANT = "Grant"
    ALL = "All"


OPERATIONS: Final = {
    ResourceKind.STREAM: (
        *(Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.PAUSE),
        *(Operation.SET_READONLY, Operation.DESCRIBE, Operation.PUBLISH, Operation.READ),
    ),
    ResourceKind.SUBJECT: (Operation.ATTACH, Operation.PUBLISH),
    ResourceKind.GROUP: (Operation.JOIN, Operation.DESCRIBE, Operation.DELETE),
    ResourceKind.CURSOR: (Operation.SET, Operation.READ),
    ResourceKind.CLUSTER: (Operation.DESCRIBE, Operation.ALTER, Operation.GRANT),
}
"""Operations of each kind of resource, besides `All`; brokers have the same table."""


class Effect(StrEnum):
    """What an access rule does; a deny wins over every allow."""

    ALLOW = "Allow"
    DENY = "Deny"


def _fitting() -> Rule:
    """Rule that the operations exist for the kind of resource."""
    cases = " || ".join(
        f"self.resource == '{kind.value}' && self.operations.all(one, one in "
        f"{[one.value for one in (*operations, Operation.ALL)]})"
        for kind, operations in OPERATIONS.items()
    )
    named = "; ".join(
        f"{kind.value}: {', '.join(operations)}" for kind, operations in OPERATIONS.items()
    )
    return Rule(
        "user-access-operations",
        cases,
        f"operations must be All, or those of the resource. {named}",
        field=".operations",
    )


class AccessRule(Model):
    """Operations on resources, allowed or denied."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "user-access-name",
            "has(self.name) == (self.resource != 'Cluster')",
            "name must be set, except for Cluster",
            field=".name",
        ),
        _fitting(),
    )
    resource: ResourceKind = Field(description="Kind of the resource.")
    name: Annotated[
        str | None, StringConstraints(min_length=1, max_length=512, pattern=r"^\S(.*\S)?$")
    ] = option(
        "Name of the resource; of a cursor `STREAM/CURSOR`. A name that ends in `*` is a prefix; "
        "`*` and `>` elsewhere are wildcards of NATS, and so is every one in a subject."
    )
    operations: Annotated[
        tuple[Operation, ...], ListOf(len(Operation), is_set=True, items_min=1)
    ] = Field(description="Operations; which ones exist depends on the resource.")
    effect: Effect = Field(
        default=Effect.ALLOW, description="Whether they are allowed or denied; a deny wins."
    )


def _at_least_a_minute(name: str, field: str) -> Rule:
    return Rule(
        name,
        f"duration(self.{field}) >= duration('60s')",
        f"{field} must be at least 60s",
        field=f".{field}",
    )


class CertificateAuthentication(Model):
    """A client certificate."""

    rules: ClassVar[tuple[Rule, ...]] = (_at_least_a_minute("user-certificate", "duration"),)
    duration: Duration = Field(
        default=DurationText("2160h"),
        description="How long a certificate is valid; it is replaced after two thirds of that.",
    )


class TokenAuthentication(Model):
    """An API token."""

    rules: ClassVar[tuple[Rule, ...]] = (_at_least_a_minute("user-token", "lifetime"),)
    lifetime: Duration = Field(
        default=DurationText("2160h"),
        description="How long a token is valid; it is replaced after two thirds of that. The "
        "former one stays valid for another hour, or a third of the lifetime if that is less.",
    )


class ServiceAccountAuthentication(Model):
    """A service account, by tokens of Kubernetes that pods have themselves."""

    name: ObjectName = Field(description="Name of the ServiceAccount.")
    namespace: Label | None = option("Its namespace; defaults to the namespace of this resource.")


class Authentication(Model):
    """How the client proves who it is."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "user-authentication",
            ("certificate", "token", "serviceAccount"),
            "exactly one of certificate, token and serviceAccount must be set",
        ),
    )
    certificate: CertificateAuthentication | None = option(
        "A client certificate of the cluster's own CA; needs `tls.mode: Generated` without "
        "`tls.clientCA`, and `tls.clientAuth`."
    )
    token: TokenAuthentication | None = option(
        "An API token of the brokers; needs `access.tokens` of the cluster."
    )
    service_account: ServiceAccountAuthentication | None = option(
        "The service account of the client's pods, whose tokens brokers verify; needs `access.jwt` "
        "of the cluster. The Secret has no credential then."
    )


class UserQuotas(Model):
    """Limits of the principal, at each broker; no limit by default."""

    publish_bytes: Size | None = option("Bytes published in a second.")
    publish_messages: int | None = option("Messages published in a second.", ge=1, le=INTEGER_MAX)
    read_bytes: Size | None = option("Bytes read in a second.")
    read_messages: int | None = option("Messages read in a second.", ge=1, le=INTEGER_MAX)
    subscriptions: int | None = option("Open subscriptions.", ge=1, le=INTEGER_MAX)
    streams: int | None = option(
        "Streams that it created and that still exist.", ge=1, le=INTEGER_MAX
    )


class UserClusterRef(Model):
    """The cluster that a user belongs to."""

    name: Label = Field(description="Name of the LiftbridgeCluster.")
    namespace: Label | None = option(
        "Its namespace, which must allow this one in `spec.access.allowedNamespaces`; defaults to "
        "the namespace of this resource."
    )


class UserSpec(Model):
    """Desired state of a user."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "user-cluster-immutable",
            "self.clusterRef == oldSelf.clusterRef",
            "the cluster of a user cannot be changed",
            field=".clusterRef",
            reason=RuleReason.FORBIDDEN,
        ),
        immutable("user-principal-immutable", "principal", "the principal of a user"),
        immutable("user-secret-immutable", "secretName", "the Secret of a user"),
        Rule(
            "user-authentication-immutable",
            "has(self.authentication.certificate) == has(oldSelf.authentication.certificate) && "
            "has(self.authentication.token) == has(oldSelf.authentication.token) && "
            "(!has(self.authentication.serviceAccount) || "
            "!has(oldSelf.authentication.serviceAccount) || "
            "self.authentication.serviceAccount == oldSelf.authentication.serviceAccount)",
            "the kind of authentication, and the service account, cannot be changed",
            field=".authentication",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "user-principal-of-account",
            "!has(self.principal) || !has(self.authentication.serviceAccount)",
            "the principal of a service account is its own name; leave principal out",
            field=".principal",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "user-principal-length",
            "!has(self.principal) || !has(self.authentication.certificate) || "
            f"size(self.principal) <= {COMMON_NAME_MAX}",
            f"the principal of a certificate has at most {COMMON_NAME_MAX} characters",
            field=".principal",
        ),
    )
    cluster_ref: UserClusterRef = Field(
        description="The cluster that the user belongs to. Cannot be changed."
    )
    principal: Principal | None = option(
        "Name by which brokers know the client; defaults to `metadata.name`, and for a service "
        "account it is `system:serviceaccount:NAMESPACE:NAME`. Cannot be changed, added or removed."
    )
    authentication: Authentication = Field(
        description="How the client proves who it is. Its kind cannot be changed."
    )
    secret_name: ObjectName | None = option(
        "Name of the Secret with everything that the client needs; defaults to `metadata.name`. "
        "Cannot be changed, added or removed."
    )
    listener: Label | None = option(
        "Listener of the cluster whose address the Secret has; defaults to the first with TLS."
    )
    access: Annotated[tuple[AccessRule, ...], ListOf(RULES_MAX)] = Field(
        default=(), description="What the client may do; by default nothing."
    )
    quotas: UserQuotas | None = option("How much the client may use.")


USER_RULES: Final = (
    Rule(
        "user-name-length",
        "has(self.spec.principal) || !has(self.spec.authentication.certificate) || "
        f"size(self.metadata.name) <= {COMMON_NAME_MAX}",
        f"the principal of a certificate has at most {COMMON_NAME_MAX} characters; set principal",
        field=".spec.principal",
        reason=RuleReason.REQUIRED,
    ),
)


class GrantedRule(Model):
    """An access rule that this resource added to the cluster, with the operations it added."""

    resource: ResourceKind = Field(description="Kind of the resource.")
    name: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Name of the resource, as in the spec."
    )
    operations: Annotated[tuple[Operation, ...], ListOf(len(Operation), is_set=True)] = Field(
        description="Operations."
    )
    effect: Effect = Field(description="Whether they are allowed or denied.")


class UserStatus(Status):
    """Observed state of the user."""

    principal: Note | None = option("Name by which brokers know the client.")
    authentication: Short | None = option("Kind of its proof.")
    secret_name: Note | None = option("Secret with everything that the client needs.")
    address: Note | None = option("Address of the brokers in that Secret.")
    token_id: Short | None = option("Public part of the token in that Secret.")
    expires: Timestamp | None = option("When the credential in that Secret ends.")
    renews: Timestamp | None = option("When it is replaced.")
    granted: Annotated[tuple[GrantedRule, ...], ListOf(2 * RULES_MAX)] = Field(
        default=(),
        description="What this resource added to the access rules of the cluster; only this is "
        "taken away again.",
    )
    has_quota: bool = Field(
        default=False, description="Whether the quota of the principal is that of this resource."
    )
    last_sync_time: Timestamp | None = option("When the operator last changed the user.")
    conditions: Conditions = Field(default=(), description="Conditions of the user.")
