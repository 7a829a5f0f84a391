"""What consumers of a group read, and whether it is what a group promises.

- Every acknowledged message is read at least once.
- No two members read a partition at the same time: what one reads, from the moment it was given the
  partition on, lies before or after what another reads.
- Nobody reads a message twice that was given the partition once.
- No two members read a partition under the same group epoch, where members tell it.

Members of a classic group learn that they lost a partition by the end of their subscription, and
may have received messages before: for a moment, one still reads while its successor begins.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple


class Read(NamedTuple):
    """Consecutive messages of a partition that a member has got.

    Attributes:
        at: Time, in seconds of the machine's monotonic clock.
        member: Number of the member.
        claim: How often the member had been given the partition before, or the number of its
            subscription.
        first: First offset.
        last: Last offset.
        epoch: Group epoch of the subscription; 0 where members do not tell it.
    """

    at: float
    member: int
    claim: int
    first: int
    last: int
    epoch: int = 0


class Overlap(NamedTuple):
    """A member that reads a partition although another has begun to.

    Attributes:
        partition: The partition.
        former: The member.
        successor: The other one.
        begin: Time of the first read of the successor.
        end: Time of the last read of the former one.
    """

    partition: int
    former: int
    successor: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How late it reads."""
        return self.end - self.begin


@dataclass(slots=True)
class History:
    """Acks and reads; filled by threads.

    Attributes:
        partitions: Number of partitions.
        overlap_seconds_max: How long a member may go on to read when another has begun.
        ends: Exclusive ends of what is acknowledged, by partition.
        reads: Reads by partition, as they arrived.
        given: When which member was given a partition, by partition.
    """

    partitions: int
    overlap_seconds_max: float = 0.0
    ends: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    reads: dict[int, list[Read]] = field(default_factory=lambda: defaultdict(list))
    given: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    _claims: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acked(self, partition: int, offset: int) -> None:
        """Note an acknowledged message."""
        with self._lock:
            self.ends[partition] = max(self.ends[partition], offset + 1)

    def told(self, member: int, line: str) -> None:
        """Note a line of a member."""
        word, at, *rest = line.split()
        numbers = [int(one) for one in rest]
        with self._lock:
            if word == "given":
                for partition in numbers:
                    self._claims[member, partition] += 1
                    self.given[partition].append((float(at), member))
            elif word == "read":
                partition, first, last, *subscription = numbers
                epoch, claim = subscription or (0, self._claims[member, partition])
                self.reads[partition].append(Read(float(at), member, claim, first, last, epoch))

    def read_since(self, partition: int, moment: float, members: frozenset[int]) -> float | None:
        """Return when one of some members first read a partition after a moment, if at all."""
        with self._lock:
            times = [one.at for one in self._late(partition, moment) if one.member in members]
        return min(times, default=None)

    def given_since(self, partition: int, moment: float, members: frozenset[int]) -> float | None:
        """Return when one of some members was first given a partition after a moment, if at all."""
        with self._lock:
            times = [at for at, who in self.given[partition] if at > moment and who in members]
        return min(times, default=None)

    def _late(self, partition: int, moment: float) -> list[Read]:
        found = []
        for one in reversed(self.reads[partition]):
            if one.at <= moment - 1:  # lines of members arrive nearly in order
                break
            if one.at > moment:
                found.append(one)
        return found

    def owners(self) -> dict[int, int]:
        """Return who read each partition last."""
        with self._lock:
            return {partition: reads[-1].member for partition, reads in self.reads.items() if reads}

    def epochs(self) -> frozenset[int]:
        """Return the group epochs of the last reads; 0 where members do not tell it."""
        with self._lock:
            return frozenset(reads[-1].epoch for reads in self.reads.values() if reads)

    def missing_count(self) -> int:
        """Count the acknowledged messages that nobody has read."""
        with self._lock:
            return sum(
                len(set(range(end)) - _offsets(self.reads[partition]))
                for partition, end in self.ends.items()
            )

    def repeated_count(self) -> int:
        """Count the messages that were read more often than once, a message once for each."""
        with self._lock:
            return sum(
                sum(one.last + 1 - one.first for one in reads) - len(_offsets(reads))
                for reads in self.reads.values()
            )

    def overlaps(self) -> list[Overlap]:
        """List the members that read although another had begun."""
        with self._lock:
            return [
                overlap
                for partition, reads in sorted(self.reads.items())
                for overlap in _overlaps(partition, reads)
            ]

    def faults(self) -> list[str]:
        """List what breaks a promise, except for missing messages."""
        late = [
            f"partition {one.partition}: member {one.former} reads until {one.end:.3f}, member "
            f"{one.successor} from {one.begin:.3f} on"
            for one in self.overlaps()
            if one.seconds > self.overlap_seconds_max
        ]
        with self._lock:
            return late + [
                fault
                for partition, reads in sorted(self.reads.items())
                for fault in (*_doubles(partition, reads), *_shared_epochs(partition, reads))
            ]


def _offsets(reads: list[Read]) -> set[int]:
    return {offset for one in reads for offset in range(one.first, one.last + 1)}


def _overlaps(partition: int, reads: list[Read]) -> list[Overlap]:
    """Find members that read a partition after another had begun."""
    claims: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in reads:
        claims[one.member, one.claim].append(one.at)
    spans = sorted((min(times), max(times), member) for (member, _), times in claims.items())
    found = []
    until, reader = 0.0, 0
    for begin, end, member in spans:
        if begin < until and member != reader:
            found.append(Overlap(partition, reader, member, begin, until))
        until, reader = max((until, reader), (end, member))
    return found


def _doubles(partition: int, reads: list[Read]) -> list[str]:
    """Find claims under which a message was read again."""
    ends: dict[tuple[int, int], int] = {}
    found = []
    for one in sorted(reads):
        who = one.member, one.claim
        if one.first < ends.get(who, 0):
            found.append(f"partition {partition}: member {who[0]} reads {one.first} again")
        ends[who] = one.last + 1
    return found


def _shared_epochs(partition: int, reads: list[Read]) -> list[str]:
    """Find group epochs under which two members read a partition."""
    members: dict[int, set[int]] = defaultdict(set)
    for one in reads:
        if one.epoch:
            members[one.epoch].add(one.member)
    return [
        f"partition {partition}: members {sorted(some)} read under group epoch {epoch}"
        for epoch, some in sorted(members.items())
        if len(some) > 1
    ]
