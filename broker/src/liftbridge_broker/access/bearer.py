"""The `authorization` field of a call: `Bearer <token>` (RFC 6750 2.1)."""

from typing import Final

TOKEN_BYTES_MAX: Final = 8_192
"""Longest token; those of large directories list many groups."""

_SCHEME: Final = b"bearer"
_OCTETS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="


def token_of(authorization: bytes) -> str | None:
    """Return the token of a field; None for another scheme, or a text that cannot be a token."""
    scheme, _, token = authorization.partition(b" ")
    token = token.strip(b" ")
    is_token = 0 < len(token) <= TOKEN_BYTES_MAX and not token.translate(None, _OCTETS)
    return token.decode("ascii") if is_token and scheme.lower() == _SCHEME else None
