"""How brokers reach NATS: servers of somebody else, or one beside each broker."""

from typing import Annotated, ClassVar

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
from liftbridge_operator.model.kube import SecretKeyRef
from liftbridge_operator.model.values import Cpu, ObjectName, QuantityText, SecretKey, Size, Text

NatsUrl = Annotated[
    str,
    StringConstraints(max_length=256, pattern=r"^(nats|tls)://[A-Za-z0-9.\[\]:-]{1,240}$"),
]


class UserSecret(Model):
    """A Secret with a user name and a password."""

    name: ObjectName = Field(description="Name of the Secret.")
    user_key: SecretKey = Field(default="username", description="Key of the user name.")
    password_key: SecretKey = Field(default="password", description="Key of the password.")


class NatsAuth(Model):
    """What brokers show to the NATS servers; a Secret that changes is read again."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "nats-auth-one",
            ("user", "token", "nkey", "credentials"),
            "exactly one of user, token, nkey and credentials is needed",
        ),
    )
    user: UserSecret | None = option("User name and password.")
    token: SecretKeyRef | None = option("Authentication token.")
    nkey: SecretKeyRef | None = option("Seed of an nkey.")
    credentials: SecretKeyRef | None = option(
        "Credentials file (`.creds`): a user JWT with the seed of its nkey."
    )


class NatsTls(Model):
    """TLS towards the NATS servers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "nats-tls-something",
            "has(self.ca) || has(self.clientSecretName)",
            "give ca, clientSecretName or both",
            reason=RuleReason.REQUIRED,
        ),
    )
    ca: SecretKeyRef | None = option(
        "Authorities for the certificates of the servers; those of the image without it."
    )
    client_secret_name: ObjectName | None = option(
        "Secret of type `kubernetes.io/tls` with the certificate that brokers show; with servers "
        "that map certificates to users it replaces `auth`."
    )


class EmbeddedNats(Model):
    """A NATS server beside each broker, joined by routes to one cluster of servers."""

    image: Text | None = option(
        "Image of the NATS server; the image of the broker, which has one, without it."
    )
    payload_bytes_max: Size = Field(
        default=QuantityText("1Mi"), description="Largest message that the servers take."
    )
    cpu: Cpu = Field(default=QuantityText("100m"), description="Cores that each server is granted.")
    memory: Size = Field(
        default=QuantityText("256Mi"),
        description="Memory that each server is granted, and may not exceed.",
    )


class Nats(Model):
    """How brokers reach NATS.

    The subjects between brokers begin with `subjectPrefix` and the id of the cluster, so two
    clusters on the same servers never meet.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "nats-one-kind",
            ("servers", "embedded"),
            "exactly one of servers and embedded is needed",
        ),
        Rule(
            "nats-kind-immutable",
            "has(self.servers) == has(oldSelf.servers)",
            "servers and embedded cannot be exchanged: during the change half of the brokers "
            "would not reach the other half",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "nats-auth-of-servers",
            "!has(self.auth) || has(self.servers)",
            "auth belongs to servers; embedded servers have credentials of their own",
            field=".auth",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "nats-tls-of-servers",
            "!has(self.tls) || has(self.servers)",
            "tls belongs to servers; embedded servers have certificates of their own",
            field=".tls",
            reason=RuleReason.FORBIDDEN,
        ),
        immutable("nats-prefix-immutable", "subjectPrefix", "the prefix of internal subjects"),
    )
    subject_prefix: Annotated[
        str | None,
        StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_-]+$"),
    ] = option(
        "Prefix of the subjects between brokers, before the id of the cluster; `liftbridge` "
        "without it. Cannot be changed."
    )
    servers: Annotated[tuple[NatsUrl, ...] | None, ListOf(16, items_min=1, is_set=True)] = option(
        "URLs of NATS servers, such as `nats://nats.messaging.svc:4222`; `tls://` asks for TLS."
    )
    auth: NatsAuth | None = option("What brokers show to `servers`; nothing without it.")
    tls: NatsTls | None = option("TLS towards `servers`.")
    embedded: EmbeddedNats | None = option("A NATS server beside each broker.")
