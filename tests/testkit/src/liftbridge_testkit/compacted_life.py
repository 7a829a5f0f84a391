"""Random lives of a compacted partition whose replicas are elected with whatever they hold.

Three replicas on the shipped store, with the cores of replication between them: records with few
keys, replicas that fetch, are killed and lose power, and compactions that end when they end, as
those in a helper process do. Leaders are elected among those in sync and, now and then, uncleanly.
Then must hold:

- a clean election keeps, for each key, the last record that was committed, or one behind it;
- a replica that has caught up has, for each key, the record that its leader has, or one behind it
  that its leader lacks because it was elected before it had copied all.
"""

from collections import Counter
from random import Random
from typing import Final

from liftbridge_broker.model.fetching import ACCEPTED, Diverging, FetchedHead, Refused, SessionClock
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.follower import (
    Append,
    FollowerCore,
    FollowerLimits,
    FollowerOutcome,
    RestartAt,
    Truncate,
    Wait,
)
from liftbridge_broker.replication.isr import LeaderLimits
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.replica_logs import partition_of
from liftbridge_testkit.stores import NO_LIMITS, CompactedAside, StoreBed, values_in

NAMES: Final = "abc"
KEYS: Final = "klmnopqr"
ROUNDS_MAX: Final = 500
"""Fetches in which a replica has everything."""

OPTIONS: Final = StreamOptions(
    fsync_policy=FsyncPolicy.INTERVAL,
    segment_bytes_max=400,
    compact_enabled=True,
    cleaner_interval_ms=100,
)


class Replica:
    """One broker with its replica.

    Attributes:
        name: Name of the broker.
        aside: Its compactions.
        bed: Its store.
    """

    def __init__(self, name: str) -> None:
        """Begin with nothing."""
        self.name = BrokerId(name)
        flush = FlushLimits(interval_ns=200 * MILLISECOND_NS, journal_ns=500 * MILLISECOND_NS)
        self.bed = StoreBed(options=StoreOptions(flush=flush, space=NO_LIMITS))
        self.aside = CompactedAside(self.bed.files)
        self.bed.runner = self.aside.submit
        self.bed.start({PARTITION: OPTIONS})

    @property
    def log(self) -> PartitionLog:
        """Its log."""
        return self.bed.log(PARTITION)

    def restart(self) -> None:
        """The next process begins with what the one before left."""
        self.aside.done.clear()
        self.bed.start({PARTITION: OPTIONS})
        assert not self.log.is_offline

    def newest(self) -> dict[str, int]:
        """Return the offset of the last record of each key."""
        return {chr(value[0]): offset for offset, value in sorted(values_in(self.log).items())}


class CompactedLife:
    """One life; `step` by `step`.

    Attributes:
        counts: Counts of events.
        is_well: A broken rule raises at once, so it always is.
    """

    is_well = True

    def __init__(self, seed: int) -> None:
        """Begin with three replicas in sync, led by the first."""
        self._random = Random(f"compacted {seed}")
        self._replicas = [Replica(name) for name in NAMES]
        self._leader = self._replicas[0]
        self._in_sync = set(NAMES)
        self._cut_off_one = ""
        self._epoch = self._unclean_epoch = 0
        self._appended: dict[int, str] = {}
        self._committed: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self._elect(self._leader)
        self._actions = (
            [self._append] * 6
            + [self._fetch] * 12
            + [self._pass_time] * 3
            + [self._deliver, self._kill, self._lose_power]
            + [self._resign, self._move_start, self._cut_off]
        )

    def step(self) -> None:
        """Let one thing happen to one replica."""
        chance = self._random.random()
        if chance < 0.01:
            self._elect_uncleanly()
        elif chance < 0.02:
            self._catch_up()
        else:
            self._random.choice(self._actions)(self._random.choice(self._replicas))

    def heal(self, steps: int) -> None:
        """All catch up."""
        del steps
        self._catch_up()

    # -- leaders ------------------------------------------------------------------------------

    @property
    def _state(self) -> PartitionState:
        return partition_of(
            "".join(sorted(self._in_sync)),
            leader=self._leader.name,
            leader_epoch=self._epoch,
            unclean_epoch=self._unclean_epoch,
        )

    def _elect(self, one: Replica) -> None:
        """Begin an epoch with a leader that is the only one known to be in sync with it."""
        self._epoch += 1
        self._leader = one
        self._in_sync = {one.name}
        one.log.epochs.assign(LeaderEpoch(self._epoch), one.log.log_end_offset)
        one.bed.store.journal_state(PARTITION, lambda: None, one.bed.now)
        one.bed.pump()

    def _elect_uncleanly(self) -> None:
        """Elect any: what is committed is what it holds."""
        self.counts["unclean election"] += 1
        self._unclean_epoch = LeaderEpoch(self._epoch + 1)
        behind = [replica for replica in self._replicas if replica.name == self._cut_off_one]
        self._cut_off_one = ""
        self._elect(self._random.choice(behind or self._replicas))
        self._committed = self._leader.newest()
        self._appended.clear()

    def _replace_leader(self) -> None:
        """Elect another one in sync; any at all if there is none."""
        others = [one for one in self._replicas if one.name in self._in_sync]
        if not others:
            self._elect_uncleanly()
            return
        self.counts["clean election"] += 1
        self._elect(self._random.choice(others))
        newest, start = self._leader.newest(), self._leader.log.log_start_offset
        for key, offset in self._committed.items():
            is_there = newest.get(key, -1) >= offset or offset < start
            assert is_there, f"{key} was committed at {offset}, and is gone"

    def _resign(self, one: Replica) -> None:
        if one is self._leader and len(self._in_sync) > 1:
            self._in_sync.discard(one.name)
            self._replace_leader()

    def _append(self, _one: Replica) -> None:
        one = self._leader
        keys = [self._random.choice(KEYS) for _ in range(self._random.randrange(1, 4))]
        offset = one.log.log_end_offset
        values = [f"{key} {self._epoch}".ljust(60).encode() for key in keys]
        one.bed.append(PARTITION, values, keys=[k.encode() for k in keys], leader_epoch=self._epoch)
        self._appended.update(enumerate(keys, offset))
        self._commit()

    def _commit(self) -> None:
        """Commit the records that all in-sync replicas hold."""
        log = self._leader.log
        end = min(
            replica.log.log_end_offset
            for replica in self._replicas
            if replica.name in self._in_sync
        )
        log.high_watermark = max(log.high_watermark, end)
        for offset in sorted(at for at in self._appended if at < log.high_watermark):
            self._committed[self._appended.pop(offset)] = offset

    def _move_start(self, _one: Replica) -> None:
        """Retention removes a few records."""
        one = self._leader
        offset = one.log.log_start_offset + self._random.randrange(4)
        if self._random.randrange(4) == 0 and offset <= one.log.high_watermark:
            one.bed.store.raise_log_start(PARTITION, Offset(offset), one.bed.now)

    # -- followers ----------------------------------------------------------------------------

    def _fetch(self, one: Replica) -> None:
        """Ask the leader once, and do what comes of the answer."""
        if one is self._leader or one.name == self._cut_off_one:
            return
        now = Instant(1)
        lead, log, state = self._leader.log, one.log, self._state
        core = LeaderCore(
            self._leader.name,
            lead,
            state,
            min_isr=1,
            is_commit_mode=False,
            limits=LeaderLimits(),
            now=now,
        )
        core.on_established()
        follower = FollowerCore(
            one.name,
            log,
            state,
            is_commit_mode=False,
            limits=FollowerLimits(),
            rng=self._random,
            now=now,
        )
        position = follower.position()
        verdict = core.on_fetch(one.name, position, SessionClock(now), now)
        is_accepted = verdict == ACCEPTED
        data = b""
        if is_accepted and position.fetch_offset < lead.log_end_offset:
            size = self._random.randrange(1, 3_000)
            data = lead.read_batches(position.fetch_offset, size, lead.log_end_offset)
        head = FetchedHead(
            PARTITION,
            position.fetch_offset,
            state.leader_epoch,
            lead.high_watermark,
            lead.log_start_offset,
            verdict.error if isinstance(verdict, Refused) else None,
            (verdict.leader_epoch, verdict.end_offset) if isinstance(verdict, Diverging) else None,
            len(data),
        )
        self._follow(one, follower.on_reply(head, data, now))
        if is_accepted and log.log_end_offset == lead.log_end_offset:
            self._in_sync.add(one.name)
        self._commit()

    def _cut_off(self, one: Replica) -> None:
        """A follower does not reach the leader for a while."""
        if one is not self._leader and self._random.randrange(2):
            self._cut_off_one = one.name
            self._in_sync.discard(one.name)

    def _follow(self, one: Replica, outcome: FollowerOutcome) -> None:
        store, log = one.bed.store, one.log
        match outcome:
            case Append(data, headers, high_watermark, log_start):
                if outcome.copied != log.copied:
                    self.counts["copy of a compacted log"] += 1
                    store.notes.note_copied(
                        PARTITION, log.dropped_offset, outcome.copied, one.bed.now
                    )
                if headers:
                    log.append_batches(data, headers, one.bed.wall_ns)
                    store.note_append(PARTITION, one.bed.now)
                log.high_watermark = high_watermark
                store.raise_log_start(PARTITION, log_start, one.bed.now)
            case Truncate(end):
                self.counts["cut"] += 1
                self.counts["compacted, and cut"] += end == log.compacted_from < log.log_end_offset
                store.truncate([(PARTITION, end)], one.bed.now)
            case RestartAt(offset):
                self.counts["restart"] += 1
                self.counts["compacted, and cut"] += log.compacted_from < log.log_end_offset
                store.restart(PARTITION, offset, one.bed.now)
            case _:
                assert isinstance(outcome, Wait), f"an honest leader: {outcome}"

    def _catch_up(self) -> None:
        """All fetch until they hold what the leader holds."""
        self._cut_off_one = ""
        lead = self._leader
        newest = lead.newest()
        for replica in self._replicas:
            for _ in range(ROUNDS_MAX):
                if (
                    replica.name in self._in_sync
                    and replica.log.log_end_offset == lead.log.log_end_offset
                ):
                    break
                self._fetch(replica)
            assert replica.name in self._in_sync, f"{replica.name} does not catch up"
            held, start = replica.newest(), replica.log.log_start_offset
            missing = {
                key: offset
                for key, offset in newest.items()
                if offset >= start and held.get(key, -1) < offset
            }
            assert not missing, f"{replica.name} lacks {missing} of {lead.name}"

    # -- time and power -----------------------------------------------------------------------

    def _pass_time(self, one: Replica) -> None:
        one.bed.advance(self._random.choice((1, 50, 300)) * MILLISECOND_NS)

    def _deliver(self, one: Replica) -> None:
        """A compaction comes to its end, of the log as it was when it began."""
        if one.aside.done:
            self.counts["compaction"] += 1
            one.bed.store.on_file_event(one.aside.done.popleft(), one.bed.now)
            one.bed.pump()

    def _kill(self, one: Replica) -> None:
        if self._random.randrange(3) == 0:
            one.bed.files.kill()
            self._end(one)

    def _lose_power(self, one: Replica) -> None:
        if self._random.randrange(3) == 0:
            one.bed.files.crash(Random(self._random.randrange(1 << 30)))
            self._end(one)

    def _end(self, one: Replica) -> None:
        """A process ended in disorder: its replica is in sync no longer."""
        one.restart()
        self._in_sync.discard(one.name)
        if one is self._leader:
            self._replace_leader()


def life(seed: int) -> CompactedLife:
    """Return a life by its seed."""
    return CompactedLife(seed)
