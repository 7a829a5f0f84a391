"""Random lives of members of a group: heartbeats late, lost and repeated, deaths and new members.

The group is a model that follows docs/spec/groups.md and nothing of the code under test. Members
are the client's core, driven as its tasks drive it.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.core.deliveries import Deliveries
from liftbridge_client.core.membership import Claim, Membership
from liftbridge_client.model import Message
from liftbridge_proto.ext.v1 import groups_pb2

SESSION = 10.0
PARTITIONS = [PartitionName(stream, number) for stream in "ab" for number in range(3)]
BUFFER = 12
MEMBERS_MAX = 4


class UnknownMemberError(Exception):
    """The group does not know the member."""


@dataclass
class Group:
    """The coordinator and the metadata, as one."""

    random: Random
    epoch: int = 0
    members: dict[str, int] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    target: dict[PartitionName, str] = field(default_factory=dict)
    holder: dict[PartitionName, str] = field(default_factory=dict)
    stored: Counter[PartitionName] = field(default_factory=Counter)

    def change(self):
        """Draw new targets, and grant what nobody holds."""
        self.epoch += 1
        names = sorted(self.members)
        self.target = {one: self.random.choice(names) for one in PARTITIONS} if names else {}
        self.grant()

    def grant(self):
        for one, name in self.target.items():
            self.holder.setdefault(one, name)

    def remove(self, name):
        del self.members[name]
        self.holder = {one: other for one, other in self.holder.items() if other != name}
        self.change()

    def on_request(self, request, now):
        name = request.member_id
        if not request.member_epoch:
            self.members[name] = self.epoch + 1
            self.change()
        elif self.members.get(name) != request.member_epoch:
            raise UnknownMemberError
        self.heard[name] = now
        held = {PartitionName(one.stream, n) for one in request.held for n in one.partitions}
        mine = [one for one in PARTITIONS if self.holder.get(one) == name]
        if request.member_epoch and request.group_epoch == self.epoch:
            for one in mine:
                if self.target.get(one) != name and one not in held:
                    del self.holder[one]
            self.grant()
        answer = groups_pb2.HeartbeatResponse(
            member_epoch=self.members[name],
            group_epoch=self.epoch,
            coordinator="b1",
            session_timeout_ms=int(SESSION * 1_000),
            heartbeat_interval_ms=2_000,
        )
        for one in PARTITIONS:
            if self.holder.get(one) == self.target.get(one) == name:
                answer.assigned.add(stream=one.stream, partitions=[one.partition])
        return answer

    def commit(self, name, member_epoch, positions):
        if self.members.get(name) != member_epoch:
            return False
        if any(self.holder.get(one) != name for one in positions):
            return False
        self.stored.update(
            {one: offset + 1 - self.stored[one] for one, offset in positions.items()}
        )
        return True


class Process:
    """A process with a member: what the tasks of a consumer do, one step at a time."""

    def __init__(self, name, life):
        self.life = life
        self.membership = Membership("g", name, ["a", "b"], instance_id="", zone="")
        self.deliveries = Deliveries(BUFFER, 2**30)
        self.reading: dict[Claim, int] = {}
        self.ending: list[Claim] = []
        self.sent = None  # the heartbeat under way, with its time
        self.answer = None

    @property
    def name(self):
        return self.membership.name

    # -- heartbeats

    def send(self):
        if self.sent is None:
            self.sent = self.membership.request(), self.life.now

    def arrive(self):
        """Let the heartbeat arrive; its answer may be lost or late."""
        if self.sent is None or self.answer is not None:
            return
        request, sent_at = self.sent
        try:
            self.answer = self.life.group.on_request(request, self.life.now), sent_at
        except UnknownMemberError:
            self.sent = None
            self.lose(self.membership.on_unknown())
            self.life.seen["unknown"] += 1

    def act(self):
        if self.answer is None:
            return
        answer, sent_at = self.answer
        self.sent = self.answer = None
        change = self.membership.on_answer(answer, sent_at)
        for claim in change.revoked:
            self.deliveries.drop(claim)
            self.reading.pop(claim, None)
        self.ending += change.revoked
        self.reading.update(dict.fromkeys(change.given, -1))
        self.life.seen["given"] += len(change.given)
        self.life.seen["revoked"] += len(change.revoked)

    def give_up(self):
        """Forget a heartbeat that is not answered; the request may still arrive."""
        if self.sent is not None:
            self.life.late.append(self.sent[0])
            self.sent = self.answer = None

    # -- reading

    def read(self):
        if not self.reading or not self.deliveries.has_room:
            return
        claim = self.life.random.choice(list(self.reading))
        if self.reading[claim] < 0:
            stored = self.life.group.stored[claim.partition]
            self.deliveries.begin(claim, stored, stored - 1 if stored else None)
            self.reading[claim] = stored
        offset = self.reading[claim]
        self.reading[claim] += 1
        one = claim.partition
        message = Message(offset, b"", b"v", 0, one.stream, one.partition, "", "", {})
        self.deliveries.put(claim, message)

    def finish(self):
        claim = self.deliveries.in_hand
        if claim is not None:
            self.life.finished[claim.partition] |= set(self.hand)
            self.deliveries.finish()

    def take(self):
        """Ask for the next batch."""
        self.finish()
        self.check_session()
        taken = self.deliveries.take(3)
        if taken is None:
            return
        claim, messages = taken
        self.hand = [message.offset for message in messages]
        self.life.on_delivered(self, claim)

    def check_session(self):
        if self.life.now >= self.membership.valid_until and self.membership.claims:
            self.lose(self.membership.fence())
            self.life.seen["fenced"] += 1

    def lose(self, claims):
        self.deliveries.lose(claims)
        for claim in claims:
            self.reading.pop(claim, None)
        self.ending = [claim for claim in self.ending if not claim.is_over]

    # -- positions

    def commit(self):
        positions = self.deliveries.to_commit()
        offsets = {claim.partition: offset for claim, offset in positions.items()}
        fate = self.life.random.random()
        if fate < 0.2 or not offsets:
            return  # the request is lost
        done = self.life.group.commit(self.name, self.membership.member_epoch, offsets)
        if done and fate > 0.4:  # otherwise only the answer is lost
            self.deliveries.on_committed(positions)
            self.life.seen["committed"] += 1

    def let_go(self):
        """Let go of a claim that ends, unless the application still has a batch of it."""
        for claim in self.ending[:1]:
            if self.deliveries.in_hand is not claim:
                self.ending.remove(claim)
                self.membership.let_go([claim])
                self.deliveries.lose([claim])


class Life:
    """A group and its processes; checks what must hold after each step."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.now = 0.0
        self.group = Group(self.random)
        self.processes = [Process("m0", self)]
        self.made = 1
        self.late = []
        self.finished = {one: set() for one in PARTITIONS}
        self.seen = Counter()

    def on_delivered(self, process, claim):
        assert not claim.is_ending
        assert not claim.is_over
        assert self.group.holder.get(claim.partition) == process.name
        assert self.group.members[process.name] == process.membership.member_epoch
        self.seen["delivered"] += 1

    def step(self):
        kinds = {
            **dict.fromkeys(("send", "arrive", "act"), 12),
            **dict.fromkeys(("let_go", "commit", "pass_time"), 5),
            **dict.fromkeys(("give_up", "arrive_late"), 1),
            "read": 20,
            "take": 10,
            "expire": 3,
            "join": 0.6,
            "die": 0.3,
        }
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        if hasattr(self, kind):
            getattr(self, kind)()
        elif self.processes:
            getattr(self.random.choice(self.processes), kind)()
        self.check()

    def pass_time(self):
        self.now += self.random.choice([0.1, 0.5, 1.0, 4.0, SESSION])

    def expire(self):
        """Remove who was silent for a session, as a coordinator does sooner or later."""
        for name in sorted(self.group.members):
            if self.now - self.group.heard[name] >= SESSION:
                self.group.remove(name)
                self.seen["expired"] += 1

    def arrive_late(self):
        """Let a request arrive that its sender no longer waits for."""
        if self.late:
            request = self.late.pop(self.random.randrange(len(self.late)))
            if request.member_epoch:  # a late join is that of another process
                with suppress(UnknownMemberError):
                    self.group.on_request(request, self.now)

    def join(self):
        if len(self.processes) < MEMBERS_MAX:
            self.processes.append(Process(f"m{self.made}", self))
            self.made += 1

    def die(self):
        if self.processes:
            self.processes.pop(self.random.randrange(len(self.processes)))

    def check(self):
        for process in self.processes:
            held = {claim.partition for claim in process.membership.claims}
            reported = {
                PartitionName(one.stream, number)
                for one in process.membership.request().held
                for number in one.partitions
            }
            if process.membership.member_epoch:
                assert reported == held
            for claim in process.reading:
                assert claim.partition in held
            for claim, offset in process.deliveries.to_commit().items():
                if claim.has_finished:
                    assert offset in self.finished[claim.partition]
        for one, end in self.group.stored.items():
            assert set(range(end)) <= self.finished[one]


STEPS = 250
LIVES = 40


@pytest.mark.parametrize("seed", range(2))
def test_what_a_group_promises_holds_in_random_lives(seed):
    seen = Counter()
    for number in range(LIVES):
        life = Life(seed * LIVES + number)
        for _ in range(STEPS):
            life.step()
        seen += life.seen
    kinds = ("given", "revoked", "unknown", "fenced", "expired", "delivered", "committed")
    assert min(seen[kind] for kind in kinds) > 10, seen
