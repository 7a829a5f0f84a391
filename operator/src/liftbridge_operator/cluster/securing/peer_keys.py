"""Peer keys, by which the brokers of a cluster recognise one another, rotated in memory.

A key is rotated like an authority, each step started only when every broker reports the one before:
the coming key is listed after the present one; it signs, and the former key is listed after it; the
former key is removed. At every moment every broker accepts signatures of any other. The word `open`
means no signature: with it a cluster that ran without a key gets its first one.

The keys are stored in the Secret of the internal authority, which no pod mounts. The Secret that
brokers mount is derived from it, so its deletion or edit does no harm.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Final

OPEN: Final = "open"
"""Line of the file that means no signature."""

KEY_LENGTH_MIN: Final = 32
KEY_LENGTH_MAX: Final = 1_024
"""Bounds of the length of a key that brokers accept."""

_ID_BYTES: Final = 4
_SIGNER: Final = "peers.key"
_COMING: Final = "peers-next.key"
_FORMER: Final = "peers-former.key"
KEPT: Final = (_SIGNER, _COMING, _FORMER)
"""Keys of the Secret of the internal authority that belong to this module."""


class Phase(StrEnum):
    """Phase of a key rotation, as reported in the status."""

    STEADY = "Steady"
    INTRODUCING = "IntroducingKey"
    REMOVING = "RemovingKey"


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """The keys of a cluster; empty for none.

    Attributes:
        signer: Key that signs; `open` before the first key.
        coming: Key that signs next, once every broker has loaded it.
        former: Key that signed before, until every broker signs with the present one.
    """

    signer: str
    coming: str = ""
    former: str = ""

    def __repr__(self) -> str:
        """Show ids instead of keys."""
        return f"PeerKeys({self.phase.value}, {', '.join(self.ids)})"

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the file, the signing key first."""
        return tuple(one for one in (self.signer, self.coming, self.former) if one)

    @property
    def text(self) -> str:
        """Contents of the file."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids that a broker with this file reports."""
        return tuple(key_id(line) for line in self.lines)

    @property
    def phase(self) -> Phase:
        """Phase of the rotation."""
        if self.coming:
            return Phase.INTRODUCING
        return Phase.REMOVING if self.former else Phase.STEADY

    @property
    def files(self) -> dict[str, bytes]:
        """Entries of the keys in the Secret of the internal authority."""
        named = zip(KEPT, (self.signer, self.coming, self.former), strict=True)
        return {key: text.encode() for key, text in named if text}

    def advanced(self, *, is_due: bool, make: Callable[[], str]) -> "PeerKeys":
        """Return the keys of the next step, after all brokers have reported this one.

        Args:
            is_due: Whether the signing key is to be replaced.
            make: Makes a key.
        """
        if self.coming:
            return PeerKeys(self.coming, former=self.signer)
        if self.former:
            return PeerKeys(self.signer)
        return replace(self, coming=make()) if is_due else self


def first_keys(make: Callable[[], str], *, is_running: bool) -> PeerKeys:
    """Make the first keys of a cluster; brokers that run without a key change in steps."""
    return PeerKeys(OPEN, coming=make()) if is_running else PeerKeys(make())


def kept_keys(files: Mapping[str, bytes]) -> PeerKeys | None:
    """Read the stored keys; None when they are missing or malformed."""
    signer, coming, former = (files.get(key, b"").decode("utf-8", "replace") for key in KEPT)
    keys = PeerKeys(signer, coming, former)
    return keys if signer and all(map(_is_good, keys.lines)) else None


def mounted_keys(text: str) -> PeerKeys | None:
    """Restore keys from the brokers' file, when the stored ones are lost; None when it has none.

    Which of two keys is newer is lost too: the signing one stays.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not any(line != OPEN for line in lines) or not all(map(_is_good, lines)):
        return None
    signer, second = (*lines, "")[:2]
    return PeerKeys(signer, coming=second) if signer == OPEN else PeerKeys(signer, former=second)


def _is_good(line: str) -> bool:
    """Return whether brokers accept a line."""
    is_key = KEY_LENGTH_MIN <= len(line) <= KEY_LENGTH_MAX and line.isascii()
    return line == OPEN or (is_key and line.isprintable() and " " not in line)


def key_id(line: str) -> str:
    """Return the id by which brokers report a line of their file; it does not reveal the key.

    Operator and brokers share no code; a test compares both.
    """
    if line == OPEN:
        return OPEN
    secret = sha256(b"liftbridge cluster secret\0" + line.encode()).digest()
    return hmac.digest(secret, b"liftbridge key id", "sha256")[:_ID_BYTES].hex()


def are_reported(keys: PeerKeys, reports: Sequence[Sequence[str]]) -> bool:
    """Return whether every broker reports exactly these keys; False without any report."""
    return bool(reports) and all(tuple(report) == keys.ids for report in reports)
