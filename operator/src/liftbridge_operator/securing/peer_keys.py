"""Keys by which the brokers of a cluster recognise one another, brought on step by step in memory.

A key is exchanged as an authority is, each step begun only when every broker reports the one
before: the coming key is listed behind the present one; it signs, with the former one behind it;
the former one leaves. At every moment every broker verifies what any other may sign. The word
`open` stands for no signature: that is how a cluster that ran without a key gets its first one.

The keys are kept in the Secret of the internal authority, which no pod mounts. What brokers mount
is made of it, so that it can be deleted or edited without harm.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Final

OPEN: Final = "open"
"""Line of the file that stands for no signature."""

KEY_LENGTH_MIN: Final = 32
KEY_LENGTH_MAX: Final = 1_024
"""Lengths of a key that brokers take."""

_ID_BYTES: Final = 4
_SIGNER: Final = "peers.key"
_COMING: Final = "peers-next.key"
_FORMER: Final = "peers-former.key"
KEPT: Final = (_SIGNER, _COMING, _FORMER)
"""Keys of the Secret of the internal authority that belong to this module."""


class Phase(StrEnum):
    """Where an exchange is, as the status tells it."""

    STEADY = "Steady"
    INTRODUCING = "IntroducingKey"
    REMOVING = "RemovingKey"


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """The keys of a cluster; empty for none.

    Attributes:
        signer: Signs; `open` before the first key.
        coming: Signs next, once every broker knows it.
        former: Signed before, until every broker signs with the present one.
    """

    signer: str
    coming: str = ""
    former: str = ""

    def __repr__(self) -> str:
        """Ids instead of keys."""
        return f"PeerKeys({self.phase.value}, {', '.join(self.ids)})"

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the file, the one that signs first."""
        return tuple(one for one in (self.signer, self.coming, self.former) if one)

    @property
    def text(self) -> str:
        """The file."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def ids(self) -> tuple[str, ...]:
        """What a broker with this file reports."""
        return tuple(key_id(line) for line in self.lines)

    @property
    def phase(self) -> Phase:
        """Where an exchange is."""
        if self.coming:
            return Phase.INTRODUCING
        return Phase.REMOVING if self.former else Phase.STEADY

    @property
    def files(self) -> dict[str, bytes]:
        """What the Secret of the internal authority keeps of them."""
        named = zip(KEPT, (self.signer, self.coming, self.former), strict=True)
        return {key: text.encode() for key, text in named if text}

    def advanced(self, *, is_due: bool, make: Callable[[], str]) -> "PeerKeys":
        """The next step, all brokers having reported this one.

        Args:
            is_due: Whether another key is to take the place of the one that signs.
            make: Makes a key.
        """
        if self.coming:
            return PeerKeys(self.coming, former=self.signer)
        if self.former:
            return PeerKeys(self.signer)
        return replace(self, coming=make()) if is_due else self


def first_keys(make: Callable[[], str], *, is_running: bool) -> PeerKeys:
    """Keys of a cluster that has none: brokers that run without one are brought on in steps."""
    return PeerKeys(OPEN, coming=make()) if is_running else PeerKeys(make())


def kept_keys(files: Mapping[str, bytes]) -> PeerKeys | None:
    """Keys as they are kept; None when there are none."""
    signer, coming, former = (files.get(key, b"").decode("utf-8", "replace") for key in KEPT)
    keys = PeerKeys(signer, coming, former)
    return keys if signer and all(map(_is_good, keys.lines)) else None


def mounted_keys(text: str) -> PeerKeys | None:
    """Keys by the file that brokers have, when what was kept is lost; None when it has none.

    Which of two keys came last is lost too: the one that signs stays.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not any(line != OPEN for line in lines) or not all(map(_is_good, lines)):
        return None
    signer, second = (*lines, "")[:2]
    return PeerKeys(signer, coming=second) if signer == OPEN else PeerKeys(signer, former=second)


def _is_good(line: str) -> bool:
    """Whether brokers take a line."""
    is_key = KEY_LENGTH_MIN <= len(line) <= KEY_LENGTH_MAX and line.isascii()
    return line == OPEN or (is_key and line.isprintable() and " " not in line)


def key_id(line: str) -> str:
    """What brokers call a line of their file; tells nothing of the key.

    Operator and brokers share no code; a test compares.
    """
    if line == OPEN:
        return OPEN
    secret = sha256(b"liftbridge cluster secret\0" + line.encode()).digest()
    return hmac.digest(secret, b"liftbridge key id", "sha256")[:_ID_BYTES].hex()


def are_reported(keys: PeerKeys, reports: Sequence[Sequence[str]]) -> bool:
    """Whether every broker reports exactly these keys; not when there is none to ask."""
    return bool(reports) and all(tuple(one) == keys.ids for one in reports)
