"""The service for operators, over nodes in memory: what is told, done and refused."""

import random
import re
import ssl

import pytest

from liftbridge_broker.controller.commands import AdvertiseListeners, DeleteStream
from liftbridge_broker.errors import ConfigError, GrpcStatus
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.bootstrap import Beginning, Discovery, Role
from liftbridge_broker.server.admin import ADMIN, check_admin_tls, is_loopback, make_admin
from liftbridge_proto.ext.v1 import admin_pb2
from liftbridge_testkit.admin_calls import (
    AdminCalls,
    AdminRefusalError,
    admin_of,
    follower_of_metadata,
    leader_of_metadata,
)
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import START

METHODS = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods]


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


# -- looking ----------------------------------------------------------------------------------


def test_every_method_of_the_service_is_served(lone):
    calls = admin_of(lone, 1)
    server = make_admin(calls.context)
    assert [name for name in METHODS if server.method(ADMIN + name) is None] == []


def test_identity_names_broker_directory_process_and_leader(world):
    number = follower_of_metadata(world)
    found = admin_of(world, number).call("Identity")
    assert (found.broker, found.data_dir_id) == (f"b{number}", f"disk-{number}")
    assert found.start_id == f"run-b{number}-1"
    assert found.has_metadata
    assert not found.is_retired
    assert found.metadata_leader == f"b{leader_of_metadata(world)}"


def test_further_listeners_of_brokers_are_told_by_each(world):
    outside = ListenerAddress("outside", "2001:db8::2", 30_392)
    epoch = world[1].node.state.brokers[BrokerId("b2")].broker_epoch
    world.propose(
        AdvertiseListeners(broker=BrokerId("b2"), broker_epoch=epoch, listeners=(outside,))
    )
    found = admin_of(world, 3).call("ListBrokers", is_confirmed=True)
    told = {
        one.broker: [(each.name, each.host, each.port) for each in one.listeners]
        for one in found.brokers
    }
    assert told == {"b1": [], "b2": [tuple(outside)], "b3": []}


def test_brokers_are_told_with_role_session_and_load(world):
    number = leader_of_metadata(world)
    world.run(500)
    found = admin_of(world, number).call("ListBrokers", is_confirmed=True)
    assert [one.broker for one in found.brokers] == ["b1", "b2", "b3"]
    roles = [one.role for one in found.brokers]
    assert roles.count(admin_pb2.BrokerDescription.ROLE_LEADER) == 1
    assert roles.count(admin_pb2.BrokerDescription.ROLE_VOTER) == 2
    for one in found.brokers:
        assert one.broker_epoch == world[1].node.state.brokers[one.broker].broker_epoch
        assert one.data_dir_id == f"disk-{one.broker[1:]}"
        assert one.replicas == 2
        assert one.HasField("applied_index")
        assert not one.is_fenced
    assert sum(one.leaders for one in found.brokers) == 2


def test_follower_tells_only_its_own_applied_index(world):
    number = follower_of_metadata(world)
    found = admin_of(world, number).call("ListBrokers")
    known = [one.broker for one in found.brokers if one.HasField("applied_index")]
    assert known == [f"b{number}"]


def test_status_of_the_group_has_matches_at_its_leader_only(world):
    leader, follower = leader_of_metadata(world), follower_of_metadata(world)
    found = admin_of(world, leader).call("ClusterStatus", needs_leader=True)
    assert found.metadata_leader == f"b{leader}"
    assert found.term == world[leader].consensus.term
    assert found.applied_hash == world[leader].node.state.chain
    assert all(one.is_voter and one.is_alive for one in found.members)
    assert all(one.HasField("match_index") for one in found.members)
    elsewhere = admin_of(world, follower).call("ClusterStatus")
    assert not any(one.HasField("match_index") for one in elsewhere.members)


def test_status_of_a_broker_tells_of_links_disk_and_configuration(lone):
    found = admin_of(lone, 1).call("BrokerStatus")
    assert (found.broker, found.version, found.configuration_hash) == ("b1", "1.2.3", "abc")
    assert found.time == lone.wall_ns
    assert found.is_nats_connected
    assert found.are_peers_connected
    assert not found.is_disk_full
    assert found.free_bytes > 0
    assert (found.replicas, found.leaders) == (1, 1)


def test_partitions_are_told_with_replicas_and_what_is_known_of_their_ends(world):
    leader = world.leader("s")
    number = int(leader.broker[1:])
    world.run(200)
    found = admin_of(world, number).call("ListPartitions", streams=["s"])
    first = found.partitions[0]
    state = world.state("s")
    assert (first.partition.stream, first.partition.partition) == ("s", 0)
    assert first.leader == leader.broker
    assert (first.leader_epoch, first.partition_epoch) == (
        state.leader_epoch,
        state.partition_epoch,
    )
    assert tuple(first.isr) == state.isr
    assert first.min_isr == 2
    for replica in first.replicas:
        assert replica.is_in_sync
        assert replica.log_end == 0
        assert replica.HasField("high_watermark") == (replica.broker == leader.broker)


def test_partitions_come_in_pages_that_cover_all(world):
    world.create("more", partitions=3)
    calls, token, found = admin_of(world, 1), 0, []
    while True:
        page = calls.call("ListPartitions", page_size=2, page_token=token)
        assert len(page.partitions) <= 2
        found += [(one.partition.stream, one.partition.partition) for one in page.partitions]
        token = page.next_page_token
        if not token:
            break
    assert found == [("s", 0), ("s", 1), ("more", 0), ("more", 1), ("more", 2)]


def test_only_degraded_partitions_of_a_broker_can_be_asked_for(world):
    calls = admin_of(world, leader_of_metadata(world))
    assert not calls.call("ListPartitions", only_degraded=True).partitions
    world.create("single", factor=1)
    victim = world[follower_of_metadata(world)]
    victim.kill()
    world.until(lambda: all(victim.broker not in world.state("s", n).isr for n in (0, 1)))
    found = calls.call("ListPartitions", only_degraded=True, broker=victim.broker)
    assert [one.partition.stream for one in found.partitions][:2] == ["s", "s"]


@pytest.mark.parametrize("size", [-1, 1001])
def test_wrong_page_size_is_refused(lone, size):
    status, text = admin_of(lone, 1).refusal("ListPartitions", page_size=size)
    assert status is GrpcStatus.INVALID_ARGUMENT
    assert text == f"page_size {size}: must be 1 to 1000"


def test_unknown_stream_is_refused(lone):
    status, text = admin_of(lone, 1).refusal("ListPartitions", streams=["no"])
    assert (status, text) == (GrpcStatus.NOT_FOUND, "no such stream: no")


# -- before there is a cluster ------------------------------------------------------------------


def waiter(role=Role.WAITER):
    """A broker with an empty directory, and its search."""
    me = Peer(BrokerId("b1"), "disk-1")
    search = Discovery(me, role, (), lambda *_: None, START)
    calls = AdminCalls(me, "run", lambda: START, lambda: 0, lambda _: None, None)
    calls.context.found = search.found
    return calls, search


MEMBERS = [
    admin_pb2.Member(broker=f"b{number}", data_dir_id=f"disk-{number}") for number in (3, 1, 2)
]


def test_waiting_broker_tells_who_it_is_and_nothing_else():
    calls, _ = waiter()
    found = calls.call("Identity")
    assert (found.broker, found.data_dir_id, found.has_metadata) == ("b1", "disk-1", False)
    status, text = calls.refusal("ListBrokers")
    assert status is GrpcStatus.UNAVAILABLE
    assert "has no cluster yet" in text


def test_bootstrap_founds_the_cluster_once_and_may_be_repeated():
    calls, search = waiter()
    assert not calls.call("Bootstrap", cluster_id="prod-1", members=MEMBERS).was_done
    assert search.beginning.cluster_id == "prod-1"
    assert [peer.broker for peer in search.beginning.configuration.voters] == ["b1", "b2", "b3"]
    again = list(reversed(MEMBERS))
    assert calls.call("Bootstrap", cluster_id="prod-1", members=again).was_done


def test_bootstrap_is_refused_by_a_broker_that_founds_by_itself():
    calls, search = waiter(Role.SEED)
    status, text = calls.refusal("Bootstrap", cluster_id="c", members=MEMBERS)
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert text == "broker b1 does not wait for Bootstrap (role seed)"
    assert search.beginning is None
    calls.context.found = None
    status, _ = calls.refusal("Bootstrap", cluster_id="c", members=MEMBERS)
    assert status is GrpcStatus.UNAVAILABLE


def test_bootstrap_names_what_another_founder_told_of():
    calls, search = waiter()
    voters = tuple(sorted(Peer(one.broker, one.data_dir_id) for one in MEMBERS))
    search.beginning = Beginning(Configuration(voters), "")
    assert calls.call("Bootstrap", cluster_id="prod-1", members=MEMBERS).was_done
    assert search.beginning.cluster_id == "prod-1"


def test_bootstrap_with_another_list_or_id_is_refused():
    calls, _ = waiter()
    calls.call("Bootstrap", cluster_id="prod-1", members=MEMBERS)
    for other in ({"cluster_id": "prod-2", "members": MEMBERS}, {"cluster_id": "prod-1"}):
        fields = {"members": MEMBERS[:2], **other}
        status, text = calls.refusal("Bootstrap", **fields)
        assert status is GrpcStatus.FAILED_PRECONDITION
        assert "another cluster or other members" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cluster_id": "", "members": MEMBERS}, "cluster_id ''"),
        ({"cluster_id": "a b", "members": MEMBERS}, "cluster_id 'a b'"),
        ({"cluster_id": "x" * 65, "members": MEMBERS}, "must be 1 to 64"),
        ({"cluster_id": "c"}, "members: 0 given, must be 1 to 15"),
        (
            {"cluster_id": "c", "members": [MEMBERS[0]]},
            "members: must include broker b1 with directory disk-1",
        ),
        (
            {"cluster_id": "c", "members": [admin_pb2.Member(broker="b1", data_dir_id="old")]},
            "members: must include broker b1 with directory disk-1",
        ),
        ({"cluster_id": "c", "members": [*MEMBERS, *MEMBERS]}, "a broker is listed twice"),
        (
            {"cluster_id": "c", "members": [admin_pb2.Member(broker="b1")]},
            "data_dir_id are required",
        ),
    ],
)
def test_wrong_bootstrap_is_refused(fields, text):
    calls, search = waiter()
    status, told = calls.refusal("Bootstrap", **fields)
    assert status is GrpcStatus.INVALID_ARGUMENT
    assert text in told
    assert search.beginning is None


def test_broker_with_metadata_is_not_founded_anew(world):
    calls = admin_of(world, 1)
    members = [
        admin_pb2.Member(broker=peer.broker, data_dir_id=peer.data_dir_id)
        for peer in world[1].consensus.voters
    ]
    calls.call("Bootstrap", cluster_id="prod-1", members=members)
    assert world[1].node.state.cluster_id == "prod-1"
    assert calls.call("Bootstrap", cluster_id="prod-1", members=members).was_done
    status, text = calls.refusal("Bootstrap", cluster_id="prod-2", members=members)
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert text == "broker b1 is not empty, it belongs to cluster prod-1"


def test_broker_without_cluster_id_but_other_members_is_not_founded_anew(world):
    members = [admin_pb2.Member(broker="b1", data_dir_id="disk-1")]
    status, text = admin_of(world, 1).refusal("Bootstrap", cluster_id="c", members=members)
    assert status is GrpcStatus.FAILED_PRECONDITION
    assert "it was bootstrapped with other members" in text


# -- restarts -----------------------------------------------------------------------------------


def kinds(blockers):
    return [admin_pb2.RestartBlocker.Kind.Name(one.kind) for one in blockers]


def test_restart_is_allowed_and_verified_with_all_replicas_in_sync(world):
    calls = admin_of(world, 2)
    found = calls.call("CheckRestart", broker="b2")
    assert (kinds(found.blockers), found.partitions) == ([], 2)
    assert found.expires == world.wall_ns + 60_000 * MILLISECOND_NS
    before = calls.call("VerifyRestart", token=found.token)
    assert kinds(before.blockers) == ["KIND_NOT_RESTARTED"]
    world[2].kill()
    world.run(300)
    world[2].restart()
    world.until(lambda: world.is_whole)
    world.until(lambda: all(len(world.state("s", n).isr) == 3 for n in (0, 1)))
    after = admin_of(world, 2).call("VerifyRestart", token=found.token)
    assert (after.is_complete, after.partitions, after.excluded) == (True, 2, 0)


def test_deleted_partition_is_left_out_of_the_verification(world):
    token = admin_of(world, 2).call("CheckRestart", broker="b2").token
    world.propose(DeleteStream(name="s"))
    world[2].kill()
    world[2].restart()
    world.until(lambda: world.is_whole)
    after = admin_of(world, 2).call("VerifyRestart", token=token)
    assert (after.is_complete, after.partitions, after.excluded) == (True, 0, 2)


def test_second_broker_may_not_be_restarted_while_the_first_is_away(world):
    world[1].kill()
    world.until(lambda: all("b1" not in world.state("s", n).isr for n in (0, 1)))
    found = admin_of(world, 2).call("CheckRestart", broker="b2")
    assert found.token == b""
    assert kinds(found.blockers) == ["KIND_OUT_OF_SYNC"] * 2 + ["KIND_NO_MAJORITY"]
    assert found.blockers[0].text == "partition 0 of stream s is not in sync on b1"
    assert list(found.blockers[0].brokers) == ["b1"]


def test_lone_broker_may_be_restarted_when_that_is_accepted(lone):
    calls = admin_of(lone, 1)
    found = calls.call("CheckRestart", broker="b1")
    assert kinds(found.blockers) == ["KIND_UNREPLICATED", "KIND_NO_MAJORITY"]
    found = calls.call("CheckRestart", broker="b1", allow_unavailable=True)
    assert kinds(found.accepted) == ["KIND_UNREPLICATED", "KIND_NO_MAJORITY"]
    assert found.token


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"broker": "b9"}, "broker 'b9': this is broker b1, ask the named broker"),
        ({"broker": "b1", "valid_ms": 999}, "valid_ms 999: must be 1000 to 600000"),
        ({"broker": "b1", "gate": 7}, "gate: unknown value 7"),
    ],
)
def test_wrong_question_for_a_restart_is_refused(lone, fields, text):
    status, told = admin_of(lone, 1).refusal("CheckRestart", **fields)
    assert (status, told) == (GrpcStatus.INVALID_ARGUMENT, text)


def test_damaged_or_foreign_token_is_refused(world):
    token = admin_of(world, 2).call("CheckRestart", broker="b2").token
    for wrong in (b"", token[:-1], token[1:], b"x" * len(token)):
        status, text = admin_of(world, 2).refusal("VerifyRestart", token=wrong)
        assert status is GrpcStatus.INVALID_ARGUMENT
        assert text.startswith("token: ")
    status, text = admin_of(world, 1).refusal("VerifyRestart", token=token)
    assert "token of broker b2: this is broker b1" in text


# -- anything at all ----------------------------------------------------------------------------


def test_no_bytes_whatever_break_a_method(lone):
    calls, rng = admin_of(lone, 1), random.Random(7)
    seeds = [
        admin_pb2.CordonBrokerRequest(broker="b1").SerializeToString(),
        admin_pb2.ElectUncleanRequest(
            partition=admin_pb2.PartitionRef(stream="s"), broker="b1", partition_epoch=1
        ).SerializeToString(),
        admin_pb2.TransferLeadershipRequest(to="b1").SerializeToString(),
    ]
    answered, refusals = 0, []
    for turn in range(3_000):
        data = bytearray(rng.choice([*seeds, rng.randbytes(rng.randrange(12))]))
        for _ in range(rng.randrange(3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            calls.raw(METHODS[turn % len(METHODS)], bytes(data))
            answered += 1
        except AdminRefusalError as refusal:
            refusals.append(refusal)
    assert answered > 300
    assert len(refusals) > 300
    assert [one for one in refusals if one.status is GrpcStatus.UNKNOWN or not one.text] == []


# -- the listener -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_loopback_needs_no_certificates(host):
    assert is_loopback(host)
    check_admin_tls(host, None)


@pytest.mark.parametrize("host", ["192.0.2.1", "::", "10.1.2.3", "broker-1.example"])
def test_other_addresses_need_client_certificates(host):
    server_only = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in (None, server_only):
        with pytest.raises(ConfigError, match=re.escape(f"admin.listen {host}")):
            check_admin_tls(host, context)
    server_only.verify_mode = ssl.CERT_REQUIRED
    check_admin_tls(host, server_only)
