"""Changes that operators ask for, over nodes in memory: done, or refused with a reason."""

from dataclasses import replace

import pytest

from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_proto.ext.v1 import admin_pb2
from liftbridge_testkit.admin_calls import admin_of, follower_of_metadata, leader_of_metadata
from liftbridge_testkit.cluster_world import ClusterWorld

LEADER_ONLY = ["TransferMetadataLeadership", "AddLearner", "PromoteLearner", "RemoveMember"]
MEMBER = admin_pb2.Member(broker="b9", data_dir_id="disk-9")


@pytest.fixture
def world():
    """Three brokers, and a stream on all of them."""
    world = ClusterWorld(3)
    world.create("s", partitions=2)
    world.until(lambda: all(len(world.state("s", n).isr) == 3 for n in (0, 1)))
    return world


@pytest.fixture
def lone():
    """One broker."""
    world = ClusterWorld(1)
    world.create("s", factor=1)
    return world


# -- brokers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
def test_cordon_drain_and_back_work_at_every_broker(world, number):
    calls = admin_of(world, number)
    assert calls.call("CordonBroker", broker="b3").replicas == 2
    own = world[number].node.state.brokers
    assert (own["b3"].cordoned, own["b3"].draining) == (True, False)
    calls.call("CordonBroker", broker="b3", is_draining=True)
    assert own["b3"].draining
    calls.call("UncordonBroker", broker="b3")
    assert (own["b3"].cordoned, own["b3"].draining) == (False, False)


@pytest.mark.parametrize("method", ["CordonBroker", "UncordonBroker", "RemoveBroker"])
def test_unknown_broker_is_refused(lone, method):
    calls = admin_of(lone, 1)
    assert calls.refusal(method, broker="no") == (
        GrpcStatus.NOT_FOUND,
        "no such broker: no",
    )
    assert calls.refusal(method)[0] is GrpcStatus.INVALID_ARGUMENT


def member_has_no_vote(calls):
    return calls.context.me not in calls.context.consensus.voters


def test_broker_with_replicas_is_not_retired(world):
    assert admin_of(world, 3).refusal("Retire", data_dir_id="disk-3") == (
        GrpcStatus.FAILED_PRECONDITION,
        "broker b3 still has 2 replicas",
    )


def test_drained_and_stopped_broker_is_removed_for_good():
    world = ClusterWorld(4)
    world.create("s", factor=3)
    victim = next(
        n for n in range(1, 5) if f"b{n}" in world.state("s").replicas
        and not world[n].consensus.is_leader
    )  # fmt: skip
    calls = admin_of(world, leader_of_metadata(world))
    calls.call("CordonBroker", broker=f"b{victim}", is_draining=True)
    status, text = calls.refusal("RemoveBroker", broker=f"b{victim}")
    assert (status, text) == (
        GrpcStatus.FAILED_PRECONDITION,
        f"broker b{victim} is alive, stop it first",
    )
    world.until(lambda: f"b{victim}" not in world.state("s").replicas)
    member = admin_pb2.Member(broker=f"b{victim}", data_dir_id=f"disk-{victim}")
    own = admin_of(world, victim)
    assert own.refusal("Retire", data_dir_id=f"disk-{victim}") == (
        GrpcStatus.FAILED_PRECONDITION,
        f"broker b{victim} still votes in the metadata group",
    )
    calls.call("RemoveMember", member=member)
    world.until(lambda: all(one.broker != f"b{victim}" for one in calls.context.consensus.voters))
    assert own.refusal("Retire", data_dir_id="other")[0] is GrpcStatus.FAILED_PRECONDITION
    world.until(lambda: member_has_no_vote(own))
    own.call("Retire", data_dir_id=f"disk-{victim}")
    world[victim].kill()
    world.until(lambda: calls.context.state.brokers[f"b{victim}"].fenced)
    calls.call("RemoveBroker", broker=f"b{victim}")
    assert calls.context.state.brokers[f"b{victim}"].removed
    listed = calls.call("ListBrokers")
    assert f"b{victim}" not in [one.broker for one in listed.brokers]
    assert calls.refusal("AddLearner", member=member)[0] is GrpcStatus.FAILED_PRECONDITION


def test_feature_level_never_goes_back_nor_beyond_what_brokers_know(lone):
    calls = admin_of(lone, 1)
    known = calls.call("ClusterStatus").feature_level_available
    calls.call("SetFeatureLevel", feature_level=known)
    assert calls.call("ClusterStatus").feature_level == known
    for level in (known - 1, known + 1):
        status, text = calls.refusal("SetFeatureLevel", feature_level=level)
        assert status is GrpcStatus.FAILED_PRECONDITION
        assert str(level) in text


def test_catch_up_rate_is_told_and_bounded(lone):
    calls = admin_of(lone, 1)
    calls.call("SetCatchUpRate", bytes_per_second=1 << 20)
    assert calls.call("ClusterStatus").catch_up_rate == 1 << 20
    status, text = calls.refusal("SetCatchUpRate", bytes_per_second=1)
    assert status is GrpcStatus.INVALID_ARGUMENT
    assert "catch-up rate of 1 bytes" in text


def test_stream_is_owned_by_one(lone):
    calls = admin_of(lone, 1)
    stream = lone[1].node.state.stream("s")
    given = {"stream": "s", "stream_id": stream.stream_id}
    calls.call("SetStreamOwner", **given, owner="one")
    assert stream.owner == "one"
    status, text = calls.refusal("SetStreamOwner", **given, owner="two")
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert text == "stream s has owner 'one', not ''"
    calls.call("SetStreamOwner", **given, expected="one", owner="two")
    assert stream.owner == "two"


def test_restarts_of_a_broker_are_told(world):
    world[3].kill()
    world[3].restart()
    calls = admin_of(world, leader_of_metadata(world))
    world.until(lambda: calls.context.state.brokers["b3"].incarnation_id == "run-b3-2")
    found = {one.broker: one for one in calls.call("ListBrokers").brokers}
    assert [one.start_id for one in found["b3"].restarts] == ["run-b3-1", "run-b3-2"]
    assert [one.is_clean for one in found["b3"].restarts] == [False, False]


# -- leaderships --------------------------------------------------------------------------------


def test_leadership_goes_to_the_successor_and_back_to_the_preferred(world):
    first = world.state("s").leader
    target = next(one for one in world.state("s").replicas if one != first)
    calls = admin_of(world, follower_of_metadata(world))
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    done = calls.call("TransferLeadership", partitions=[ref], to=target)
    assert [(one.partition, one.code) for one in done.outcomes] == [(ref, "")]
    assert world.state("s").leader == target
    world.until(lambda: world.leader("s") is not None)
    done = calls.call("ElectPreferred")
    assert [one.code for one in done.outcomes] == [""]
    assert world.state("s").leader == first
    assert not calls.call("ElectPreferred").outcomes


def test_all_leaderships_of_a_broker_are_handed_over(world):
    source = world.state("s").leader
    calls = admin_of(world, 1)
    done = calls.call("TransferLeadership", **{"from": source})
    assert done.outcomes
    assert all(one.code == "" for one in done.outcomes)
    assert source not in {world.state("s", n).leader for n in (0, 1)}
    assert not calls.call("TransferLeadership", **{"from": source}).outcomes


def test_leadership_without_another_replica_stays(lone):
    calls = admin_of(lone, 1)
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    done = calls.call("TransferLeadership", partitions=[ref])
    assert done.outcomes[0].code == "FAILED_PRECONDITION"
    assert done.outcomes[0].text.endswith("has no other broker to lead it")


def test_wrong_lists_of_partitions_are_refused(lone):
    calls = admin_of(lone, 1)
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    cases = [
        ({"partitions": [ref, ref]}, "listed twice"),
        ({"partitions": [ref] * 1001}, "1001 listed, at most 1000"),
        ({"partitions": [admin_pb2.PartitionRef(stream="s", partition=9)]}, "no such partition: 9"),
        ({"partitions": [ref], "from": "b1"}, "cannot be given together"),
        ({}, "broker: is required"),
    ]
    for fields, text in cases:
        assert text in calls.refusal("TransferLeadership", **fields)[1]


def test_partition_without_leader_is_recovered_with_the_epoch_that_was_seen(world):
    world.create("lost", factor=1, unclean_mode=UncleanMode.MANUAL)
    victim = world.state("lost").leader
    number = next(n for n in (1, 2, 3) if f"b{n}" != victim)
    calls = admin_of(world, number)
    ref = admin_pb2.PartitionRef(stream="lost", partition=0)
    epoch = world.state("lost").partition_epoch
    assert calls.refusal("ElectUnclean", partition=ref, broker=victim)[1].startswith(
        "partition_epoch: is required because records may be lost"
    )
    status, text = calls.refusal(
        "ElectUnclean", partition=ref, broker=victim, partition_epoch=epoch
    )
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert f"is led by broker {victim}" in text
    status, text = calls.refusal(
        "ElectUnclean", partition=ref, broker=victim, partition_epoch=epoch + 1
    )
    assert f"has partition epoch {epoch}, not {epoch + 1}" in text


def test_replica_that_may_lack_records_is_elected_by_an_operator():
    world = ClusterWorld(3)
    world.create("s", factor=2, min_isr=1, unclean_mode=UncleanMode.MANUAL)
    leader = world.members[world.state("s").leader]
    follower = next(world.members[one] for one in world.state("s").replicas if one != leader.broker)
    follower.kill()
    world.until(lambda: world.state("s").isr == (leader.broker,))
    follower.restart()
    leader.kill()
    world.until(lambda: world.state("s").leader is None and follower.is_registered)
    world.until(lambda: not follower.node.state.brokers[follower.broker].fenced)
    calls = admin_of(world, int(follower.broker[1:]))
    state = world.state("s")
    done = calls.call(
        "ElectUnclean",
        partition=admin_pb2.PartitionRef(stream="s", partition=0),
        broker=follower.broker,
        partition_epoch=state.partition_epoch,
    )
    assert (done.leader, done.leader_epoch) == (follower.broker, done.partition_epoch)
    found = calls.call("ListPartitions", streams=["s"]).partitions[0]
    assert (found.leader, found.unclean_epoch) == (follower.broker, done.leader_epoch)


# -- replicas -----------------------------------------------------------------------------------


def test_partition_moves_to_other_brokers():
    world = ClusterWorld(4)
    world.create("s", factor=3)
    calls = admin_of(world, 4)
    state = world.state("s")
    target = tuple(one for one in sorted(world.members) if one != state.replicas[0])
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    done = calls.call("StartReassignment", partition=ref, target=target)
    assert done.partition_epoch > state.partition_epoch
    under_way = calls.call("ListReassignments").reassignments
    assert [tuple(one.target) for one in under_way] == [target]
    assert tuple(under_way[0].removing) == (state.replicas[0],)
    status, text = calls.refusal("StartReassignment", partition=ref, target=target)
    assert (status, "is being reassigned" in text) == (GrpcStatus.FAILED_PRECONDITION, True)
    world.until(lambda: world.state("s").replicas == target)
    world.until(lambda: not calls.call("ListReassignments").reassignments)


def test_reassignment_is_cancelled():
    world = ClusterWorld(4)
    world.create("s", factor=3)
    calls = admin_of(world, 1)
    before = world.state("s").replicas
    new = next(one for one in world.members if one not in before)
    world.cut(world.members[new])
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    at = next(n for n in range(1, 5) if f"b{n}" != new)
    calls = admin_of(world, at)
    epoch = calls.call("StartReassignment", partition=ref, target=(*before[:2], new))
    calls.call("CancelReassignment", partition=ref, partition_epoch=epoch.partition_epoch)
    assert sorted(world.state("s").replicas) == sorted(before)
    assert not calls.call("ListReassignments").reassignments


def test_reassignment_to_nobody_is_refused(lone):
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    for target in ([], ["no"], ["b1", "b1"]):
        status, text = admin_of(lone, 1).refusal("StartReassignment", partition=ref, target=target)
        assert (status, text.startswith("Invalid replicas")) == (GrpcStatus.INVALID_ARGUMENT, True)


# -- the metadata group -------------------------------------------------------------------------


@pytest.mark.parametrize("method", LEADER_ONLY)
def test_what_only_the_leader_can_do_is_refused_elsewhere_with_its_name(world, method):
    member = admin_pb2.Member(broker="b9", data_dir_id="disk-9")
    fields = {} if method == "TransferMetadataLeadership" else {"member": member}
    number, leader = follower_of_metadata(world), leader_of_metadata(world)
    status, text = admin_of(world, number).refusal(method, **fields)
    assert status is GrpcStatus.FAILED_PRECONDITION
    term = world[leader].consensus.term
    assert text == (
        f"broker b{number} does not lead the metadata group, broker b{leader} does (term {term})"
    )


def test_leadership_of_the_group_is_handed_over(world):
    former = leader_of_metadata(world)
    to = admin_of(world, former).call("TransferMetadataLeadership").to
    assert to != f"b{former}"
    world.until(lambda: world.members[to].consensus.is_leader)


def test_leadership_of_the_group_cannot_go_to_a_stranger(world):
    calls = admin_of(world, leader_of_metadata(world))
    status, text = calls.refusal("TransferMetadataLeadership", to="b9")
    assert (status, text) == (
        GrpcStatus.FAILED_PRECONDITION,
        "b9 does not vote in the metadata group",
    )
    assert calls.call("TransferMetadataLeadership", to=calls.context.me.broker).to


def test_lone_leader_has_no_successor(lone):
    status, text = admin_of(lone, 1).refusal("TransferMetadataLeadership")
    assert (status, text) == (
        GrpcStatus.FAILED_PRECONDITION,
        "the metadata group has no other live voter",
    )


def test_learner_is_added_once_and_living_members_stay(world):
    calls = admin_of(world, leader_of_metadata(world))
    new = admin_pb2.Member(broker="b9", data_dir_id="disk-9")
    calls.call("AddLearner", member=new)
    world.run(100)
    calls.call("AddLearner", member=new)
    assert [one.broker for one in calls.context.consensus.learners] == ["b9"]
    status, _ = calls.refusal("PromoteLearner", member=new)
    assert status is GrpcStatus.FAILED_PRECONDITION
    calls.call("RemoveMember", member=new)
    world.until(lambda: not calls.context.consensus.learners)
    assert calls.refusal("PromoteLearner", member=new)[0] is GrpcStatus.NOT_FOUND
    alive = admin_pb2.Member(broker="b1", data_dir_id="disk-1")
    status, text = calls.refusal("RemoveMember", member=alive)
    assert (status, "drain it first" in text) == (GrpcStatus.FAILED_PRECONDITION, True)


def test_living_voter_is_removed_where_it_comes_back_without_a_vote(world):
    leader = leader_of_metadata(world)
    calls = admin_of(world, leader)
    number = next(n for n in (1, 2, 3) if n != leader)
    member = admin_pb2.Member(broker=f"b{number}", data_dir_id=f"disk-{number}")
    calls.context.facts = replace(calls.context.facts, voters_max=3)
    assert calls.refusal("RemoveMember", member=member)[0] is GrpcStatus.FAILED_PRECONDITION
    calls.context.facts = replace(calls.context.facts, voters_max=2)
    calls.call("RemoveMember", member=member)
    world.until(lambda: len(calls.context.consensus.voters) == 2)


def test_member_is_not_removed_when_the_rest_has_no_majority(world):
    leader = leader_of_metadata(world)
    calls = admin_of(world, leader)
    one, other = (n for n in (1, 2, 3) if n != leader)
    calls.call("CordonBroker", broker=f"b{one}", is_draining=True)
    world[other].kill()
    world.until(lambda: calls.context.state.brokers[f"b{other}"].fenced)
    member = admin_pb2.Member(broker=f"b{one}", data_dir_id=f"disk-{one}")
    status, text = calls.refusal("RemoveMember", member=member)
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert "would have 1 live voters of 2, needs 2" in text


def test_broker_without_known_leader_says_so(world):
    number = follower_of_metadata(world)
    world.cut(world[number])
    world.until(lambda: world[number].consensus.leader is None)
    status, text = admin_of(world, number).refusal("AddLearner", member=MEMBER)
    assert (status, "knows no leader" in text) == (GrpcStatus.UNAVAILABLE, True)
    status, _ = admin_of(world, number).refusal("ListBrokers", is_confirmed=True)
    assert status is GrpcStatus.UNAVAILABLE
