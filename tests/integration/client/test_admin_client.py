"""Operators' client and port: three brokers behind real sockets, one process with certificates."""

import contextlib
from datetime import timedelta
from hashlib import sha256

import pytest

from liftbridge_client import Member, PartitionName, TlsFiles, connect_admin, connect_admin_sync
from liftbridge_client.errors import (
    ClosedError,
    FailedPreconditionError,
    NotFoundError,
    RetriableError,
)
from liftbridge_testkit.admin_calls import follower_of_metadata, leader_of_metadata
from liftbridge_testkit.admin_ports import admin_ports
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.processes import Broker, NatsServer

SHORT = timedelta(seconds=2)


@pytest.fixture
async def cluster():
    """Four brokers in memory whose time goes on, and their addresses for operators."""
    world = ClusterWorld(4)
    world.create("s", factor=3)
    async with admin_ports(world) as addresses:
        yield world, list(addresses.values())


async def test_leader_is_found_from_any_address(cluster):
    world, addresses = cluster
    follower = follower_of_metadata(world)
    order = [addresses[follower - 1], *addresses]
    async with connect_admin(",".join(order)) as admin:
        found = await admin.cluster()
        assert found.metadata_leader == f"b{leader_of_metadata(world)}"
        assert [one.match_index for one in found.members].count(None) == 0
        brokers = await admin.brokers()
        assert [one.broker for one in brokers] == ["b1", "b2", "b3", "b4"]
        assert {one.role for one in brokers} == {"leader", "voter"}
        asked = await admin.transfer_metadata_leadership()
        assert asked != found.metadata_leader


async def test_leader_behind_no_address_is_said(cluster):
    world, addresses = cluster
    follower = addresses[follower_of_metadata(world) - 1]
    async with connect_admin(follower, retry_time=SHORT) as admin:
        with pytest.raises(RetriableError, match="no given address leads to it"):
            await admin.cluster()
        assert (await admin.cluster(from_leader=False)).metadata_leader


async def test_broker_is_asked_by_name(cluster):
    _, addresses = cluster
    async with connect_admin(",".join(addresses), retry_time=SHORT) as admin:
        assert (await admin.broker_status("b3")).broker == "b3"
        check = await admin.check_restart("b2")
        assert (check.blockers, check.token != b"") == ((), True)
        verified = await admin.verify_restart("b2", check.token)
        assert [one.kind for one in verified.blockers] == ["not_restarted"]
        with pytest.raises(NotFoundError, match="no given address leads to broker 'b9'"):
            await admin.broker_status("b9")


async def test_replicas_leaderships_and_brokers_are_moved(cluster):
    world, addresses = cluster
    name = PartitionName("s", 0)
    async with connect_admin(",".join(addresses)) as admin:
        first = await anext(admin.partitions("s"))
        to = next(one for one in first.isr if one != first.leader)
        assert [one.code for one in await admin.transfer_leadership(name, to=to)] == [""]
        assert [one.code for one in await admin.elect_preferred(name)] == [""]
        new = next(one for one in world.members if one not in first.isr)
        epoch = await admin.start_reassignment(name, [first.leader, to, new])
        assert epoch > first.partition_epoch
        while await admin.reassignments():
            continue  # each look is a call, during which time goes on
        moved = await anext(admin.partitions(broker=new))
        assert [one.broker for one in moved.replicas] == [first.leader, to, new]
        assert await admin.cordon(new, drain=True) == 1
        await admin.uncordon(new)
        await admin.set_feature_level((await admin.cluster()).feature_level_available)
        with pytest.raises(FailedPreconditionError, match="is led by broker"):
            await admin.elect_unclean(name, to, partition_epoch=moved.partition_epoch)
        with pytest.raises(FailedPreconditionError):
            await admin.remove_broker(new)
        with pytest.raises(FailedPreconditionError):
            await admin.cancel_reassignment(name)


async def test_members_of_the_group_are_changed(cluster):
    world, addresses = cluster
    new = Member("b9", "disk-9")
    async with connect_admin(",".join(addresses)) as admin:
        await admin.add_learner(new)
        while not any(one.broker == "b9" for one in (await admin.cluster()).members):
            continue  # each look is a call, during which time goes on
        with pytest.raises(FailedPreconditionError):
            await admin.promote_learner(new)
        await admin.remove_member(new)
        while any(one.broker == "b9" for one in (await admin.cluster()).members):
            continue  # each look is a call, during which time goes on
        members = [Member(peer.broker, peer.data_dir_id) for peer in world[1].consensus.voters]
        await admin.bootstrap("prod-1", members)
        assert (await admin.cluster()).cluster_id == "prod-1"
        assert {one.cluster_id for one in (await admin.identities()).values()} == {"prod-1"}


async def test_client_that_was_not_entered_refuses():
    with pytest.raises(ClosedError):
        await connect_admin("127.0.0.1:1").cluster()


def test_blocking_client_does_the_same(broker):
    with connect_admin_sync(broker.admin_address) as admin:
        assert admin.cluster().metadata_leader == "broker"
        assert admin.broker_status("broker").is_nats_connected
        assert [one.min_isr for one in admin.partitions()][:1] == [1]
        (identity,) = admin.identities().values()
        assert (identity.broker, identity.has_metadata) == ("broker", True)


def test_waiting_brokers_become_the_cluster_that_an_operator_names(tmp_path):
    with contextlib.ExitStack() as stack:
        nats = stack.enter_context(NatsServer(tmp_path))
        brokers = [
            Broker(
                tmp_path,
                nats_url=nats.url,
                name=f"b{number}",
                bootstrap=(),
                config={"clustering.raft.bootstrap.wait": True},
            )
            for number in (1, 2, 3)
        ]
        for one in brokers:
            stack.callback(one.kill)
            one.spawn()
        with connect_admin_sync(",".join(one.admin_address for one in brokers)) as admin:
            members = []
            for one in brokers:
                one.wait_until(lambda one=one: admin_identity(admin, one) is not None, "asked")
                found = admin_identity(admin, one)
                assert (found.has_metadata, found.cluster_id) == (False, "")
                members.append(Member(found.broker, found.data_dir_id))
            admin.bootstrap("prod-1", members)
            for one in brokers:
                one.wait_until(one.is_ready, "ready")
            admin.bootstrap("prod-1", members)
            with pytest.raises(FailedPreconditionError, match="belongs to cluster prod-1"):
                admin.bootstrap("prod-2", members)
            assert admin.cluster().cluster_id == "prod-1"
            assert [one.role for one in admin.brokers()].count("leader") == 1


def test_port_with_certificates_lets_in_those_who_show_one(tmp_path):
    ours, strange = Authority(tmp_path / "ca"), Authority(tmp_path / "other", "other")
    server, me = ours.issue("server"), ours.issue("me")
    stranger = strange.issue("stranger")
    config = {
        "admin.tls.cert": str(server.cert),
        "admin.tls.key": str(server.key),
        "admin.tls.ca": str(ours.cert),
    }

    def identities(certificate):
        cert, key = (certificate.cert, certificate.key) if certificate else (None, None)
        files = TlsFiles(ca=ours.cert, cert=cert, key=key)
        with connect_admin_sync(broker.admin_address, tls=files, retry_time=SHORT) as admin:
            return [one.broker for one in admin.identities().values()]

    with Broker(tmp_path, config=config) as broker:
        assert identities(me) == ["broker"]
        assert identities(None) == []
        assert identities(stranger) == []
        with connect_admin_sync(broker.admin_address, retry_time=SHORT) as admin:
            assert admin.identities() == {}
        files = TlsFiles(ca=ours.cert, cert=me.cert, key=me.key)
        with connect_admin_sync(broker.admin_address, tls=files) as admin:
            # What it has read, whatever lies there by now.
            loaded = {
                "admin.tls.cert": sha256(server.cert.read_bytes()).hexdigest(),
                "admin.tls.ca": sha256(ours.cert.read_bytes()).hexdigest(),
            }
            server.cert.write_text("not a certificate")
            assert admin.broker_status("broker").certificates == loaded


def test_broker_does_not_open_the_port_to_others_without_certificates(tmp_path):
    broker = Broker(tmp_path, config={"admin.listen": "0.0.0.0:0"})
    broker.spawn()
    assert broker.wait() != 0
    assert "operators must show a certificate" in broker.log_text()


def admin_identity(admin, broker):
    """Who is behind a broker's address; `None` while nobody answers."""
    return admin.identities().get(broker.admin_address)
