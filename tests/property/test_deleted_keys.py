"""Random lives of a compacted stream whose keys are deleted while replicas come, go and come back.

The model is the newest acknowledged record of each key. Whoever leads holds for each key that
record, or, when it was a tombstone, it or nothing: never what was there before.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.controller.commands import (
    CancelReassignment,
    ElectPreferred,
    StartReassignment,
)
from liftbridge_broker.node.partition.runs import POLICY_ALL
from liftbridge_testkit.batches import frames_of
from liftbridge_testkit.cluster_world import ClusterWorld, Member

LIVES = 8
STEPS = 40
BROKERS = 5
DOWN_MAX = 2
KEYS_MAX = 8
"""Keys that have a value at a time."""
ANEW_MIN = 6
"""Replicas, of all lives, that began anew for the tombstones that their old log would lack."""


@dataclass
class Life:
    """One stream, and what its keys should be.

    Attributes:
        number: Of the life, where all chance comes from.
        newest: Value of the newest acknowledged record by key, empty for a tombstone; a key whose
            last write has no known outcome is left out.
        kinds: What was done how often.
    """

    number: int
    newest: dict[bytes, bytes] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    value_count: int = 0
    random: Random = field(init=False)
    world: ClusterWorld = field(init=False)

    def __post_init__(self) -> None:
        """Begin with three replicas of five brokers."""
        self.random = Random(f"deleted keys {self.number}")
        self.world = ClusterWorld(size=BROKERS, seed=self.number)
        self.world.create(
            compact_enabled=True,
            min_isr=2,
            tombstone_retention_ms=1,
            segment_bytes_max=150,
            cleaner_interval_ms=300,
        )

    def step(self) -> None:
        """Do something, and look at who leads."""
        does = self.random.choice(
            (
                *(self.write, self.write, self.write, self.wait, self.wait, self.fall, self.rise),
                *(self.move, self.move_back, self.prefer, self.absence, self.absence),
            )
        )
        self.kinds[does.__name__] += 1
        does()
        self.check()

    # -- what happens -------------------------------------------------------------------------

    def write(self) -> None:
        """Some records of new keys, and tombstones of keys that have a value."""
        for _ in range(self.random.randrange(1, 6)):
            if self.world.leader() is None:
                return
            self.value_count += 1
            key, value = b"key %d" % self.value_count, b"value %d" % self.value_count
            known = [one for one, value in self.newest.items() if value]
            if known and self.random.random() < len(known) / KEYS_MAX:
                key, value = self.random.choice(known), self.random.choice((value, b"", b"", b""))
            answers = self.world.publish(value, keys=[key], policy=POLICY_ALL)
            self.newest.pop(key, None)
            self.world.run(30)
            if answers.is_answered and not answers.errors:
                self.newest[key] = value

    def wait(self) -> None:
        """Logs are compacted."""
        self.world.run(self.random.choice((100, 700, 2_000)))

    def fall(self) -> None:
        """A broker ends, perhaps with what it had not synced."""
        if len(self.world.alive) > BROKERS - DOWN_MAX:
            self.random.choice(self.world.alive).kill(power_cut=self.random.random() < 0.2)
        self.world.run(self.random.choice((20, 1_500)))

    def rise(self) -> None:
        """A broker comes back."""
        down = [member for member in self.world.members.values() if not member.is_alive]
        if down:
            self.random.choice(down).restart()
        self.world.run(self.random.choice((20, 1_500)))

    def move(self) -> None:
        """Other replicas are wanted, those that run above all; or what is under way is given up."""
        state = self.world.state()
        if state.is_reassigning and self.random.random() < 0.5:
            self.ask(CancelReassignment(partition_id=state.partition_id))
            return
        names = list(self.world.members)
        self.random.shuffle(names)
        names.sort(key=lambda one: not self.world.members[one].is_alive)
        target = tuple(names[:3])
        self.ask(StartReassignment(partition_id=state.partition_id, target=target))
        self.world.run(self.random.choice((20, 700)))

    def move_back(self) -> None:
        """Who is down, or holds no replica, is wanted again."""
        state = self.world.state()
        others = [one for one in self.world.members if one not in state.replicas]
        if others:
            target = (*state.replicas[:2], self.random.choice(others))
            self.ask(StartReassignment(partition_id=state.partition_id, target=target))

    def absence(self) -> None:
        """A replica falls, is taken away while keys are deleted, and is given back."""
        state = self.world.state()
        followers = [one for one in state.replicas if one != state.leader]
        alive = [one.broker for one in self.world.alive]
        spare = [one for one in alive if one not in state.replicas]
        if len(alive) < BROKERS or state.is_reassigning or not spare:
            return
        away = self.random.choice(followers)
        self.world.members[away].kill()
        kept = tuple(one for one in state.replicas if one != away)
        target = (*kept, self.random.choice(spare))
        self.world.run(1_500)
        self.ask(StartReassignment(partition_id=state.partition_id, target=target))
        for _ in range(self.random.randrange(2, 7)):
            self.random.choice((self.write, self.write, self.wait, self.prefer))()
        self.world.run(self.random.choice((500, 2_500)))
        if self.random.random() < 0.3:
            self.ask(ElectPreferred(partitions=(state.partition_id,)))
        present = self.world.state().replicas
        target = (away, *self.random.sample(present, 2))
        self.ask(StartReassignment(partition_id=state.partition_id, target=target))
        self.world.members[away].restart()
        self.world.run(self.random.choice((100, 2_000)))

    def prefer(self) -> None:
        """The first replica is to lead."""
        self.ask(ElectPreferred(partitions=(self.world.state().partition_id,)))
        self.world.run(100)

    def ask(self, command: StartReassignment | CancelReassignment | ElectPreferred) -> None:
        """Propose something; that it is refused is as good."""
        self.world.alive[0].node.propose(command, self.world.now, lambda _outcome: None)
        self.world.run(200)

    # -- what must be -------------------------------------------------------------------------

    def check(self) -> None:
        """Whoever leads holds what is newest of each key, and nothing of what was deleted."""
        leader = self.world.leader()
        if leader is None:
            return
        found = newest_of(leader)
        for key, value in self.newest.items():
            assert found.get(key, b"") == value, f"life {self.number}: {leader.broker}: {key!r}"

    def end(self) -> None:
        """All come back; then each replica is looked at as the leader is."""
        for member in self.world.members.values():
            if not member.is_alive:
                member.restart()
        self.world.until(lambda: self.world.is_whole and self.is_in_sync(), milliseconds=60_000)
        self.check()
        leader = self.world.leader()
        assert leader is not None
        expected = {key: value for key, value in newest_of(leader).items() if value}
        for name in self.world.state().replicas:
            found = newest_of(self.world.members[name])
            assert {key: value for key, value in found.items() if value} == expected, name

    def is_in_sync(self) -> bool:
        """Whether somebody leads, and all replicas have everything."""
        state = self.world.state()
        leader = self.world.leader()
        if leader is None or set(state.isr) != set(state.replicas):
            return False
        logs = [self.world.members[name].node.find_replica("s", 0).log for name in state.replicas]
        return len({(log.log_end_offset, log.high_watermark) for log in logs}) == 1


def newest_of(member: Member) -> dict[bytes, bytes]:
    """Value of the newest record of each key that a replica holds."""
    log = member.node.find_replica("s", 0).log
    reader = log.reader(log.log_start_offset)
    found: dict[bytes, bytes] = {}
    while slices := reader.read(1 << 20, log.log_end_offset).slices:
        for frame in frames_of([bytes(one) for one in slices]):
            found[bytes(frame.key)] = bytes(frame.value)
    reader.close()
    return found


def anew_count(life: Life) -> int:
    """Replicas that dropped a whole log."""
    return sum(
        kind == "log_truncated" and fields["log_end_offset"] == 0
        for member in life.world.members.values()
        for kind, fields in member.told
    )


def test_a_deleted_key_shows_no_older_value_whoever_leads() -> None:
    lives = [Life(number) for number in range(LIVES)]
    for life in lives:
        for _ in range(STEPS):
            life.step()
        life.end()
    assert sum(anew_count(life) for life in lives) >= ANEW_MIN
