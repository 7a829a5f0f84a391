"""Reads that name the history of a partition: nobody serves them what another one holds."""

from typing import NamedTuple

import pytest

from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.ports.transport import Channel
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import DATA, ClientCalls, Outcome
from liftbridge_testkit.cluster_world import ClusterWorld, Member

BOTH, ALONE = 4, 5


class Forked(NamedTuple):
    """A partition whose last leader was cut off with records that nobody else has."""

    world: ClusterWorld
    former: Member
    successor: Member
    following: Outcome

    @property
    def epoch(self) -> int:
        return int(self.world.state().unclean_epoch)


@pytest.fixture
def forked() -> Forked:
    world = ClusterWorld(3)
    world.create("s", factor=2, min_isr=1, unclean_mode=UncleanMode.MANUAL)
    former = world.leader()
    assert former is not None
    successor = next(world.members[one] for one in world.state().replicas if one != former.broker)
    for number in range(BOTH):
        world.commit(b"v%d" % number)
    world.run(100)
    successor.kill()
    world.until(lambda: world.state().isr == (former.broker,))
    for number in range(ALONE):
        world.commit(b"w%d" % number)
    for pair in ((former.broker, successor.broker), (successor.broker, former.broker)):
        world.deaf.add((*pair, Channel.DATA))
    successor.restart()
    world.until(lambda: successor.is_registered)
    following = ClientCalls(successor).begin(DATA + "FetchBatches", fetch(named=0, follow=True))
    assert following.code is None
    world.cut(former)
    world.until(lambda: world.state().leader is None)
    admin_of(world, int(successor.broker[1:])).call(
        "ElectUnclean",
        partition=admin_pb2.PartitionRef(stream="s", partition=0),
        broker=successor.broker,
        partition_epoch=world.state().partition_epoch,
    )
    world.until(lambda: world.leader() is successor)
    return Forked(world, former, successor, following)


def fetch(*, named: int | None, follow: bool = False) -> data_pb2.FetchBatchesRequest:
    """Records that both brokers hold and know to be committed."""
    return data_pb2.FetchBatchesRequest(
        stream="s",
        end_offset=0 if follow else BOTH - 1,
        read_replica=True,
        follow=follow,
        unclean_epoch=named,
    )


def status(member: Member, named: int | None) -> int | None:
    return ClientCalls(member).call(DATA + "FetchBatches", fetch(named=named)).code


def test_history_is_told_and_read_by_its_name(forked: Forked) -> None:
    request = data_pb2.PartitionBoundsRequest(stream="s", partitions=[0])
    (told,) = ClientCalls(forked.successor).call(DATA + "PartitionBounds", request).messages
    assert isinstance(told, data_pb2.PartitionBoundsResponse)
    assert told.partitions[0].unclean_epoch == forked.epoch > 0
    assert status(forked.successor, forked.epoch) == GrpcStatus.OK
    assert status(forked.successor, None) == GrpcStatus.OK
    assert status(forked.successor, 0) == GrpcStatus.FAILED_PRECONDITION


def test_replica_that_has_not_heard_of_a_history_does_not_serve_it(forked: Forked) -> None:
    assert status(forked.former, 0) == GrpcStatus.OK
    assert status(forked.former, forked.epoch) == GrpcStatus.UNAVAILABLE


def test_replica_that_was_not_cut_yet_does_not_serve_a_history(forked: Forked) -> None:
    world, former = forked.world, forked.former
    world.broken.clear()
    world.until(
        lambda: (
            former.node.state.unclean_epoch(former.node.find_replica("s", 0).partition_id)
            == forked.epoch
        )
    )
    assert former.node.find_replica("s", 0).log.log_end_offset == BOTH + ALONE
    assert status(former, forked.epoch) == GrpcStatus.UNAVAILABLE
    assert status(former, 0) == GrpcStatus.FAILED_PRECONDITION
    world.deaf.clear()
    world.until(lambda: len(world.state().isr) == 2)
    assert status(former, forked.epoch) == GrpcStatus.OK


def test_open_read_of_a_history_ends_with_it(forked: Forked) -> None:
    forked.world.commit(b"x")
    forked.world.run(100)
    assert forked.following.code == GrpcStatus.FAILED_PRECONDITION
    counts = [getattr(one, "count", 0) for one in forked.following.messages]
    assert sum(counts) <= BOTH
