"""A broker whose session went to a former start of its own knows that it has to begin anew."""

from dataclasses import replace

from liftbridge_broker.controller.commands import RegisterBroker
from liftbridge_testkit.cluster_world import ClusterWorld, Member


def registration(member: Member) -> RegisterBroker:
    """What the member registered with."""
    own = member.node.state.brokers[member.broker]
    return RegisterBroker(
        broker=own.broker,
        incarnation_id=own.incarnation_id,
        data_dir_id=own.data_dir_id,
        host=own.host,
        port=own.port,
        feature_level=own.feature_level,
    )


def displaced(world: ClusterWorld) -> list[Member]:
    """Members that have to begin anew."""
    return [one for one in world.alive if one.node.cluster and one.node.cluster.is_displaced]


def test_registration_of_a_former_start_displaces_the_present_one() -> None:
    world = ClusterWorld()
    chief = next(member for member in world.alive if member.consensus.is_leader)
    member = next(one for one in world.alive if one is not chief)
    world.propose(replace(registration(member), incarnation_id="former"), at=chief)
    world.until(lambda: bool(displaced(world)))
    assert displaced(world) == [member]


def test_own_registration_once_more_displaces_nobody() -> None:
    world = ClusterWorld()
    chief = next(member for member in world.alive if member.consensus.is_leader)
    for member in world.alive:
        world.propose(registration(member), at=chief)
    assert displaced(world) == []
