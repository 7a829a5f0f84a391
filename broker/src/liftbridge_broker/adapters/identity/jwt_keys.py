"""Public keys that verify JSON web tokens, from a file: PEM, or a JWK set (RFC 7517 5).

The kind of a key fixes its algorithm, whatever a token claims: a token cannot have a public key
used as the secret of an HMAC, or none at all (RFC 8725 2.1).
"""

import json
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from liftbridge_broker.adapters.secret_file import read_secret
from liftbridge_broker.errors import ConfigError

KEYS_MAX: Final = 32
"""Maximum number of keys in a file; a token that names no key is tried with all of its kind."""

RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
KEY_ID_LENGTH_MAX: Final = 256

_BEGIN: Final = "-----BEGIN "
_END: Final = "-----END PUBLIC KEY-----"
_KINDS: Final = frozenset(("RSA", "EC", "OKP"))

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class JwtKey(NamedTuple):
    """A key with its algorithm.

    Attributes:
        key: The public key.
        algorithm: RS256, ES256 or EdDSA (RFC 7518 3.1, RFC 8037 3.1).
        key_id: Its name in tokens, `kid`; empty for a key without one.
        fingerprint: SHA-256 of the key, hexadecimal.
    """

    key: PublicKey
    algorithm: str
    key_id: str
    fingerprint: str


def read_keys(path: str, setting: str) -> tuple[JwtKey, ...]:
    """Read the keys in a file.

    Raises:
        ConfigError: The file cannot be read, or has no usable key, too many, or a private one.
    """
    text = read_secret(path, setting)
    if "PRIVATE KEY-----" in text:
        raise ConfigError(f"{setting}: {path} holds a private key; store only public ones there")
    keys = _from_pem(text, path, setting) if _BEGIN in text else _from_set(text, path, setting)
    if not keys:
        raise ConfigError(f"{setting}: {path} holds no RSA, P-256 or Ed25519 key for signatures")
    if len(keys) > KEYS_MAX:
        raise ConfigError(f"{setting}: {path} holds {len(keys)} keys, at most {KEYS_MAX} allowed")
    return keys


def _from_pem(text: str, path: str, setting: str) -> tuple[JwtKey, ...]:
    keys = []
    for block in text.split(_END)[: KEYS_MAX + 1]:
        if _BEGIN not in block:
            continue
        pem = block[block.index(_BEGIN) :] + _END
        try:
            key = serialization.load_pem_public_key(pem.encode())
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{setting}: {path} has a part that is no public key in PEM form, which begins "
                "with -----BEGIN PUBLIC KEY-----"
            ) from error
        keys.append(_checked(key, "", path, setting))
    return tuple(keys)


def _from_set(text: str, path: str, setting: str) -> tuple[JwtKey, ...]:
    """Read a JWK set; keys that are of no use here are left out, as RFC 7517 5 asks."""
    try:
        keys = json.loads(text)["keys"]
        members = [dict(key) for key in keys]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{setting}: {path} is neither PEM nor a JWK set (RFC 7517)") from error
    found = []
    for member in members[: KEYS_MAX + 1]:
        if member.get("kty") not in _KINDS or member.get("use", "sig") != "sig":
            continue
        if "d" in member:
            raise ConfigError(
                f"{setting}: {path} holds a private key; store only public ones there"
            )
        with suppress(jwt.PyJWTError, ValueError, TypeError, KeyError, ConfigError):
            key = _checked(jwt.PyJWK(member).key, str(member.get("kid", "")), path, setting)
            if member.get("alg", key.algorithm) == key.algorithm:
                found.append(key)
    return tuple(found)


def _checked(key: object, key_id: str, path: str, setting: str) -> JwtKey:
    """Return a key with its algorithm.

    Raises:
        ConfigError: Tokens cannot be signed with such a key, or it is too weak.
    """
    match key:
        case RSAPublicKey() if RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
            algorithm = "RS256"
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            algorithm = "ES256"
        case Ed25519PublicKey():
            algorithm = "EdDSA"
        case _:
            raise ConfigError(
                f"{setting}: {path} has a key of another kind than RSA of {RSA_BITS_MIN} to "
                f"{RSA_BITS_MAX} bits, P-256 or Ed25519"
            )
    if len(key_id) > KEY_ID_LENGTH_MAX:
        raise ConfigError(
            f"{setting}: {path} has a kid of more than {KEY_ID_LENGTH_MAX} characters"
        )
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return JwtKey(key, algorithm, key_id, sha256(der).hexdigest())
