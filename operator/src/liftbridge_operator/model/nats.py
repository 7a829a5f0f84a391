"""How brokers reach NATS: existing servers, or one next to each broker."""

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
    """Credentials of brokers for the NATS servers; a changed Secret is read again."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "nats-auth-one",
            ("user", "token", "nkey", "credentials"),
            "exactly one of user, token, nkey and credentials must be set",
        ),
    )
    user: UserSecret | None = option("User name and password.")
    token: SecretKeyRef | None = option("Authentication token.")
    nkey: SecretKeyRef | None = option("Seed of an nkey.")
    credentials: SecretKeyRef | None = option(
        "Credentials file (`.creds`): a user JWT with the seed of its nkey."
    )


class NatsTls(Model):
    """TLS for connections to the NATS servers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "nats-tls-something",
            "has(self.ca) || has(self.clientSecretName)",
            "set ca, clientSecretName or both",
            reason=RuleReason.REQUIRED,
        ),
    )
    ca: SecretKeyRef | None = option(
        "CAs for the certificates of the servers; defaults to those of the image."
    )
    client_secret_name: ObjectName | None = option(
        "Secret of type `kubernetes.io/tls` with the client certificate of brokers; with servers "
        "that map certificates to users it replaces `auth`."
    )


class EmbeddedNats(Model):
    """A NATS server next to each broker; routes join the servers into one NATS cluster."""

    image: Text | None = option(
        "Image of the NATS server; defaults to the broker image, which contains one."
    )
    payload_bytes_max: Size = Field(
        default=QuantityText("1Mi"), description="Largest message that the servers accept."
    )
    cpu: Cpu = Field(default=QuantityText("100m"), description="Cores requested for each server.")
    memory: Size = Field(
        default=QuantityText("256Mi"),
        description="Memory request and limit of each server.",
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
            "exactly one of servers and embedded must be set",
        ),
        Rule(
            "nats-kind-immutable",
            "has(self.servers) == has(oldSelf.servers)",
            "servers and embedded cannot be switched: during the change half of the brokers "
            "would not reach the other half",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "nats-auth-of-servers",
            "!has(self.auth) || has(self.servers)",
            "auth is for servers; embedded servers have their own credentials",
            field=".auth",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "nats-tls-of-servers",
            "!has(self.tls) || has(self.servers)",
            "tls is for servers; embedded servers have their own certificates",
            field=".tls",
            reason=RuleReason.FORBIDDEN,
        ),
        immutable("nats-prefix-immutable", "subjectPrefix", "the prefix of internal subjects"),
    )
    subject_prefix: Annotated[
        str | None,
        StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_-]+$"),
    ] = option(
        "Prefix of the subjects between brokers, before the id of the cluster; defaults to "
        "`liftbridge`. Cannot be changed."
    )
    servers: Annotated[tuple[NatsUrl, ...] | None, ListOf(16, items_min=1, is_set=True)] = option(
        "URLs of NATS servers, such as `nats://nats.messaging.svc:4222`; `tls://` asks for TLS."
    )
    auth: NatsAuth | None = option("Credentials of brokers for `servers`; defaults to none.")
    tls: NatsTls | None = option("TLS for connections to `servers`.")
    embedded: EmbeddedNats | None = option("A NATS server next to each broker.")
