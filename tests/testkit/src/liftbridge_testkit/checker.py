"""Check what a broker stored against what publishers were told (near-linear in the messages).

A publisher writes down every publish before it sends it and what it learned afterwards; at the end
the log is read from its start. `check` then says which of these promises were broken:

- acked: an acknowledged message is stored, once, at the offset that was acknowledged;
- refused: a message the broker definitely refused is not stored;
- unknown: a message whose answer was lost is stored at most once;
- order: messages of one publisher are stored in the order they were sent;
- offsets: they are unique and without gaps from the first one on;
- bytes: every stored message is one that was published, unchanged;
- readers: what a subscription delivered is what the log holds at that offset, in order.

Publishers never send the same message twice, so a second copy is the broker's doing. Unknown
messages may appear, which is why order is checked over what is stored and not over what was acked.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

VIOLATIONS_MAX: Final = 20
"""Violations reported; a broken log would otherwise report every message."""

# A value: magic, publisher, sequence, length of the filler that follows (big-endian).
_HEADER: Final = struct.Struct(">4sIQI")
_MAGIC: Final = b"LBCK"


class Outcome(Enum):
    """Knowledge of a publisher about one message."""

    UNKNOWN = "unknown"
    ACKED = "acked"
    REFUSED = "refused"


class Identity(NamedTuple):
    """Names one message of a run: its publisher, and its number there."""

    publisher: int
    sequence: int


class Stored(NamedTuple):
    """One record as a reader saw it."""

    offset: int
    value: bytes


class Violation(NamedTuple):
    """One broken promise.

    Attributes:
        promise: Broken promise, as named at the top of this module.
        text: Observation, with numbers.
    """

    promise: str
    text: str


@dataclass(slots=True)
class PublisherHistory:
    """Messages of one publisher, and their outcomes. Owned by that publisher, the only writer.

    Attributes:
        publisher: Its number, unique in the run.
        offsets: Acknowledged offset by sequence, None while unknown, -1 for refused.
    """

    publisher: int
    offsets: list[int | None] = field(default_factory=list)

    def invoke(self, size: int = 64) -> tuple[int, bytes]:
        """Write down the next message before it is sent; returns its sequence and value."""
        sequence = len(self.offsets)
        self.offsets.append(None)
        return sequence, encode(Identity(self.publisher, sequence), size)

    def acked(self, sequence: int, offset: int) -> None:
        """Write down an ack."""
        assert offset >= 0
        assert self.offsets[sequence] is None, "answered twice"
        self.offsets[sequence] = offset

    def refused(self, sequence: int) -> None:
        """Write down a definite refusal: the broker says that nothing was stored."""
        assert self.offsets[sequence] is None, "answered twice"
        self.offsets[sequence] = -1

    def unknown(self, sequence: int) -> None:
        """Write down that the outcome stays unknown: an answer that comes later is a second one."""
        assert self.offsets[sequence] is None, "answered twice"

    def outcome(self, sequence: int) -> Outcome:
        """Return the known outcome of a message."""
        offset = self.offsets[sequence]
        if offset is None:
            return Outcome.UNKNOWN
        return Outcome.ACKED if offset >= 0 else Outcome.REFUSED


@dataclass(slots=True)
class History:
    """All publishers of a run, and what its subscriptions delivered.

    Attributes:
        publishers: Publishers by number.
        deliveries: One list of records for each subscription, in order of delivery.
    """

    publishers: dict[int, PublisherHistory] = field(default_factory=dict)
    deliveries: list[list[Stored]] = field(default_factory=list)

    def new_publisher(self) -> PublisherHistory:
        """Return a publisher with a number that no other one had in this run."""
        publisher = PublisherHistory(len(self.publishers))
        self.publishers[publisher.publisher] = publisher
        return publisher

    def new_subscription(self) -> list[Stored]:
        """Return a list for the records of one subscription."""
        delivered: list[Stored] = []
        self.deliveries.append(delivered)
        return delivered

    def count(self, outcome: Outcome) -> int:
        """Return messages with this outcome."""
        return sum(
            history.outcome(sequence) is outcome
            for history in self.publishers.values()
            for sequence in range(len(history.offsets))
        )


def encode(identity: Identity, size: int = 64) -> bytes:
    """Value of a message: identity, then filler derived from it, so that any change is noticed.

    Layout: 4 bytes magic, u32 publisher, u64 sequence, u32 filler length, filler; big-endian.
    """
    header = _HEADER.pack(_MAGIC, *identity, max(size - _HEADER.size, 0))
    return header + _filler(identity, max(size - _HEADER.size, 0))


def decode(value: bytes) -> Identity | None:
    """Return the identity of a value that `encode` made; None for any other bytes."""
    if len(value) < _HEADER.size:
        return None
    magic, publisher, sequence, length = _HEADER.unpack_from(value)
    identity = Identity(publisher, sequence)
    if magic != _MAGIC or len(value) != _HEADER.size + length:
        return None
    return identity if value[_HEADER.size :] == _filler(identity, length) else None


def _filler(identity: Identity, length: int) -> bytes:
    block = hashlib.blake2b(struct.pack(">IQ", *identity), digest_size=32).digest()
    return (block * (length // len(block) + 1))[:length]


def check(history: History, log: Iterable[Stored], *, first_offset: int = 0) -> list[Violation]:
    """Compare a history with the whole log.

    Args:
        history: Notes of publishers and subscriptions.
        log: All records, in order of delivery, read after the last publish was answered.
        first_offset: Offset the log must begin with.

    Returns:
        Broken promises, at most `VIOLATIONS_MAX`; empty when all hold.
    """
    found: list[Violation] = []
    stored: dict[Identity, int] = {}
    by_offset: dict[int, bytes] = {}
    last: dict[int, Identity] = {}
    expected = first_offset
    for offset, value in log:
        if offset != expected:
            what = "again" if offset in by_offset else "out of turn"
            found.append(Violation("offsets", f"offset {offset} {what}, expected {expected}"))
        expected = offset + 1
        by_offset[offset] = value
        identity = decode(value)
        if identity is None or not _was_published(history, identity):
            found.append(Violation("bytes", f"offset {offset} was never published: {value[:40]!r}"))
            continue
        if identity in stored:
            text = f"{identity} is at {stored[identity]} and at {offset}"
            found.append(Violation(_promise(history, identity), text))
            continue
        stored[identity] = offset
        before = last.get(identity.publisher)
        if before is not None and before > identity:
            found.append(Violation("order", f"{identity} at {offset} follows {before}"))
        last[identity.publisher] = identity
        if len(found) >= VIOLATIONS_MAX:
            return found[:VIOLATIONS_MAX]
    found += _check_answers(history, stored)
    found += _check_deliveries(history, by_offset)
    return found[:VIOLATIONS_MAX]


def _was_published(history: History, identity: Identity) -> bool:
    publisher = history.publishers.get(identity.publisher)
    return publisher is not None and identity.sequence < len(publisher.offsets)


def _promise(history: History, identity: Identity) -> str:
    return history.publishers[identity.publisher].outcome(identity.sequence).value


def _check_answers(history: History, stored: dict[Identity, int]) -> list[Violation]:
    """Hold every answer against where the message is."""
    found: list[Violation] = []
    for publisher in history.publishers.values():
        for sequence, offset in enumerate(publisher.offsets):
            if offset is None:
                continue
            identity = Identity(publisher.publisher, sequence)
            where = stored.get(identity)
            if offset < 0 and where is not None:
                found.append(Violation("refused", f"{identity} was refused, is at {where}"))
            elif offset >= 0 and where is None:
                found.append(Violation("acked", f"{identity} acked at {offset} is missing"))
            elif offset >= 0 and where != offset:
                text = f"{identity} acked at {offset}, is at {where}"
                found.append(Violation("acked", text))
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def _check_deliveries(history: History, by_offset: dict[int, bytes]) -> list[Violation]:
    """Hold every subscription against the log: same bytes, offsets one after the other."""
    found: list[Violation] = []
    for number, delivered in enumerate(history.deliveries):
        before: int | None = None
        for offset, value in delivered:
            who = f"subscription {number}"
            if before is not None and offset != before + 1:
                found.append(Violation("readers", f"{who}: offset {offset} after {before}"))
            before = offset
            if by_offset.get(offset) != value:
                kept = "nothing" if offset not in by_offset else "other bytes"
                text = f"{who}: delivered offset {offset}, where the log holds {kept}"
                found.append(Violation("readers", text))
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found
