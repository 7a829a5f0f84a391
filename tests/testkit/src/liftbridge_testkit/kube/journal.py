"""The history of one partition under load, as lines of JSON that survive the process.

Each line has a moment `t` in seconds since 1970 and a kind `e`:

    {"t": 5.1, "e": "sent", "p": 0, "s": 7, "n": 128}     message 7 of publisher 0, 128 bytes
    {"t": 5.2, "e": "acked", "p": 0, "s": 7, "o": 41}     it is at offset 41
    {"t": 5.2, "e": "refused", "p": 0, "s": 7}            it is certainly not stored
    {"t": 5.2, "e": "unknown", "p": 0, "s": 7}            the outcome stays unknown
    {"t": 5.3, "e": "read", "r": 0, "o": 41, "p": 0, "s": 7, "n": 128}
    {"t": 5.3, "e": "read", "r": 0, "o": 41, "raw": "00"}  bytes that were never published, as hex
    {"t": 5.4, "e": "error", "text": "..."}                the error of a client

Values are derived from publisher, message and size (`checker.encode`), so they are not written. A
journal keeps only the message that waits for its answer in memory; `read` takes one partition at a
time.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from liftbridge_testkit.checker import History, Identity, PublisherHistory, Stored, decode, encode
from liftbridge_testkit.steady import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def wall_seconds() -> float:
    """Return the current time in seconds since 1970."""
    return datetime.now(UTC).timestamp()


class Ack(NamedTuple):
    """One acknowledgement.

    Attributes:
        sent: Time of sending.
        acked: Time of the answer; both in seconds since 1970.
    """

    sent: float
    acked: float


class Journal:
    """Writes the history of one partition: of its publisher, of its reader, and of errors.

    One message is in flight at a time. After a lost answer, the publisher continues under another
    number, because the earlier message may be stored after later messages.

    Attributes:
        partition: Number of the partition.
        acked_count: Messages acknowledged.
        newest_acked: Highest offset acknowledged; -1 for none.
        newest_read: Highest offset that was read; -1 for none.
        acked_at: Time of the last acknowledgement, on the monotonic clock; initially the start.
    """

    def __init__(self, path: Path, partition: int, now: Callable[[], float] | None = None) -> None:
        """Create a new file."""
        self.partition = partition
        self.acked_count = 0
        self.newest_acked = -1
        self.newest_read = -1
        self.acked_at = monotonic()
        self._now = now or wall_seconds
        self._file = path.open("w", encoding="utf-8")
        self._publisher = 0
        self._next = 0
        self._waiting: Identity | None = None

    def invoke(self, size: int) -> tuple[int, bytes]:
        """See `PublisherNotes`."""
        if self._waiting is not None:  # its publisher ended without an answer
            self.unknown(self._waiting.sequence)
        identity = Identity(self._publisher, self._next)
        self._next += 1
        self._waiting = identity
        self._write("sent", p=identity.publisher, s=identity.sequence, n=size)
        # Written before the send, so that an interrupted run knows what it may have stored.
        self._file.flush()
        return identity.sequence, encode(identity, size)

    def acked(self, sequence: int, offset: int) -> None:
        """See `PublisherNotes`."""
        self._answered("acked", sequence, o=offset)
        self.acked_count += 1
        self.newest_acked = max(self.newest_acked, offset)
        self.acked_at = monotonic()

    def refused(self, sequence: int) -> None:
        """See `PublisherNotes`."""
        self._answered("refused", sequence)

    def unknown(self, sequence: int) -> None:
        """See `PublisherNotes`."""
        self._answered("unknown", sequence)
        self._publisher += 1
        self._next = 0

    def delivered(self, record: Stored, subscription: int = 0) -> None:
        """Record a message received by a reader."""
        identity = decode(record.value)
        if identity is None:
            self._write("read", r=subscription, o=record.offset, raw=record.value.hex())
        else:
            named = {"p": identity.publisher, "s": identity.sequence, "n": len(record.value)}
            self._write("read", r=subscription, o=record.offset, **named)
        self.newest_read = max(self.newest_read, record.offset)

    def note_error(self, error: BaseException) -> None:
        """Record the error of a client."""
        self._write("error", text=plain(error))

    def note_answer(self, count: int = 1) -> None:
        """No-op: answers are recorded one by one."""

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _answered(self, kind: str, sequence: int, **more: int) -> None:
        waiting = self._waiting
        assert waiting is not None, "answered twice"
        assert waiting.sequence == sequence, "one message is under way at a time"
        self._write(kind, p=waiting.publisher, s=sequence, **more)
        self._waiting = None

    def _write(self, kind: str, **more: int | str) -> None:
        moment = round(self._now(), 4)
        self._file.write(json.dumps({"t": moment, "e": kind, **more}) + "\n")


@dataclass(slots=True)
class Account:
    """Content of a journal.

    Attributes:
        history: History that the checker compares with the log.
        acks: Acknowledgements, in the order in which they came.
        newest_acked: Highest offset acknowledged; -1 for none.
        refused: Messages refused with certainty.
        unknown: Messages with unknown outcome.
        delivered: Messages that a reader got.
        errors: Errors that clients received, by text.
    """

    history: History = field(default_factory=History)
    acks: list[Ack] = field(default_factory=list)
    newest_acked: int = -1
    refused: int = 0
    unknown: int = 0
    delivered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    _sent: dict[Identity, float] = field(default_factory=dict)
    _deliveries: dict[int, list[Stored]] = field(default_factory=dict)

    def take(self, line: Mapping[str, int | float | str]) -> None:
        """Process one line."""
        kind, moment = line["e"], float(line["t"])
        if kind == "read":
            self._take_read(line)
        elif kind == "error":
            self.errors[str(line["text"])] += 1
        else:
            identity = Identity(int(line["p"]), int(line["s"]))
            publisher = self.history.publishers.setdefault(
                identity.publisher, PublisherHistory(identity.publisher)
            )
            if kind == "sent":
                publisher.invoke(int(line["n"]))
                self._sent[identity] = moment
                self.unknown += 1
                return
            sent = self._sent.pop(identity)
            if kind == "acked":
                publisher.acked(identity.sequence, int(line["o"]))
                self.acks.append(Ack(sent, moment))
                self.newest_acked = max(self.newest_acked, int(line["o"]))
                self.unknown -= 1
            elif kind == "refused":
                publisher.refused(identity.sequence)
                self.refused += 1
                self.unknown -= 1

    def _take_read(self, line: Mapping[str, int | float | str]) -> None:
        if "raw" in line:
            value = bytes.fromhex(str(line["raw"]))
        else:
            value = encode(Identity(int(line["p"]), int(line["s"])), int(line["n"]))
        number = int(line["r"])
        if number not in self._deliveries:
            self._deliveries[number] = self.history.new_subscription()
        self._deliveries[number].append(Stored(int(line["o"]), value))
        self.delivered += 1


def read(path: Path) -> Account:
    """Read a journal; ignore a truncated last line."""
    account = Account()
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                account.take(json.loads(line))
    return account
