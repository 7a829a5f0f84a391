"""What an only replica tells as the end never lies below what was acknowledged, however it came.

Each case brings a broker by one way to where it alone holds a partition, with a last record that it
may not have on disk: its syncs are held. Then it is asked everything that anybody can ask about the
end, and what it tells while they are held, and later, is not less than what was acknowledged.
"""

import itertools

import pytest

from liftbridge_broker.controller.commands import (
    AlterStream,
    PauseStream,
    ResumeStream,
    StartReassignment,
)
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.groups.cursors import Cursor
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_proto import api_pb2
from liftbridge_testkit.client_calls import API, ClientCalls, end_requests, told_end
from liftbridge_testkit.cluster_world import ClusterWorld

S = StreamName("s")
RECORDS = 6
KEY = Cursor("t", 0, "c", 0).key
"""Every record sets this cursor to its own offset."""


def publish(world, *offsets):
    values = [encode_cursor(Cursor("t", 0, "c", offset)) for offset in offsets]
    return world.publish(*values, keys=[KEY] * len(values))


class Way:
    """A stream of some replicas; its last record is published while nothing of `alone` is synced.

    Attributes:
        alone: Who will hold it alone.
        answers: What becomes of the last record.
    """

    def __init__(self, before, after, *, factor, is_follower=False):
        self.world = world = ClusterWorld()
        self.after = after
        world.create(factor=factor, fsync_policy=before, min_isr=1)
        self.leader = world.leader()
        others = [world.members[one] for one in world.state().replicas]
        self.alone = next(one for one in others if (one is self.leader) is not is_follower)
        first = publish(world, *range(RECORDS - 1))
        world.until(lambda: first.is_answered)
        world.run(1_500)
        for member in others:
            member.files.is_holding = True
        self.answers = publish(world, RECORDS - 1)
        world.until(lambda: self.alone.node.find_replica("s", 0).log.log_end_offset == RECORDS)
        for _ in range(100):
            if not self.answers.is_answered:
                world.run(5)

    @property
    def acked(self):
        return RECORDS if self.answers.is_answered and self.answers.stored else RECORDS - 1

    def propose(self, command):
        outcome = self.world.propose(command)
        assert not isinstance(outcome, LiftbridgeError), outcome

    def tune(self):
        self.propose(AlterStream(name=S, overrides=StreamOverrides(fsync_policy=self.after)))

    def deafen(self):
        one, other = self.leader.broker, self.alone.broker
        self.world.deaf |= {(one, other, Channel.DATA), (other, one, Channel.DATA)}

    @property
    def is_alone(self):
        is_led = self.world.is_whole and self.world.leader() is self.alone
        return is_led and self.world.state().replicas == (self.alone.broker,)

    def until_alone(self):
        for member in self.world.alive:
            if member is not self.alone:
                member.files.release()
        self.world.run(1_000)
        if not self.is_alone:
            # It may have lost something, and begins when its journal says what is left.
            self.alone.files.release()
            self.world.until(lambda: self.is_alone)


def reassigned_to_the_follower(before, after):
    way = Way(before, after, factor=2, is_follower=True)
    way.deafen()
    way.tune()
    target = (way.alone.broker,)
    way.propose(StartReassignment(partition_id=way.world.state().partition_id, target=target))
    return way


def reassigned_to_the_leader(before, after):
    way = Way(before, after, factor=2)
    way.tune()
    target = (way.alone.broker,)
    way.propose(StartReassignment(partition_id=way.world.state().partition_id, target=target))
    return way


def smaller_factor(before, after):
    way = Way(before, after, factor=2)
    way.tune()
    way.propose(AlterStream(name=S, overrides=StreamOverrides(), replication_factor=1))
    return way


def other_policy(before, after):
    way = Way(before, after, factor=1)
    way.tune()
    return way


def killed(before, after):
    way = Way(before, after, factor=1)
    way.tune()
    way.alone.kill()
    way.alone.restart()
    return way


def killed_at_the_ack(before, after):
    way = Way(before, after, factor=1)
    way.tune()
    way.alone.files.release()
    way.world.until(lambda: way.answers.is_answered)  # the journal does not tell of the sync yet
    way.alone.kill()
    way.alone.files.is_holding = True
    way.alone.restart()
    return way


def other_policy_while_down(before, after):
    way = Way(before, after, factor=1)
    way.alone.kill()
    way.world.run(3_000)  # until the others have a metadata leader
    way.tune()
    way.alone.restart()
    return way


def stopped(before, after):
    way = Way(before, after, factor=1)
    way.tune()
    way.alone.stop()
    way.alone.restart()
    return way


def paused(before, after):
    way = Way(before, after, factor=1)
    way.propose(PauseStream(name=S))
    way.tune()
    way.propose(ResumeStream(name=S))
    return way


WAYS = (
    reassigned_to_the_follower,
    reassigned_to_the_leader,
    smaller_factor,
    other_policy,
    killed,
    killed_at_the_ack,
    other_policy_while_down,
    stopped,
    paused,
)
REFUSALS = {GrpcStatus.UNAVAILABLE, GrpcStatus.FAILED_PRECONDITION}
REQUESTS = [*end_requests(as_replica=False), *end_requests(as_replica=True)]


def listed_end(way):
    """What `FetchMetadata` tells, 0 for nothing."""
    calls = ClientCalls(way.alone)
    (told,) = calls.call(API + "FetchMetadata", api_pb2.FetchMetadataRequest()).messages
    return told.streamMetadata[0].partitions[0].highWatermark + 1


@pytest.mark.parametrize(
    ("way", "before", "after"), [*itertools.product(WAYS, FsyncPolicy, FsyncPolicy)]
)
def test_an_only_replica_tells_no_less_than_was_acknowledged(way, before, after):
    way = way(before, after)
    way.until_alone()
    world, alone = way.world, way.alone
    partition = alone.node.find_partition("s", 0)
    calls = ClientCalls(alone)
    acked = way.acked
    outcomes = [calls.begin(method, request) for method, request in REQUESTS]
    cursors = []
    alone.node.cursors.look_up(partition, KEY, cursors.append)
    assert listed_end(way) in {0, *range(acked, RECORDS + 1)}
    world.run(100)
    ended = [outcome.code for outcome in outcomes]
    is_known = partition.log.high_watermark >= acked
    alone.files.release()
    world.until(lambda: all(outcome.code is not None for outcome in outcomes))
    assert not {outcome.code for outcome in outcomes} & REFUSALS
    pairs = zip(REQUESTS, outcomes, strict=True)
    assert min(told_end(request, outcome) for (_, request), outcome in pairs) >= acked
    assert cursors[0].offset >= acked - 1
    assert listed_end(way) >= acked
    assert is_known or set(ended) == {None}
