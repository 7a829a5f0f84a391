"""Settings of the identities of clients."""

from typing import Final

from liftbridge_broker.config.settings import Kind, Setting
from liftbridge_broker.model.units import MINUTE_NS

IDENTITY: Final = (
    Setting(
        "auth.methods",
        Kind.LIST,
        "certificate,anonymous",
        "Ways in which clients may prove who they are: `certificate`, by a client certificate; "
        "`jwt`, by a JSON web token of another issuer; `token`, by an API token of this cluster. "
        "Without `anonymous`, every call needs one of them, except health checks. Of a call with "
        "a bearer token and a certificate, the token decides.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.listeners",
        Kind.LIST,
        "",
        "Ways that listeners of `listeners` accept instead of `auth.methods`, each as "
        "`name=method+method`, such as `outside=jwt+token`.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.certificate.rules",
        Kind.LIST,
        "DEFAULT",
        "Rules that name the principal of a client certificate; the first that matches decides, "
        "and without one the certificate names nobody. `DEFAULT` is the common name. "
        "`URI:spiffe://example.com/*/sa/*=>$1.$2` matches a subject alternative name (`DNS`, "
        "`URI`, `EMAIL`) or a part of the subject (`CN`, `O`, `OU`, `UID`); each `*` stands for "
        "one character or more.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.keys.file",
        Kind.TEXT,
        "",
        "File with the public keys of the issuer of JSON web tokens, in PEM form or as a JWK set; "
        "RSA for RS256, P-256 for ES256, Ed25519 for EdDSA. It is read again when it changes.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.issuer",
        Kind.TEXT,
        "",
        "Issuer (`iss`) that JSON web tokens must name; requires `auth.jwt.keys.file`.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.audience",
        Kind.TEXT,
        "",
        "Audience (`aud`) that JSON web tokens must be meant for, such as the name of the cluster; "
        "requires `auth.jwt.keys.file`.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.principal.claim",
        Kind.TEXT,
        "sub",
        "Claim of a JSON web token that names the principal.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.groups.claim",
        Kind.TEXT,
        "",
        "Claim of a JSON web token with the list of groups of the principal.",
        derived="no groups",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "auth.jwt.clock.skew",
        Kind.DURATION,
        "30s",
        "By how much the clocks of the issuer and of the broker may differ.",
        is_original=False,
        is_reloadable=True,
        maximum=5 * MINUTE_NS,
    ),
    Setting(
        "auth.plain.tokens",
        Kind.BOOLEAN,
        "false",
        "Whether bearer tokens are accepted without TLS, for instance behind a proxy that "
        "decrypts. Whoever can read the network can use them.",
        is_original=False,
        is_reloadable=True,
    ),
)
