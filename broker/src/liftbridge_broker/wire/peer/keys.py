"""Keys by which the brokers of a cluster authenticate one another, and their rotation.

The file of `clustering.secret.file` has one key a line. The first key signs, and every key
verifies. To rotate, append a new key on all brokers, then move it to the front, then remove the old
key. The word `open` takes the place of a key: as the first line it leaves outgoing frames unsigned,
as another line it accepts unsigned frames. So a running cluster can get its first key. Empty lines
and lines that start with `#` are skipped.
"""

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from liftbridge_broker.errors import ConfigError

KEY_LENGTH_MIN: Final = 32
"""Characters of a key; 32 random hexadecimal digits are 128 bits."""

KEY_LENGTH_MAX: Final = 1_024
KEYS_MAX: Final = 16
KEY_ID_SIZE: Final = 4
OPEN_LINE: Final = "open"
_SETTING: Final = "clustering.secret.file"


class Key(NamedTuple):
    """One key.

    Attributes:
        key_id: First bytes of a hash of it, to look it up; reveals nothing of the key.
        secret: 32 bytes derived from the line.
    """

    key_id: bytes
    secret: bytes


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys in the order of their file; `None` represents the line `open`."""

    entries: tuple[Key | None, ...]

    @property
    def signer(self) -> Key | None:
        """Key that signs what this broker sends; `None` to sign nothing."""
        return self.entries[0]

    @property
    def first_key(self) -> Key | None:
        """First key in the file, `None` when there is none."""
        return next((key for key in self.entries if key is not None), None)

    @property
    def accepts_unsigned(self) -> bool:
        """Return whether unsigned frames are accepted."""
        return None in self.entries

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Id of each entry in order: hexadecimal digits, or `open`."""
        return tuple(OPEN_LINE if key is None else key.key_id.hex() for key in self.entries)

    def find(self, key_id: bytes) -> Key | None:
        """Return the key with this id, `None` if it is not listed."""
        return next((key for key in self.entries if key is not None and key.key_id == key_id), None)

    def derived(self, purpose: str) -> tuple[bytes, ...]:
        """Derive keys for another purpose, 32 bytes each: the first signs, all verify.

        May be empty.
        """
        given = (key for key in self.entries if key is not None)
        return tuple(_derive(key.secret, purpose.encode()) for key in given)


OPEN_KEYRING: Final = Keyring((None,))
"""Keyring of a broker without a secret."""


def parse_keys(text: str, path: str) -> Keyring:
    """Read the lines of a key file.

    Args:
        text: Content of the file.
        path: Its path, for messages; a message never holds a key.

    Raises:
        ConfigError: There is no key or too many, or a key is too short, too long or listed twice.
    """
    entries: list[Key | None] = []
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        entry = None if word == OPEN_LINE else _key(word, f"{_SETTING}: line {number} of {path}")
        if entry in entries:
            raise ConfigError(f"{_SETTING}: line {number} of {path} repeats an earlier line")
        entries.append(entry)
    if not 1 <= len(entries) <= KEYS_MAX:
        raise ConfigError(
            f"{_SETTING}: {path} lists {len(entries)} keys; it must list 1 to {KEYS_MAX}, one per "
            "line"
        )
    return Keyring(tuple(entries))


def _key(word: str, place: str) -> Key:
    if not word.isprintable() or " " in word:
        raise ConfigError(f"{place}: a key must consist of printable characters without blanks")
    if not KEY_LENGTH_MIN <= len(word) <= KEY_LENGTH_MAX:
        raise ConfigError(
            f"{place}: a key must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} characters, this one "
            f"has {len(word)}; `openssl rand -hex 32` creates one"
        )
    secret = sha256(b"liftbridge cluster secret\0" + word.encode()).digest()
    return Key(_derive(secret, b"key id")[:KEY_ID_SIZE], secret)


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"liftbridge " + purpose, "sha256")
