"""Verifies JSON web tokens (RFC 7519) as RFC 8725 asks: fixed algorithms, issuer, audience, times.

PyJWT checks the signature, the issuer and the audience; times are checked here, by the
broker's clock. A service-account token of Kubernetes is such a token.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import jwt

from liftbridge_broker.access.identities import Identity, Proof
from liftbridge_broker.access.names import fault_of
from liftbridge_broker.access.options import JwtOptions
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.adapters.identity.jwt_keys import JwtKey, read_keys
from liftbridge_broker.errors import UnauthenticatedError

KEYS_SETTING: Final = "auth.jwt.keys.file"
TIME_MAX: Final = 2**53
"""Latest time in Unix seconds that a token may name: what JSON numbers hold exactly."""


class JwtVerifier:
    """Verifies tokens of one issuer.

    Attributes:
        options: What a token must be.
    """

    def __init__(self, options: JwtOptions) -> None:
        """Read the keys.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        self.options = options
        self.reload()

    def reload(self) -> None:
        """Read the keys again; after an error the old ones stay in use.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        self._keys = read_keys(self.options.keys_file, KEYS_SETTING)
        self._fingerprints = frozenset(key.fingerprint for key in self._keys)

    def knows(self, fingerprint: str) -> bool:
        """Return whether a key is still in use."""
        return fingerprint in self._fingerprints

    def verify(self, token: str, now: int) -> Identity:
        """Return the identity that a token proves at `now`, in Unix seconds.

        Raises:
            UnauthenticatedError: The token is malformed, not signed by a known key, meant for
                others, not valid now, or names no principal.
        """
        try:
            claims, key = self._signed_claims(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise UnauthenticatedError(f"JSON web token refused: {_reason(error)}") from None
        expires = self._check_times(claims, now)
        groups = claims.get(self.options.groups_claim, ()) if self.options.groups_claim else ()
        name = claims.get(self.options.principal_claim)
        if not isinstance(name, str):
            raise _refusal(f"claim {self.options.principal_claim!r} is missing or not a text")
        if not isinstance(groups, list | tuple) or not all(isinstance(one, str) for one in groups):
            raise _refusal(f"claim {self.options.groups_claim!r} is not a list of texts")
        principal = Principal(name, tuple(groups))
        fault = fault_of(principal)
        if fault:
            raise _refusal(f"its principal {fault}")
        return Identity(principal, Proof.JWT, expires, key.fingerprint)

    def _signed_claims(self, token: str) -> tuple[Mapping[str, object], JwtKey]:
        """Return the claims of a token, signed for this audience, with the key that verifies it."""
        header = jwt.get_unverified_header(token)
        candidates = self._candidates(header)
        options = self.options
        failure: jwt.PyJWTError = jwt.InvalidSignatureError("signed by another key")
        for key in candidates:
            try:
                claims: Mapping[str, object] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    audience=options.audience,
                    issuer=options.issuer,
                    options={
                        "require": ["exp", "iss", "aud"],
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_sub": False,
                        "verify_jti": False,
                    },
                )
            except jwt.InvalidSignatureError as error:
                failure = error
            else:
                return claims, key
        raise failure

    def _candidates(self, header: Mapping[str, object]) -> Sequence[JwtKey]:
        """Return the keys that may have signed a token: by its `kid`, and always by `alg`."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        of_kind = [key for key in self._keys if key.algorithm == algorithm]
        if not of_kind:
            raise jwt.InvalidAlgorithmError(f"no key of the broker is for {str(algorithm)[:20]!r}")
        if "crit" in header:
            raise jwt.InvalidTokenError("extensions (crit) are not understood")
        named = [key for key in of_kind if key_id is None or key.key_id in ("", key_id)]
        if not named:
            raise jwt.InvalidKeyError("signed by a key that the broker does not know (kid)")
        return named

    def _check_times(self, claims: Mapping[str, object], now: int) -> int:
        """Return the end of a token that is valid now, with the allowed difference of clocks."""
        skew = self.options.skew_seconds
        expires = _time_of(claims, "exp")
        assert expires is not None
        if expires + skew <= now:
            raise _refusal(f"it expired {now - expires} s ago")
        begins = _time_of(claims, "nbf")
        if begins is not None and begins - skew > now:
            raise _refusal(f"it is not valid for another {begins - now} s (nbf)")
        return expires + skew


def _time_of(claims: Mapping[str, object], claim: str) -> int | None:
    """Return a time in whole Unix seconds; None if it is not claimed."""
    if claim not in claims:
        return None
    value = claims[claim]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _refusal(f"claim {claim!r} is not a time")
    if not 0 <= value <= TIME_MAX:
        raise _refusal(f"claim {claim!r} is out of bounds")
    return int(value)


def _refusal(reason: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"JSON web token refused: {reason}")


def _reason(error: Exception) -> str:
    """Describe a failure, without quoting the token, as PyJWT may if it is malformed."""
    if isinstance(error, jwt.DecodeError) and not isinstance(error, jwt.InvalidSignatureError):
        return "it is malformed"
    return str(error)[:200] if isinstance(error, jwt.PyJWTError) else "it is malformed"
