"""Identities: a principal, with what proved it and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from liftbridge_broker.access.principals import ANONYMOUS, Principal


class Proof(StrEnum):
    """How a caller proves its identity."""

    ANONYMOUS = "anonymous"
    CERTIFICATE = "certificate"
    JWT = "jwt"
    TOKEN = "token"  # noqa: S105 - the name of a kind


BEARER: Final = frozenset((Proof.JWT, Proof.TOKEN))
"""Proofs that come with each call, as a bearer token (RFC 6750)."""


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A proven identity, or that of an anonymous caller.

    Attributes:
        principal: Whom the call acts for.
        proof: How that was proven.
        expires: Unix seconds at which the proof ends; 0 for never.
        source: What vouches for it: the id of an API token with the time of its creation, or the
            fingerprint of the key of a JWT.
    """

    principal: Principal = ANONYMOUS
    proof: Proof = Proof.ANONYMOUS
    expires: int = 0
    source: str = ""


NOBODY: Final = Identity()


class Caller(NamedTuple):
    """A client connection, as far as it says who calls.

    Attributes:
        peer: Address of the client, `host:port`.
        source: What failed attempts are counted by: its host, or the network half of that.
        listener: Listener through which it came.
        has_tls: Whether the connection is encrypted.
        certificate: Verified certificate in the form of `ssl.SSLSocket.getpeercert`, if any.
    """

    peer: str
    source: str
    listener: str
    has_tls: bool
    certificate: Mapping[str, object] | None
