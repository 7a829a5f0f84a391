"""Proofs of identity for tests: keys, tokens that are right or wrong, clocks."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.options import IdentityOptions, JwtOptions
from liftbridge_broker.adapters.identity.authenticator import CallerAuthenticator
from liftbridge_broker.adapters.identity.hashing import Hasher, new_token, verifier_of
from liftbridge_broker.controller.state import TokenState
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS

NOW: Final = 1_800_000_000
"""Unix seconds at which tests begin."""

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "liftbridge"
ALL_PROOFS: Final = (Proof.CERTIFICATE, Proof.JWT, Proof.TOKEN)

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(slots=True)
class HandClock:
    """Both clocks, set by hand; `seconds` is the wall clock."""

    seconds: float = NOW

    def now(self) -> Instant:
        """Return the monotonic time."""
        return Instant(self.wall_ns())

    def wall_ns(self) -> int:
        """Return the wall clock."""
        return int(self.seconds * SECOND_NS)


@dataclass(slots=True)
class Seen:
    """An observer that keeps transitions."""

    events: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Keep a transition."""
        self.events.append((kind, fields))


class Issuer:
    """An issuer of JSON web tokens with a key of each kind.

    Attributes:
        keys: Private keys by algorithm.
        now: Unix seconds at which it issues tokens.
    """

    def __init__(self, now: int = NOW) -> None:
        self.now = now
        self.keys: dict[str, PrivateKey] = {
            "RS256": rsa.generate_private_key(65_537, 2_048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }

    def public_pem(self, algorithm: str) -> bytes:
        """Return a public key in PEM form."""
        return (
            self.keys[algorithm]
            .public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def write_pem(self, path: Path) -> None:
        """Write all public keys in PEM form."""
        path.write_bytes(b"".join(map(self.public_pem, self.keys)))

    def jwk(self, algorithm: str, **more: object) -> dict[str, Any]:
        """Return a public key as a JWK."""
        kind = jwt.get_algorithm_by_name(algorithm)
        made = kind.to_jwk(self.keys[algorithm].public_key(), as_dict=True)
        return {**made, "kid": f"{algorithm}-1", "use": "sig", **more}

    def write_set(self, path: Path) -> None:
        """Write all public keys as a JWK set."""
        path.write_text(json.dumps({"keys": [self.jwk(one) for one in self.keys]}))

    def token(self, algorithm: str, *, kid: str | None = None, **claims: object) -> str:
        """Sign a token that is right except for `claims`; a claim of None is left out."""
        all_claims = {
            "iss": ISSUER,
            "aud": [AUDIENCE, "other"],
            "sub": "billing",
            "iat": self.now - 10,
            "nbf": self.now - 10,
            "exp": self.now + 3_600,
            **claims,
        }
        given = {name: value for name, value in all_claims.items() if value is not None}
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(given, self.keys[algorithm], algorithm, headers)


def forged(header: Mapping[str, object], claims: Mapping[str, object], signature: bytes) -> str:
    """Put a token together from parts, whatever they are."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


class Guarded:
    """An authenticator with everything that it needs.

    Attributes:
        issuer: Signs tokens that it accepts.
        clock: Its clocks.
        seen: What it reported.
        tokens: API tokens of the cluster.
        authenticator: The authenticator.
    """

    def __init__(self, folder: Path, issuer: Issuer | None = None) -> None:
        self.issuer = issuer or Issuer()
        self.keys_file = folder / "keys.pem"
        self.issuer.write_pem(self.keys_file)
        self.clock = HandClock(self.issuer.now)
        self.seen = Seen()
        self.tokens: dict[str, TokenState] = {}
        self.hasher = Hasher()
        self.options = IdentityOptions(
            proofs=ALL_PROOFS,
            jwt=JwtOptions(
                keys_file=str(self.keys_file),
                issuer=ISSUER,
                audience=AUDIENCE,
                groups_claim="groups",
                skew_seconds=5,
            ),
        )
        self.authenticator = CallerAuthenticator(
            self.options, lambda: self.tokens, self.clock, self.seen, self.hasher
        )

    def set_options(self, **changes: Any) -> None:
        """Change what is accepted."""
        self.options = replace(self.options, **changes)
        self.authenticator.set_options(self.options)

    def write_keys(self, members: list[dict[str, Any]]) -> None:
        """Replace the keys by these of a JWK set."""
        self.keys_file.write_text(json.dumps({"keys": members}))

    def add_token(self, principal: str = "billing", *, expires: int = 0) -> str:
        """Create an API token; return its text."""
        token = new_token()
        self.tokens[token.token_id] = TokenState(
            token_id=token.token_id,
            principal=principal,
            groups=("ops",),
            verifier=verifier_of(token.secret),
            created=self.clock.wall_ns(),
            expires=expires * SECOND_NS,
            created_by="",
        )
        return token.text
