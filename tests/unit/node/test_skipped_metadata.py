"""What a leader may still believe of its followers after a snapshot hid a part of the metadata."""

from liftbridge_broker.controller.commands import Leadership, Resign, SetReadonly
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.cluster_world import ClusterWorld, Member


def hand_over(world: ClusterWorld, successor: BrokerId) -> None:
    """Have the leader resign in favour of another one."""
    state = world.state()
    assert state.leader is not None
    leader = world.members[state.leader]
    world.propose(
        Resign(
            broker=leader.broker,
            broker_epoch=leader.node.state.brokers[leader.broker].broker_epoch,
            partitions=(Leadership(state.partition_id, state.leader_epoch),),
            successor=successor,
        ),
        at=next(member for member in world.alive if member.consensus.is_leader),
    )


def core_of(member: Member, partition: PartitionId) -> LeaderCore:
    """What a leader knows of its followers."""
    assert member.node.cluster is not None
    return member.node.cluster.replicas.leading[partition].core


def end_of(core: LeaderCore, follower: Member) -> int | None:
    """End of a follower's log as its leader knows it."""
    known = core.known(follower.broker)
    assert known is not None
    return known.log_end_offset


def test_positions_of_before_a_snapshot_do_not_count_in_a_later_epoch() -> None:
    """S73: a member may have truncated under a leader that the snapshot hides."""
    world = ClusterWorld(snapshot_entries=200)
    partition = world.create()
    world.create("other")
    world.commit(b"a")
    chief = next(member for member in world.alive if member.consensus.is_leader)
    away, third = (member for member in world.alive if member is not chief)
    if world.leader() is not away:
        hand_over(world, away.broker)
    world.until(lambda: world.leader() is away)
    world.commit(b"b")
    core = core_of(away, partition)
    assert [end_of(core, one) for one in (chief, third)] == [2, 2]

    # It is heard and hears nothing, while another one leads for a while.
    for member in (chief, third):
        world.deaf |= {(member.broker, away.broker, channel) for channel in Channel}
    hand_over(world, third.broker)
    hand_over(world, away.broker)
    for number in range(2_000):
        command = SetReadonly(name=StreamName("other"), partitions=(0,), readonly=number % 2 == 0)
        chief.node.propose(command, world.now, lambda _outcome: None)
        if number % 250 == 0:
            world.settle()
    world.settle()
    assert world.state().leader == away.broker
    assert away.node.state.applied_index < chief.consensus.snapshot_index
    world.deaf = {one for one in world.deaf if one[2] is Channel.DATA}
    world.until(lambda: away.node.state.applied_index >= chief.consensus.snapshot_index)

    later = core_of(away, partition)
    assert later is not core
    assert [end_of(later, one) for one in (chief, third)] == [None, None]
