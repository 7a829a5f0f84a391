"""Whole nodes under random kills, power cuts, cuts of the network and pauses: nothing is lost.

Every value is published once with acks of all. One that was acknowledged must be found at its
offset on every replica when the storm is over; one that was refused for sure, nowhere.
"""

from random import Random

import pytest

from liftbridge_broker.errors import LiftbridgeError, NotAppendedError
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.cluster_world import ClusterWorld

STEPS = 120
SEEDS = range(6)


def values_of(member, partition_id):
    log = member.node.partitions[partition_id].log
    reader = log.reader(log.log_start_offset)
    found = {}
    while reader.next_offset < log.high_watermark:
        result = reader.read(1 << 20, log.high_watermark)
        if result.need is not None:
            reader.feed(member.files.read(*result.need))
            continue
        for piece in result.slices:
            for position, stop, _ in iter_frames(piece, 0, len(piece)):
                frame = decode_frame(piece, position, stop)
                found[int(frame.offset)] = bytes(frame.value)
    reader.close()
    return found


class Storm:
    """One world and what is done to it."""

    def __init__(self, seed, *, policy):
        self.rng = Random(seed)
        self.world = ClusterWorld(seed=seed, snapshot_entries=20)
        self.policy = policy
        self.partition = self.world.create(fsync_policy=policy, min_isr=2)
        self.published = []
        self.number = 0
        self.committed = {}

    def publish(self):
        rng, world = self.rng, self.world
        for member in world.alive:
            if rng.random() < 0.5:
                continue
            try:
                partition = member.node.find_partition("s", 0)
            except LiftbridgeError:
                continue
            del partition
            for _ in range(rng.randrange(1, 4)):
                self.number += 1
                value = b"v%d" % self.number
                self.published.append((value, world.publish(value, at=member)))

    def step(self):
        rng, world = self.rng, self.world
        alive = world.alive
        chance = rng.random()
        if chance < 0.08 and len(alive) > 1:
            self.publish()  # nothing of it can have left yet
            # With power cuts only what is on disk may be promised.
            is_cut = self.policy is FsyncPolicy.COMMIT and rng.random() < 0.5
            rng.choice(alive).kill(power_cut=is_cut)
        elif chance < 0.2:
            dead = [member for member in world.members.values() if not member.is_alive]
            if dead:
                rng.choice(dead).restart()
        elif chance < 0.26:
            world.cut(rng.choice(list(world.members.values())))
        elif chance < 0.32:
            one, other = rng.sample(list(world.members), 2)
            world.broken.add((one, other))
        elif chance < 0.44:
            world.heal()
            for member in alive:
                member.is_stalled = False
        elif chance < 0.48 and alive:
            rng.choice(alive).is_stalled = True
        else:
            self.publish()
        world.run(rng.choice((5, 20, 100, 400)))
        self.look()

    def look(self):
        """What was committed once, and may have been read, never changes."""
        for member in self.world.alive:
            if self.partition in member.node.partitions:
                for offset, value in values_of(member, self.partition).items():
                    assert self.committed.setdefault(offset, value) == value

    def calm(self):
        world = self.world
        world.heal()
        for member in world.members.values():
            member.is_stalled = False
            if not member.is_alive:
                member.restart()
        world.until(lambda: world.is_whole, milliseconds=60_000)
        world.run(3_000)  # whatever still runs out, of timeouts and sessions, does now
        world.until(self.is_in_sync, milliseconds=60_000)
        world.commit(b"last")
        world.until(self.is_in_sync, milliseconds=60_000)

    def is_in_sync(self):
        """Whether every replica has everything, and knows that it is committed."""
        world = self.world
        if len(world.state().isr) < 3 or world.leader() is None:
            return False
        logs = [member.node.partitions[self.partition].log for member in world.alive]
        ends = {(log.high_watermark, log.log_end_offset) for log in logs}
        return len(ends) == 1 and all(log.high_watermark == log.log_end_offset for log in logs)

    def check(self):
        found = [values_of(member, self.partition) for member in self.world.alive]
        assert found[0] == found[1] == found[2]
        stored = found[0]
        assert list(stored) == list(range(len(stored)))
        assert self.committed.items() <= stored.items()
        acked = 0
        for value, answers in self.published:
            if answers.stored:
                acked += 1
                assert stored[answers.offset] == value
            elif answers.errors and isinstance(answers.error, NotAppendedError):
                assert value not in stored.values()
        assert all(not member.failures for member in self.world.members.values())
        return acked


@pytest.mark.parametrize("policy", [FsyncPolicy.INTERVAL, FsyncPolicy.COMMIT])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_in_a_storm(seed, policy):
    storm = Storm(seed, policy=policy)
    for _ in range(STEPS):
        storm.step()
    storm.calm()
    assert storm.check() > 0
    assert storm.world.now > Instant(1_000 * MILLISECOND_NS)
