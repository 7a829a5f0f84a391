"""A partition with replicas, elections and retention, for what readers notice of its history."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

REPLICAS: Final = 3

Record = tuple[int, int]
"""Leader epoch, and a number that no other record has."""


class Replica:
    """A log of records, each with its leader epoch, and the epochs that it knows by itself."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.epochs: list[tuple[int, int]] = []
        self.start = 0

    def enter(self, epoch: int) -> None:
        """An epoch begins at the end of the log."""
        while self.epochs and self.epochs[-1][1] >= len(self.records):
            self.epochs.pop()
        self.epochs.append((epoch, len(self.records)))

    def follow(self, leader: Replica, count: int) -> None:
        """Take over records of a leader; what differs from its log goes first."""
        self.start = max(self.start, leader.start)
        same = 0
        for mine, its in zip(self.records, leader.records, strict=False):
            if mine != its:
                break
            same += 1
        if len(self.records) > same:
            del self.records[same:]
            self.epochs = [epoch for epoch in self.epochs if epoch[1] < same]
        for record in leader.records[same : same + count]:
            if not self.epochs or self.epochs[-1][0] != record[0]:
                self.enter(record[0])
            self.records.append(record)

    def told(self) -> list[tuple[int, int]]:
        """Return epochs as reported: those in force from the start of the log on."""
        behind = [one for one in self.epochs if one[1] > self.start]
        before = [one for one in self.epochs if one[1] <= self.start]
        return [(before[-1][0], self.start), *behind] if before else behind


class ForkedLog:
    """A partition, and the records received by a reader of it, which follows any leader.

    Attributes:
        leader: The replica that leads.
        epoch: Its leader epoch.
        unclean: That of the last unclean election, 0 for none.
        read: Values that the reader received, by offset.
        first: First offset of it that can be compared.
    """

    def __init__(self) -> None:
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.epoch = 1
        self.unclean = 0
        self._serial = 0
        self.leader.enter(1)
        self.read: list[Record] = []
        self.first = 0

    def write(self, count: int) -> None:
        """Append records."""
        for _ in range(count):
            self._serial += 1
            self.leader.records.append((self.epoch, self._serial))

    def copy(self, number: int, count: int) -> None:
        """A follower fetches."""
        one = self.replicas[number]
        if one is not self.leader:
            one.follow(self.leader, count)

    def elect(self, number: int, is_unclean: bool) -> None:
        """A replica with all that the reader has, or, uncleanly, any."""
        chosen = self.replicas[number]
        keeps = chosen.records[: len(self.read)] == self.read
        if not is_unclean and not keeps:
            return
        self.epoch += 1
        self.unclean = self.epoch if is_unclean else self.unclean
        self.leader = chosen
        chosen.enter(self.epoch)

    def remove(self, count: int) -> None:
        """Retention removes what is oldest, at each replica by itself."""
        for one in self.replicas:
            one.start = min(one.start + count, len(one.records))

    def take(self, count: int) -> list[Record]:
        """Read on."""
        start = len(self.read)
        taken = self.leader.records[start : start + count]
        self.read += taken
        return taken

    def begin_anew(self) -> None:
        """The reader begins at the start of the log, and has read nothing."""
        self.read = list(self.leader.records[: self.leader.start])
        self.first = len(self.read)

    def differing(self) -> int | None:
        """First offset that is kept and at which the reader has another record than the log."""
        log = self.leader.records
        start = max(self.first, self.leader.start)
        kept = list(enumerate(self.read))[start:]
        return next((at for at, mine in kept if at >= len(log) or log[at] != mine), None)


STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.integers(0, REPLICAS - 1), st.integers(1, 4)),
        st.tuples(st.just("elect"), st.integers(0, REPLICAS - 1), st.booleans()),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(1, 2)),
    ),
    max_size=40,
)
"""Calls of a `ForkedLog`, by name; before each `take` a test looks."""
