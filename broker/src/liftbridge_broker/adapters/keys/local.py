"""Master keys in this process: lines of a file, and the key of the environment.

A line of the file is an id, a blank, and the key: 64 hexadecimal digits. The first line's key wraps
data keys until the cluster has chosen one. Empty lines and lines that start with `#` are skipped.

The key of the environment is that of the original: a text of 16 or 32 bytes. Its id is `env-` and
the first bytes of its check value, so another key has another id. That line in a file keeps a key
that the environment no longer has.

A data key is wrapped with AES-GCM: a random nonce of 12 bytes, the cipher text, and the tag. The
associated data are the purpose.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from liftbridge_broker.errors import ConfigError, KeyUnavailableError
from liftbridge_broker.model.keys import MASTER_KEYS_MAX, MasterKey, check_value, fault_of_id
from liftbridge_broker.ports.master_keys import missing

FILE_SETTING: Final = "encryption.keys.file"
KEY_SETTING: Final = "encryption.key"
KEY_SIZE: Final = 32
ENVIRONMENT_SIZES: Final = (16, 32)
_ENVIRONMENT_ID: Final = "env-"
_HEX_DIGITS: Final = 64
_NONCE_SIZE: Final = 12
_PURPOSE: Final = "liftbridge data key of stream "


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """Master keys by id, the preferred one first."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def known(self) -> tuple[MasterKey, ...]:
        """Ids and check values."""
        return tuple(MasterKey(key_id, check_value(key)) for key_id, key in self.keys.items())

    def wrap(self, key_id: str, data_key: bytes, purpose: str) -> bytes:
        """Wrap a data key.

        Raises:
            KeyUnavailableError: The master key is not here.
        """
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._cipher(key_id).encrypt(nonce, data_key, _bound(purpose))

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str) -> bytes:
        """Unwrap a data key.

        Raises:
            KeyUnavailableError: The master key is not here, or another one of the same id.
        """
        nonce, text = wrapped[:_NONCE_SIZE], wrapped[_NONCE_SIZE:]
        try:
            return self._cipher(key_id).decrypt(nonce, text, _bound(purpose))
        except (InvalidTag, ValueError):
            # Not chained: the error has no further content.
            raise KeyUnavailableError(
                f"master key '{key_id}' of this broker is not the one that wrapped the data key"
            ) from None

    def _cipher(self, key_id: str) -> AESGCM:
        key = self.keys.get(key_id)
        if key is None:
            raise missing(key_id)
        return AESGCM(key)


def _bound(purpose: str) -> bytes:
    return (_PURPOSE + purpose).encode()


def local_keys(text: str, path: str, environment: str) -> LocalKeys:
    """Read the master keys of a file and of the environment.

    Args:
        text: Content of the file, empty for none.
        path: Its path, for messages; a message never holds a key.
        environment: Value of the variable, empty for none.

    Raises:
        ConfigError: A line or the variable is no key, an id is listed twice, or there are more than
            `MASTER_KEYS_MAX` keys.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"{FILE_SETTING}: line {number} of {path}"
        key_id, key = _line(words, place)
        if key_id in keys:
            raise ConfigError(f"{place} repeats id '{key_id}'")
        keys[key_id] = key
    if environment:
        key = _environment_key(environment)
        keys.setdefault(environment_id(key), key)
    if len(keys) > MASTER_KEYS_MAX:
        raise ConfigError(f"{FILE_SETTING}: {len(keys)} keys, at most {MASTER_KEYS_MAX}")
    return LocalKeys(keys)


def environment_id(key: bytes) -> str:
    """Return the id of the key of the environment."""
    return _ENVIRONMENT_ID + check_value(key)[:4].hex()


def _environment_key(text: str) -> bytes:
    key = text.encode()
    if len(key) not in ENVIRONMENT_SIZES:
        raise ConfigError(
            f"{KEY_SETTING} (LIFTBRIDGE_ENCRYPTION_KEY): must have 16 or 32 bytes, has {len(key)}"
        )
    return key


def _line(words: list[str], place: str) -> tuple[str, bytes]:
    if len(words) != 2:
        raise ConfigError(f"{place}: must be an id and a key, separated by a blank")
    key_id, digits = words
    if fault := fault_of_id(key_id):
        raise ConfigError(f"{place}: {fault}")
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    sizes = (KEY_SIZE, *ENVIRONMENT_SIZES) if key_id.startswith(_ENVIRONMENT_ID) else (KEY_SIZE,)
    if len(key) not in sizes:
        raise ConfigError(
            f"{place}: the key of '{key_id}' must be {_HEX_DIGITS} hexadecimal digits; "
            "`openssl rand -hex 32` creates one"
        )
    return key_id, key
