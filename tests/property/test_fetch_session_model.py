"""A pair of brokers with many partitions over a bad network ends up with equal logs."""

from collections import Counter
from random import Random

from liftbridge_broker.model.fetching import ACCEPTED, FetchError, FetchPosition, Refused
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.fetch_sessions import (
    FollowerSession,
    LeaderSession,
    LeaderSessionLimits,
    SessionLimits,
)

SEEDS = range(60)
STEPS = 600
PARTITIONS = 12
LIMITS = LeaderSessionLimits(reply_bytes_max=20, partition_bytes_max=7, partitions_max=2)


class Led:
    """A partition whose records are single bytes; each fetch is checked against its epoch."""

    def __init__(self):
        self.leader_epoch = LeaderEpoch(1)
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.high_watermark = Offset(0)
        self.compacted_everywhere = self.dropped_offset = Offset(0)
        self.told = Offset(0)

    def on_fetch(self, _replica, fetch, _clock, _now):
        if fetch.leader_epoch != self.leader_epoch:
            return Refused(FetchError.FENCED_LEADER_EPOCH)
        self.told = fetch.fetch_offset
        self.high_watermark = max(self.high_watermark, fetch.fetch_offset)
        return ACCEPTED

    def on_answered(self, _replica, _asked_at):
        pass

    def on_forgotten(self, _replica):
        pass

    def read(self, _replica, offset, bytes_max):
        return [b"." * min(bytes_max, self.log_end_offset - offset)]


class Pair:
    """Both brokers and the network between them."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.now = Instant(0)
        self.faults = True
        self.counts = Counter()
        self.led = {PartitionId(number): Led() for number in range(PARTITIONS)}
        self.ends = dict.fromkeys(self.led, 0)
        self.epochs = dict.fromkeys(self.led, 1)
        self.watermarks = dict.fromkeys(self.led, 0)
        self.leader = LeaderSession(BrokerId("b"), self.led.get, first_session_id=1, limits=LIMITS)
        self.follower = FollowerSession(
            BrokerId("a"),
            leader_broker_epoch=1,
            first_correlation_id=seed,
            limits=SessionLimits(),
            now=self.now,
        )
        self.network = []
        for partition in self.led:
            self.tell(partition)

    def tell(self, partition):
        epoch, end = LeaderEpoch(self.epochs[partition]), Offset(self.ends[partition])
        self.follower.put(FetchPosition(partition, 1, epoch, end, Offset(0), None, Offset(0)))

    def send(self, act, *values):
        chance = self.rng.random() if self.faults else 1
        self.counts["lost"] += chance < 0.05
        for _ in range(0 if chance < 0.05 else 2 if chance < 0.1 else 1):
            self.network.append((act, values))

    def step(self):
        self.now = Instant(self.now + self.rng.randrange(30 * MILLISECOND_NS))
        partition = self.rng.choice(list(self.led))
        chance = self.rng.random()
        if chance < 0.15 and self.faults:
            self.led[partition].log_end_offset += self.rng.randrange(12)
            self.leader.notify(partition)
        elif chance < 0.18 and self.faults:
            self.epochs[partition] += 1
            self.tell(partition)
        elif chance < 0.25:
            self.led[partition].leader_epoch = LeaderEpoch(self.epochs[partition])
            self.leader.on_leadership(partition, self.now)
        elif self.network:
            late = self.faults and self.rng.random() < 0.1
            act, values = self.network.pop(self.rng.randrange(len(self.network)) if late else 0)
            act(*values)
        self.pump()

    def pump(self):
        request = self.follower.next_request(self.now)
        if request is not None:
            self.counts["full"] += request.body.session_epoch == 0
            self.send(self.on_request, request)
        answer = self.leader.take_answer(self.now)
        if answer is not None:
            assert sum(map(bool, answer.pieces)) <= LIMITS.partitions_max
            self.send(self.on_answer, answer)

    def on_request(self, request):
        answers = self.leader.on_request(
            request.correlation_id,
            request.body,
            own_broker_epoch=1,
            follower_broker_epoch=1,
            now=self.now,
        )
        for answer in answers:
            self.send(self.on_answer, answer)

    def on_answer(self, answer):
        if not self.follower.on_reply(answer.correlation_id, answer.body, self.now):
            return
        pieces = iter(answer.pieces)
        for head in answer.body.partitions:
            data = next(pieces) if head.data_bytes else b""
            assert len(data) == head.data_bytes
            if head.error is not None or head.leader_epoch != self.epochs[head.partition]:
                self.follower.retry(head.partition, self.now)
            elif head.fetch_offset == self.ends[head.partition]:
                self.counts["bytes"] += len(data)
                self.ends[head.partition] += len(data)
                self.watermarks[head.partition] = head.high_watermark
                self.tell(head.partition)

    @property
    def is_well(self):
        return all(
            self.ends[partition] == led.log_end_offset == led.told
            and self.watermarks[partition] == led.high_watermark
            for partition, led in self.led.items()
        )


def test_every_partition_catches_up_whatever_the_network_does():
    counts = Counter()
    for seed in SEEDS:
        pair = Pair(seed)
        for _ in range(STEPS):
            pair.step()
        pair.faults = False
        for _ in range(5_000):
            pair.step()
            if pair.is_well:
                break
        assert pair.is_well, f"seed {seed}"
        counts += pair.counts
    assert counts["bytes"] > 10_000
    assert counts["lost"] > 100
    assert counts["full"] > 2 * len(SEEDS)


def test_network_without_faults_needs_one_full_fetch():
    pair = Pair(1)
    pair.faults = False
    for led in pair.led.values():
        led.log_end_offset = Offset(50)
    for _ in range(2_000):
        pair.step()
    assert pair.is_well
    assert pair.counts["full"] == 1
    assert pair.counts["bytes"] == 50 * PARTITIONS
