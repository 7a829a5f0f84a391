"""Who clients are, what proves it, and whether access rules apply; keys of encrypted streams."""

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import (
    ListOf,
    Model,
    Rule,
    RuleReason,
    exactly_one,
    option,
)
from liftbridge_operator.model.kube import ConfigMapKeyRef, SecretKeyRef
from liftbridge_operator.model.values import Duration, LabelOrAny

ACCESS_LEVEL: Final = 4
"""Lowest feature level with access rules, API tokens and encrypted streams."""

CERTIFICATE_RULES_MAX: Final = 31
"""One less than brokers take: the operator's own rule comes first."""

_WORDS: Final = r"^[!-)+\--~]([ -)+\--~]{0,254}[!-)+\--~])?$"
"""Printable ASCII without `,` and `*`, which have a meaning in settings of brokers."""

_PATTERN: Final = r"[!-+\--=?-~]([ -+\--=?-~]{0,254}[!-+\--=?-~])?"
_NAME: Final = r"[!-)+\--=?-~]([ -)+\--=?-~]{0,254}[!-)+\--=?-~])?"
_RULE: Final = rf"^(DEFAULT|(CN|O|OU|UID|DNS|URI|EMAIL):{_PATTERN} => {_NAME})$"

Principal = Annotated[str, StringConstraints(max_length=256, pattern=_WORDS)]
Claim = Annotated[str, StringConstraints(max_length=128, pattern=r"^[!-)+\--~]+$")]
CertificateRule = Annotated[str, StringConstraints(max_length=524, pattern=_RULE)]


class KeysSource(Model):
    """A file with public keys, in PEM form or as a JWK set."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "jwt-keys-source",
            ("secretKeyRef", "configMapKeyRef"),
            "exactly one of secretKeyRef and configMapKeyRef must be set",
        ),
    )
    secret_key_ref: SecretKeyRef | None = option("Key of a Secret.")
    config_map_key_ref: ConfigMapKeyRef | None = option("Key of a ConfigMap.")


class JwtIssuer(Model):
    """Who signs JSON web tokens, and for whom."""

    issuer: Claim = Field(description="Issuer (`iss`) that tokens must name.")
    audience: Claim = Field(
        description="Audience (`aud`) that tokens must be meant for, such as `liftbridge`."
    )
    keys: KeysSource = Field(
        description="Public keys of the issuer; brokers read them again when they change."
    )
    principal_claim: Claim | None = option("Claim that names the principal; defaults to `sub`.")
    groups_claim: Claim | None = option(
        "Claim with the list of groups of the principal; defaults to none."
    )
    clock_skew: Duration | None = option(
        "By how much the clocks of the issuer and of brokers may differ; defaults to `30s`."
    )


class Access(Model):
    """Identities of clients, and whether access rules are in force."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "access-super-users",
            "!self.enabled || (has(self.superUsers) && size(self.superUsers) > 0)",
            "enabled needs superUsers: without one nobody could change the access rules",
            field=".superUsers",
            reason=RuleReason.REQUIRED,
        ),
    )
    enabled: bool = Field(
        default=False,
        description="Whether the access rules of the cluster are in force. Grant what clients need "
        "first: what no rule allows is refused. After it is set back to false, brokers enforce the "
        "rules until `liftbridge access disable`.",
    )
    super_users: Annotated[tuple[Principal, ...], ListOf(16, is_set=True)] = Field(
        default=(),
        description="Principals with every right on the port for operators, and everywhere if "
        "nobody may change access rules yet when they come into force. The operator itself needs "
        "no entry.",
    )
    anonymous: bool = Field(
        default=True,
        description="Whether clients may call without proving who they are. Access rules apply to "
        "them too.",
    )
    certificate_rules: Annotated[
        tuple[CertificateRule, ...], ListOf(CERTIFICATE_RULES_MAX, is_set=True)
    ] = Field(
        default=(),
        description="Rules that name the principal of a client certificate, such as "
        "`URI:spiffe://example.com/ns/*/sa/* => $1.$2`; the first that matches decides. `DEFAULT`, "
        "also if there are none, stands for the common name.",
    )
    jwt: JwtIssuer | None = option("JSON web tokens, such as those of Kubernetes, as proof.")
    tokens: bool = Field(
        default=False,
        description="Whether API tokens (`liftbridge token create`) are accepted as proof.",
    )
    allowed_namespaces: Annotated[tuple[LabelOrAny, ...], ListOf(64, is_set=True)] = Field(
        default=(),
        description="Other namespaces whose LiftbridgeUsers this cluster admits, `*` for all. "
        "Whoever may create users there can grant any right in this cluster.",
    )

    @property
    def has_bearers(self) -> bool:
        """Whether clients may prove who they are by a token."""
        return self.tokens or self.jwt is not None


class Encryption(Model):
    """Master keys of encrypted streams."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "encryption-source",
            "has(self.masterKeys) || has(self.command)",
            "set masterKeys, command or both: a stream needs a master key",
            reason=RuleReason.REQUIRED,
        ),
    )
    master_keys: SecretKeyRef | None = option(
        "Key of a Secret with one master key per line, an id and 64 hexadecimal digits; the first "
        "one encrypts until the cluster has chosen another. Brokers read it again when it changes."
    )
    command: (
        Annotated[
            str, StringConstraints(max_length=256, pattern=r"^/[-._a-zA-Z0-9]+(/[-._a-zA-Z0-9]+)*$")
        ]
        | None
    ) = option("Program in the image of the brokers that asks a key service, such as Vault.")
    new_streams: bool = Field(
        default=False,
        description="Whether new streams are encrypted, unless a request states otherwise.",
    )
