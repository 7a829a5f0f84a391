"""What identities a broker accepts, as configured."""

from dataclasses import dataclass
from typing import Final

from liftbridge_broker.access.certificate_rules import DEFAULT_RULE, Rule
from liftbridge_broker.access.identities import Proof

ORIGINAL: Final = (Proof.CERTIFICATE, Proof.ANONYMOUS)
"""Proofs accepted by default, as by the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtOptions:
    """What a JSON web token must be.

    Attributes:
        keys_file: File with the public keys of the issuer.
        issuer: Value of `iss`.
        audience: Value, or one of the values, of `aud`.
        principal_claim: Claim with the name of the principal.
        groups_claim: Claim with its groups; empty for none.
        skew_seconds: By how much the clocks of issuer and broker may differ.
    """

    keys_file: str
    issuer: str
    audience: str
    principal_claim: str = "sub"
    groups_claim: str = ""
    skew_seconds: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityOptions:
    """What identities are accepted.

    Attributes:
        proofs: Accepted proofs.
        by_listener: Those of listeners that accept others, by name.
        rules: Rules that name the principals of certificates.
        jwt: What a JSON web token must be; None if none is accepted.
        allows_plain_tokens: Whether bearer tokens are accepted without TLS.
    """

    proofs: tuple[Proof, ...] = ORIGINAL
    by_listener: tuple[tuple[str, tuple[Proof, ...]], ...] = ()
    rules: tuple[Rule, ...] = (DEFAULT_RULE,)
    jwt: JwtOptions | None = None
    allows_plain_tokens: bool = False
