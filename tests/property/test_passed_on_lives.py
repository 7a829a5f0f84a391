"""Random lives of publishers whose messages one broker passes on while leaders come and go.

Nothing is stored twice, what was acknowledged is there, what was refused as not stored is not, and
everybody is answered long before the time for an ack is over.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from liftbridge_broker.controller.commands import ElectPreferred, InitPublisher
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import OutcomeUnknownError
from liftbridge_broker.model.ids import Instant, StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.publishers import (
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_SEQUENCE,
    PublisherStamp,
)
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import Answers

LIVES = 4
ROUNDS = 6
WINDOW = 4
ANSWERED_NS = 6_000 * MILLISECOND_NS
"""Longest time until a message has an outcome: two changes of the leader."""

FAILED_OVER_MIN = 12
"""Messages, of all lives, that were acknowledged by another leader than the one they went to."""


@dataclass(eq=False)
class Sent:
    """One attempt to publish."""

    value: bytes
    at: Instant
    leader_epoch: int
    answers: Answers


@dataclass
class Sender:
    """A publisher; one with a stamp repeats what was not acknowledged, as the client does."""

    name: str
    stamp: PublisherState | None = None
    next_number: int = 0
    waiting: dict[int, Sent] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)

    def fields(self, number: int) -> dict[str, Any]:
        """The stamp of a message, as the API makes it."""
        if self.stamp is None:
            return {}
        epoch = self.stamp.publisher_epoch
        numbers = (self.stamp.publisher_id, epoch, number)
        names = (HEADER_ID, HEADER_EPOCH, HEADER_SEQUENCE)
        headers = {name: b"%d" % one for name, one in zip(names, numbers, strict=True)}
        return {
            "publisher": PublisherStamp(self.stamp.publisher_id, epoch, number),
            "headers": [headers],
        }


class Life:
    """One life of a cluster, and what two publishers at one broker saw of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = ClusterWorld(seed=seed)
        self.home = self.world[1]
        self.ended: list[Sent] = []
        self.world.create(min_isr=2)
        stamp = self.world.propose(InitPublisher(stream=StreamName("s"), publisher="p"))
        assert isinstance(stamp, PublisherState)
        self.senders = [Sender("plain"), Sender("stamped", stamp)]

    def run(self) -> None:
        """Publish in good times and bad ones, then bring everything to rest."""
        for _ in range(ROUNDS):
            self._publish(steps=10)
            self._hurt()
            self._publish(steps=30)
            self._heal()
        for sender in self.senders:
            while sender.waiting or sender.again:
                self._step(sender, is_last=True)

    def _publish(self, steps: int) -> None:
        for _ in range(steps):
            for sender in self.senders:
                self._step(sender)
            self.world.run(self.random.choice((0, 0, 5, 100, 200)))

    def _hurt(self) -> None:
        """Take the leader away from the others, or give its place to another."""
        world, leader = self.world, self.world.leader()
        kind = self.random.choice(("kill", "cut", "power", "prefer"))
        if kind == "prefer" or leader is None or leader is self.home:
            world.propose(ElectPreferred(partitions=(world.state().partition_id,)), at=self.home)
            return
        leader.messaging.is_connected = False  # its last acks are lost
        self._publish(steps=3)
        if kind == "cut":
            world.cut(leader)
        else:
            leader.kill(power_cut=kind == "power")

    def _heal(self) -> None:
        world = self.world
        world.heal()
        for member in world.members.values():
            member.messaging.is_connected = True
            if not member.is_alive:
                member.restart()
        world.until(lambda: world.is_whole and len(world.state().isr) == 3)

    def _step(self, sender: Sender, *, is_last: bool = False) -> None:
        """Take what was answered, and send what comes next."""
        for number, sent in list(sender.waiting.items()):
            assert self.world.now - sent.at <= ANSWERED_NS, f"{sent.value!r} has no outcome"
            if sent.answers.is_answered:
                del sender.waiting[number]
                self.ended.append(sent)
                if sent.answers.errors and sender.stamp is not None:
                    sender.again.append(number)
        if is_last:
            self.world.run(5)
        if sender.again:
            if not sender.waiting:
                for number in sorted(sender.again):
                    self._send(sender, number)
                sender.again.clear()
        elif len(sender.waiting) < WINDOW and not is_last:
            self._send(sender, sender.next_number)
            sender.next_number += 1

    def _send(self, sender: Sender, number: int) -> None:
        value = f"<{sender.name}:{number}>".encode()
        stream = self.home.node.state.stream("s")
        assert stream is not None
        leader_epoch = stream.partitions[0].leader_epoch
        answers = self.world.publish(value, at=self.home, **sender.fields(number))
        sender.waiting[number] = Sent(value, self.world.now, leader_epoch, answers)


def test_messages_that_are_passed_on_survive_their_leaders() -> None:
    failed_over = 0
    for seed in range(LIVES):
        life = Life(seed)
        life.run()
        log = life.home.log_bytes(life.world.state().partition_id)
        for sender in life.senders:
            numbers = range(sender.next_number)
            counts = {n: log.count(f"<{sender.name}:{n}>".encode()) for n in numbers}
            assert max(counts.values()) == 1, "a message is stored twice"
            if sender.stamp is not None:
                assert min(counts.values()) == 1, "a repeated message is not stored"
                places = [log.index(f"<stamped:{n}>".encode()) for n in numbers]
                assert all(before < after for before, after in pairwise(places))
        for sent in life.ended:
            if sent.answers.stored:
                assert log.count(sent.value) == 1, "an acknowledged message is lost"
                failed_over += sent.answers.stored[0].leader_epoch != sent.leader_epoch
            elif b"plain" in sent.value and not isinstance(sent.answers.error, OutcomeUnknownError):
                assert log.count(sent.value) == 0, "a message that was refused is stored"
    assert failed_over >= FAILED_OVER_MIN
