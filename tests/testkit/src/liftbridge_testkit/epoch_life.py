"""Random lives of the leader epochs of logs, on the shipped store, ended and begun again by power.

A life leads and follows in turn: it begins epochs with and without records, takes records of older
epochs as a follower does behind a cut, moves the start of logs, begins them anew elsewhere, stops,
is killed and loses power. After each step the epochs must say what the records do ("Leader-epoch
cache" in docs/spec/replication.md):

- they rise strictly in both fields, and none begins below the log or behind its end;
- where an epoch has records, it begins with the first of them, or with the log;
- only the last one may be without records: it is there when it was begun and not cut off, and after
  a power cut when the journal had told that it is durable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from random import Random
from typing import Final

from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of

POLICIES: Final = (FsyncPolicy.COMMIT, FsyncPolicy.INTERVAL, FsyncPolicy.NEVER)
PARTITIONS: Final = 2
VALUE: Final = b"." * 150


@dataclass
class Held:
    """Expected state of one log.

    Attributes:
        epochs: Epoch of each record, by offset.
        start: Start of the log.
        end: End of the log.
        high_watermark: Nothing below it is cut off.
        led: Epoch in which it is led; 0 when it follows.
        tail: The last epoch begun, when it has no record yet.
        durable_tail: The same, when the journal told that it is durable.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    led: int = 0
    tail: int = 0
    durable_tail: int = 0

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, 0 for none."""
        return self.epochs.get(self.end - 1, 0)

    def cut(self, end: int) -> None:
        """Remove everything from `end` on."""
        self.epochs = {at: epoch for at, epoch in self.epochs.items() if at < end}
        self.end = end
        self.tail = self.durable_tail = 0

    def runs(self) -> list[tuple[int, int]]:
        """Return each epoch that has records, with the offset of its first one."""
        inside = range(self.start, self.end)
        return [(epoch, next(run)) for epoch, run in groupby(inside, key=self.epochs.__getitem__)]


class EpochLife:
    """One life; `step` by `step`, each checked.

    Attributes:
        is_well: A broken rule raises at once, so it always is.
    """

    is_well = True

    def __init__(self, seed: int) -> None:
        self._random = Random(f"epochs {seed}")
        random = self._random
        flush = FlushLimits(
            interval_ns=random.choice((50, 1_000)) * MILLISECOND_NS,
            journal_ns=random.choice((10, 500)) * MILLISECOND_NS,
        )
        self._bed = StoreBed(options=StoreOptions(flush=flush, space=NO_LIMITS))
        self._options = {
            key_of(number): StreamOptions(
                fsync_policy=random.choice(POLICIES),
                segment_bytes_max=random.choice((600, 1 << 20)),
            )
            for number in range(1, PARTITIONS + 1)
        }
        self._held = {partition: Held() for partition in self._options}
        self._epoch = 1
        self._bed.start(self._options)
        self._actions = (
            [self._append] * 6
            + [self._take] * 4
            + [self._lead, self._follow, self._cut, self._cut, self._commit, self._pass_time] * 2
            + [self._move_start, self._begin_elsewhere, self._begin_again, self._lose_power]
        )

    def step(self) -> None:
        """Let one thing happen to one log."""
        if not self._held:
            return
        partition = self._random.choice(list(self._held))
        self._random.choice(self._actions)(partition, self._held[partition])
        for one, held in self._held.items():
            self._check(one, held)

    def heal(self, steps: int) -> None:
        """Stop in order and begin again: nothing may be missing."""
        del steps
        if not self._held:
            return
        partition = next(iter(self._held))
        self._begin_again(partition, self._held[partition])

    # -- leading and following ----------------------------------------------------------------

    def _log(self, partition: PartitionId) -> PartitionLog:
        return self._bed.log(partition)

    def _lead(self, partition: PartitionId, held: Held) -> None:
        """Begin an epoch where the log ends, as a new leader does (L1)."""
        self._epoch += 1
        held.led = held.tail = epoch = self._epoch
        held.durable_tail = 0
        log = self._log(partition)
        log.epochs.assign(LeaderEpoch(epoch), log.log_end_offset)

        def durable() -> None:
            if held.tail == epoch:
                held.durable_tail = epoch

        self._bed.store.journal_state(partition, durable, self._bed.now)

    def _follow(self, _partition: PartitionId, held: Held) -> None:
        self._epoch += 1
        held.led = 0

    def _append(self, partition: PartitionId, held: Held) -> None:
        if held.led:
            self._put(partition, held, held.led)

    def _take(self, partition: PartitionId, held: Held) -> None:
        """Take records of the leader, of any epoch that may follow here."""
        if not held.led:
            least = max(held.tail, held.last_epoch, 1)
            self._put(partition, held, self._random.randrange(least, self._epoch + 1))

    def _put(self, partition: PartitionId, held: Held, epoch: int) -> None:
        count = self._random.randrange(1, 4)
        self._bed.append(partition, [VALUE] * count, leader_epoch=epoch)
        held.epochs.update(dict.fromkeys(range(held.end, held.end + count), epoch))
        held.end += count
        held.tail = held.durable_tail = 0

    def _cut(self, partition: PartitionId, held: Held) -> None:
        """Cut off what the leader does not have, in a log that follows."""
        if held.led:
            return
        end = self._random.randrange(max(held.high_watermark, held.end - 6), held.end + 1)
        self._bed.store.truncate([(partition, Offset(end))], self._bed.now)
        held.cut(end)

    # -- where a log begins -------------------------------------------------------------------

    def _commit(self, partition: PartitionId, held: Held) -> None:
        held.high_watermark = self._random.randrange(held.high_watermark, held.end + 1)
        self._log(partition).high_watermark = Offset(held.high_watermark)

    def _move_start(self, partition: PartitionId, held: Held) -> None:
        start = self._random.randrange(held.start, held.high_watermark + 1)
        self._bed.store.raise_log_start(partition, Offset(start), self._bed.now)
        self._hide(held, start)

    def _hide(self, held: Held, start: int) -> None:
        """Remove everything below `start`; the epoch in force there remains known."""
        if start == held.end and start > held.start and not held.tail:
            held.tail = held.last_epoch
        held.start = max(held.start, start)

    def _begin_elsewhere(self, partition: PartitionId, held: Held) -> None:
        if held.led or self._random.randrange(4):
            return
        place = held.end + self._random.randrange(20)
        self._bed.store.restart(partition, Offset(place), self._bed.now)
        held.cut(0)
        held.start = held.end = held.high_watermark = place

    # -- time and power -----------------------------------------------------------------------

    def _pass_time(self, _partition: PartitionId, _held: Held) -> None:
        self._bed.advance(self._random.choice((1, 30, 700)) * MILLISECOND_NS)

    def _begin_again(self, _partition: PartitionId, _held: Held) -> None:
        """The process stops in order, or is killed: nothing is lost but what was not written."""
        if self._random.randrange(2):
            self._bed.pump()
            self._bed.store.close(1)
            self._restart(partial(self._bed.files.crash, None))
        else:
            self._restart(self._bed.files.kill)

    def _lose_power(self, _partition: PartitionId, _held: Held) -> None:
        self._bed.pump(self._random.randrange(3))
        keep = Random(self._random.randrange(1 << 30)) if self._random.randrange(3) else None
        self._restart(partial(self._bed.files.crash, keep), is_power_lost=True)

    def _restart(self, end_process: Callable[[], None], *, is_power_lost: bool = False) -> None:
        end_process()
        self._bed.start(self._options)
        for partition, held in list(self._held.items()):
            log = self._log(partition)
            if log.is_offline:
                # Power took a middle one of several writes that were not synced. Under `commit`
                # what follows may be durable, so that is for an operator; else it is cut off.
                is_commit = self._options[partition].fsync_policy is FsyncPolicy.COMMIT
                assert is_power_lost, "a log broke without a power cut"
                assert is_commit, "a power cut broke a log that may be cut"
                del self._held[partition]
            else:
                self._survive(log, held)

    def _survive(self, log: PartitionLog, held: Held) -> None:
        """Take for true what a log may have become."""
        held.led = 0
        end = int(log.log_end_offset)
        if end < held.end:
            held.cut(end)
        held.start = int(log.log_start_offset)
        held.high_watermark = max(held.start, min(held.high_watermark, end))
        log.high_watermark = Offset(held.high_watermark)
        behind = [int(epoch) for epoch, start in log.epochs.entries if start == end]
        tail = behind[-1] if behind else 0
        assert held.durable_tail in (0, tail), f"{held.durable_tail} was durable and is gone"
        held.tail = tail

    # -- check --------------------------------------------------------------------------------

    def _check(self, partition: PartitionId, held: Held) -> None:
        log = self._log(partition)
        assert (log.log_start_offset, log.log_end_offset) == (held.start, held.end)
        entries = [(int(epoch), int(start)) for epoch, start in log.epochs.entries]
        for (epoch, start), (later, behind) in pairwise(entries):
            assert epoch < later, f"epochs do not rise: {entries}"
            assert start < behind, f"epochs begin at one offset: {entries}"
        expected = held.runs()
        if held.tail:
            expected.append((held.tail, held.end))
        assert entries == expected, f"{entries} of records that say {expected}"


def life(seed: int) -> EpochLife:
    """Return the life of a seed."""
    return EpochLife(seed)
