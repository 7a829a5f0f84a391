"""State of idempotent publishers on logs that are compacted, trimmed, cut and lost in part.

The model keeps every header that was ever appended and not cut, and replays them all.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.ports.publishers import StampedBatch
from liftbridge_broker.replication.publisher_history import PublisherHistory
from liftbridge_broker.replication.publishers import PublisherTable

PUBLISHERS = (1, 2, 3)
STAMPS_FEW = 4


class Header(NamedTuple):
    publisher_id: int
    publisher_epoch: int
    first_sequence: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    largest_timestamp: int

    def part(self, start: int, end: int) -> "Header":
        """What lies in [start, end), as a re-cut batch tells it."""
        base = max(start, self.base_offset)
        return self._replace(
            first_sequence=self.first_sequence + base - self.base_offset,
            base_offset=base,
            last_offset=min(end - 1, self.last_offset),
        )


class Log:
    """A log of headers; `history` is what it would hold without compaction and retention."""

    def __init__(self) -> None:
        self.history: list[Header] = []
        self.compacted: set[int] = set()
        self.starts: list[tuple[int, int]] = []
        self.start = self.end = self.committed = self.synced = 0

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.start)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.end)

    @property
    def high_watermark(self) -> Offset:
        return Offset(self.committed)

    @property
    def settled_offset(self) -> Offset:
        return Offset(max(self.start, min(self.committed, self.synced)))

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        found = [epoch for epoch, start in self.starts if start < offset]
        return LeaderEpoch(found[-1] if found else 0)

    def stamped(self, offset: Offset) -> Iterator[StampedBatch]:
        begin = max(offset, self.start)
        for header in self.history:
            if header.last_offset >= begin and header.base_offset not in self.compacted:
                yield header.part(begin, self.end)

    def cut(self, end: int) -> None:
        self.history = [one.part(0, end) for one in self.history if one.base_offset < end]
        self.starts = [entry for entry in self.starts if entry[1] < end]
        self.end, self.synced = end, min(self.synced, end)


class World:
    """One replica; `saved` is the snapshot on its disk."""

    def __init__(self, stamps_max: int) -> None:
        self.log = Log()
        self.stamps_max = stamps_max
        self.publishers = self.made()
        self.saved: bytes | None = None
        self.leader_epoch = 1
        self.clock = 0

    def made(self) -> PublisherHistory:
        return PublisherHistory(PublisherTable, self.log, stamps_max=self.stamps_max)

    def model(self) -> PublisherTable:
        table = PublisherTable()
        for header in self.log.history:
            table.replay(header)
        return table

    def append(self, publisher: int, amount: int) -> None:
        log, count = self.log, amount % 4 + 1
        self.clock += 1
        if not log.starts or log.starts[-1][0] != self.leader_epoch:
            log.starts.append((self.leader_epoch, log.end))
        header = Header(
            publisher % (len(PUBLISHERS) + 1),
            amount % 2,
            self.model().next_sequence(publisher % (len(PUBLISHERS) + 1)),
            log.end,
            log.end + count - 1,
            self.leader_epoch,
            self.clock,
        )
        log.end += count
        if header.publisher_id:
            log.history.append(header)
            self.publishers.replay(header)

    def elect(self, _one: int, _two: int) -> None:
        self.leader_epoch += 1

    def commit(self, part: int, _two: int) -> None:
        self.log.committed += (self.log.end - self.log.committed) * min(part, 8) // 8

    def sync(self, part: int, _two: int) -> None:
        self.log.synced += (self.log.end - self.log.synced) * min(part, 8) // 8

    def save(self, _one: int = 0, _two: int = 0) -> None:
        self.publishers.settle()
        self.saved = self.publishers.snapshot()

    def compact(self, part: int, _two: int) -> None:
        log = self.log
        self.save()
        bound = min(log.committed, log.synced) * min(part, 8) // 8
        log.compacted |= {one.base_offset for one in log.history if one.last_offset < bound}

    def trim(self, part: int, is_lost: int) -> None:
        """Raise the log start, and perhaps lose the power before that is durable."""
        log = self.log
        self.save()
        if is_lost % 4:
            # Stamps that are left out may not be read any more once they are not synced either.
            bound = log.committed if self.stamps_max > STAMPS_FEW else log.settled_offset
            log.start = max(log.start, bound * min(part, 8) // 8)
            log.synced = max(log.synced, log.start)
        else:
            self.crash(part, 0)

    def cut(self, part: int, is_power_cut: int) -> None:
        """Cut what is not committed, and perhaps stop before the new state is saved."""
        log = self.log
        end = log.committed + (log.end - log.committed) * min(part, 8) // 8
        log.cut(end)
        self.elect(0, 0)
        if is_power_cut % 3:
            assert self.publishers.roll_back()
            self.save()
        else:
            self.restart(0, 0)

    def restart(self, _one: int, _two: int) -> None:
        self.publishers = self.made()
        self.publishers.take_up(self.saved)

    def crash(self, part: int, _two: int) -> None:
        """Lose records that were not synced, committed ones too, which come back by a fetch."""
        log = self.log
        lost, committed, starts = list(log.history), log.committed, list(log.starts)
        end = max(log.start, log.synced + (log.end - log.synced) * min(part, 8) // 8)
        log.cut(end)
        log.committed = min(log.committed, max(end, log.start))
        self.restart(0, 0)
        for header in lost:
            if max(header.base_offset, end) < min(header.last_offset + 1, committed):
                again = header.part(end, committed)
                log.history.append(again)
                self.publishers.replay(again)
        log.committed, log.end = committed, max(end, committed)
        log.starts = [entry for entry in starts if entry[1] < log.end]


STEPS = ("append", "append", "append", "append", "elect", "commit", "sync", "save", "compact",
         "trim", "cut", "restart", "crash")  # fmt: skip


@pytest.mark.parametrize("stamps_max", [1, STAMPS_FEW, 1_000])
@pytest.mark.parametrize("seed", range(20))
def test_publishers_are_what_all_headers_tell(seed: int, stamps_max: int) -> None:
    random = Random(seed)
    world = World(stamps_max)
    for _ in range(250):
        getattr(world, random.choice(STEPS))(random.randrange(11), random.randrange(11))
        assert state(world.publishers.table) == state(world.model())
    assert world.log.end > world.log.start


def state(table: PublisherTable) -> bytes:
    """What a table knows of publishers, wherever its log ends."""
    copy = PublisherTable()
    copy.restore(table.snapshot())
    copy.note_end(Offset(0), LeaderEpoch(0))
    return copy.snapshot()
