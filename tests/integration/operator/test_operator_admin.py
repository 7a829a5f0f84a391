"""The operator's port to brokers: processes with mutual TLS, and a group of brokers in memory."""

import asyncio
from hashlib import sha256

import grpc
import pytest

from liftbridge_broker.controller.commands import FEATURE_LEVEL
from liftbridge_broker.server.admin import make_admin
from liftbridge_operator.cluster.brokers.grpc_admin import GrpcAdmin, TlsMaterial
from liftbridge_operator.cluster.brokers.port import Consent, ProcessReport, Refusal, Verified
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.cluster.observing.answers import ask
from liftbridge_operator.cluster.planning.actions import Move
from liftbridge_operator.cluster.planning.observation import Disruption, Member, Metadata
from liftbridge_operator.pipelines.grpc_positions import GrpcPositions
from liftbridge_operator.pipelines.port import CursorError, SilentError
from liftbridge_operator.pipelines.positions import Place, Position
from liftbridge_operator.streams.grpc_streams import GrpcStreams
from liftbridge_testkit.admin_calls import admin_of, follower_of_metadata, leader_of_metadata
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.processes import Broker, NatsServer

PACE_SECONDS = 0.002
SECONDS_MAX = 30.0
START_ID = "LIFTBRIDGE_CLUSTERING_START_ID"
WAITS = ("--set", "clustering.raft.bootstrap.wait=true")


async def until(ask_, is_enough):
    """Ask again and again until an answer is enough."""
    async with asyncio.timeout(SECONDS_MAX):
        answer = await ask_()
        while not is_enough(answer):
            answer = await ask_()  # each waits for an answer of a broker, or for none
        return answer


def material(authority, certificate):
    return TlsMaterial(
        authority.cert.read_bytes(), certificate.cert.read_bytes(), certificate.key.read_bytes()
    )


# -- processes ----------------------------------------------------------------------------------


@pytest.fixture
def brokers(tmp_path):
    """Three brokers with access control that wait to be founded; what an operator shows them."""
    authority = Authority(tmp_path / "ca")
    server, me = authority.issue("server"), authority.issue("me")
    config = {
        "admin.tls.cert": str(server.cert),
        "admin.tls.key": str(server.key),
        "admin.tls.ca": str(authority.cert),
        "cursors.stream.partitions": 1,
        "admin.super.users": ["me"],
        "access.enabled": True,
        "access.super.users": ["a-person"],
        "auth.methods": ["token", "anonymous"],
        "data.reserve.bytes": 0,
        "data.free.min.bytes": 0,
    }
    with NatsServer(tmp_path) as nats:
        made = {
            name: Broker(
                tmp_path,
                nats_url=nats.url,
                name=name,
                config=config,
                bootstrap=WAITS,
                environment={START_ID: f"uid-{name}"},
            )
            for name in ("c-0", "c-1", "c-2")
        }
        for one in made.values():
            one.spawn()
        yield made, material(authority, me)
        for one in made.values():
            one.kill()


async def test_brokers_are_founded_and_told_of_by_mutual_tls(brokers):
    processes, tls = brokers
    admin = GrpcAdmin(lambda name: processes[name].admin_address, tls)
    try:
        told = [
            await until(
                lambda name=name: admin.process_report(name),
                lambda one: isinstance(one, ProcessReport),
            )
            for name in processes
        ]
        assert [one.report.start_id for one in told] == ["uid-c-0", "uid-c-1", "uid-c-2"]
        assert not any(one.report.has_metadata or one.report.cluster_id for one in told)
        founders = [Member(one.report.broker, one.report.data_dir_id) for one in told]
        for one in (*founders, *founders):  # it may be repeated
            await until(
                lambda one=one: admin.bootstrap(one.broker, "id-1", founders),
                lambda refusal: refusal is None,
            )

        found = await until(
            lambda: ask(admin, list(processes)),
            lambda one: (
                one.metadata is not None
                and [broker.is_fenced for broker in one.metadata.brokers] == [False] * 3
            ),
        )
        metadata = found.metadata
        assert metadata.cluster_id == "id-1"
        assert {one.member for one in metadata.members if one.is_voter} == set(founders)
        assert {one.start_id for one in metadata.brokers} == {"uid-c-0", "uid-c-1", "uid-c-2"}
        assert [one.is_nats_connected for one in found.reports] == [True] * 3
        for one in found.reports:
            assert dict(one.certificates)["admin.tls.ca"] == sha256(tls.authority).hexdigest()
            assert (one.nats_servers, one.damage) == (1, "")
        clocks = [one.clock_ms for one in found.reports]
        assert 0 < max(clocks) - min(clocks) + 1 < SECONDS_MAX * 1_000
        other = next(name for name in processes if name != metadata.leader)
        refused = await admin.metadata(other)
        assert refused.code == "FAILED_PRECONDITION"
        assert not refused.is_silence

        await use_streams(processes, tls)
        await restart(admin, processes, other)
    finally:
        await admin.close()


async def use_streams(processes, tls):
    """Streams and positions of pipelines are reached with the same certificate."""
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    endpoints = [Endpoint(name, one.admin_address) for name, one in processes.items()]
    streams, positions = (kind(endpoints, credentials) for kind in (GrpcStreams, GrpcPositions))
    try:
        await streams.create("s", subject="s", group="", partitions=1, factor=3, settings={})
        assert "s" in await until(streams.streams, lambda found: "s" in found)

        async def asked():
            try:
                return await positions.positions("s", "archive")
            except (SilentError, CursorError):  # leaders are elected yet
                return {}

        assert await until(asked, bool) == {Place("s", 0): Position(0, 0, -1)}
    finally:
        await streams.close()
        await positions.close()


async def restart(admin, processes, name):
    """A broker consents, is stopped, is silent, and comes back as another process."""
    consent = await until(
        lambda: admin.check_restart(
            name, f"uid-{name}", accepts_unavailable=False, needs_full_isr=True
        ),
        lambda one: isinstance(one, Consent) and one.token,
    )
    assert consent.blockers == ()
    early = await admin.verify_restart(name, consent.token)
    assert (early.is_complete, early.is_other_directory) == (False, False)
    stranger = await admin.check_restart(
        name, "another", accepts_unavailable=False, needs_full_isr=True
    )
    assert stranger.code == "FAILED_PRECONDITION"

    processes[name].terminate()
    processes[name].wait()
    silent = await admin.process_report(name)
    assert silent.is_silence
    answers = await ask(admin, list(processes), disruption(name, consent), consent.token)
    assert [one.broker for one in answers.reports] == [one for one in processes if one != name]
    assert answers.verification is None
    assert dict(answers.refusals)[name].is_silence

    processes[name]._environment[START_ID] = "uid-new"
    processes[name].spawn()
    back = await until(
        lambda: ask(admin, list(processes), disruption(name, consent), consent.token),
        lambda one: one.verification is not None and one.verification.is_complete,
    )
    assert "uid-new" in {one.start_id for one in back.reports}


def disruption(name, consent):
    return Disruption(name, f"uid-{name}", "token", consent.expires_ms, 0, consent.partitions)


async def test_broker_lets_in_nobody_else(brokers, tmp_path):
    processes, tls = brokers
    strange = Authority(tmp_path / "strange", "strange")
    stranger = material(strange, strange.issue("stranger"))
    address = processes["c-0"].admin_address
    ours = GrpcAdmin(lambda _name: address, tls)
    others = [
        GrpcAdmin(lambda _name: address, None),
        GrpcAdmin(lambda _name: address, TlsMaterial(tls.authority, *_pair(stranger))),
        GrpcAdmin(lambda _name: address, stranger),
    ]
    try:
        await until(lambda: ours.process_report("c-0"), lambda one: isinstance(one, ProcessReport))
        refused = [await one.process_report("c-0") for one in others]
        assert [one.is_silence for one in refused] == [True] * 3
        wrong = await ours.process_report("c-1")  # another broker stands at its address
        assert (wrong.code, wrong.is_silence) == ("FAILED_PRECONDITION", False)
    finally:
        for one in (ours, *others):
            await one.close()


def _pair(material_):
    return material_.certificate, material_.key


# -- a group in memory --------------------------------------------------------------------------


@pytest.fixture
async def group():
    """Four brokers in memory whose time goes on, and the operator's port to them."""
    world = ClusterWorld(4)
    world.create("s", factor=3)
    servers = [make_admin(admin_of(world, number).context) for number in range(1, 5)]
    ports = [await server.start("127.0.0.1", 0) for server in servers]
    loop = asyncio.get_running_loop()
    pace = []

    def go_on():
        world.run(10)
        pace[:] = [loop.call_later(PACE_SECONDS, go_on)]

    go_on()
    admin = GrpcAdmin(lambda name: f"127.0.0.1:{ports[int(name[1:]) - 1]}", None)
    yield world, admin, f"b{leader_of_metadata(world)}"
    await admin.close()
    pace[0].cancel()
    for server in servers:
        await server.close()


async def partition(admin, leader):
    found = await admin.metadata(leader)
    assert isinstance(found, Metadata)
    return next(one for one in found.partitions if one.stream == "s")


async def test_partition_is_described_as_the_planner_needs_it(group):
    _, admin, leader = group
    found = await partition(admin, leader)
    assert (found.name, found.number, len(found.replicas)) == ("s/0", 0, 3)
    assert set(found.isr) == set(found.replicas)
    assert found.leader in found.isr
    assert found.min_isr >= 1
    assert found.partition_epoch > 0
    assert found.target == ()


async def test_leaderships_are_moved_and_given_back(group):
    _, admin, leader = group
    first = (await partition(admin, leader)).leader
    assert await admin.transfer_leaders(leader, first, to="") is None
    moved = await until(lambda: partition(admin, leader), lambda one: one.leader not in ("", first))
    assert moved.leader != first
    assert await admin.elect_preferred(leader, [("s", 0)]) is None
    back = await until(lambda: partition(admin, leader), lambda one: one.leader == one.replicas[0])
    assert back.leader == back.replicas[0]
    last = back.replicas[-1]
    assert await admin.transfer_leaders(leader, back.leader, to=last) is None
    given = await until(lambda: partition(admin, leader), lambda one: one.leader == last)
    assert given.leader == last


async def test_rules_and_bound_of_moves_are_changed(group):
    _, admin, leader = group
    before = await admin.metadata(leader)
    assert (before.feature_level, before.known_level, before.catch_up_rate) == (0, FEATURE_LEVEL, 0)
    assert await admin.set_catch_up_rate(leader, 2_000) is None
    assert await admin.set_feature_level(leader, 1) is None
    after = await admin.metadata(leader)
    assert (after.feature_level, after.catch_up_rate) == (1, 2_000)
    for level in (0, FEATURE_LEVEL + 1):  # there is no way back, and nobody knows the other
        refused = await admin.set_feature_level(leader, level)
        assert (refused.code, refused.is_silence) == ("FAILED_PRECONDITION", False)


async def test_drain_moves_replicas_and_ends(group):
    _, admin, leader = group
    victim = (await partition(admin, leader)).replicas[-1]
    assert await admin.cordon(leader, victim, is_draining=True) is None
    seen = await admin.metadata(leader)
    known = {one.broker: one for one in seen.brokers}[victim]
    assert (known.is_cordoned, known.is_draining) == (True, True)
    await until(lambda: partition(admin, leader), lambda one: victim not in one.replicas)
    assert await admin.uncordon(leader, victim) is None
    seen = await admin.metadata(leader)
    assert not any(one.is_cordoned or one.is_draining for one in seen.brokers)


async def test_move_depends_on_the_epoch_that_was_seen(group):
    _, admin, leader = group
    seen = await partition(admin, leader)
    new = next(name for name in ("b1", "b2", "b3", "b4") if name not in seen.replicas)
    target = (*seen.replicas[:2], new)
    stale = await admin.reassign(leader, Move("s", 0, target, seen.partition_epoch + 7))
    assert isinstance(stale, Refusal)
    assert not stale.is_silence
    assert await admin.reassign(leader, Move("s", 0, target, seen.partition_epoch)) is None
    done = await until(
        lambda: partition(admin, leader), lambda one: one.replicas == target and not one.target
    )
    assert set(done.isr) == set(target)


async def test_members_and_brokers_are_changed_by_the_leader_alone(group):
    world, admin, leader = group
    follower = f"b{follower_of_metadata(world)}"
    new = Member("b9", "d9")
    refused = await admin.add_learner(follower, new)
    assert refused.code == "FAILED_PRECONDITION"
    assert await admin.add_learner(leader, new) is None
    seen = await until(
        lambda: admin.metadata(leader), lambda one: new in {member.member for member in one.members}
    )
    learner = next(one for one in seen.members if one.member == new)
    assert (learner.is_voter, learner.is_alive) == (False, False)
    far = await admin.promote_learner(leader, new)
    assert isinstance(far, Refusal)
    assert await admin.remove_member(leader, new) is None
    await until(
        lambda: admin.metadata(leader),
        lambda one: new not in {member.member for member in one.members},
    )
    alive = await admin.remove_broker(leader, follower, 0)
    assert isinstance(alive, Refusal)
    me = (await admin.process_report(follower)).report
    held = await admin.retire(Member(follower, me.data_dir_id))
    assert held.code == "FAILED_PRECONDITION"


async def test_group_gets_another_leader(group):
    world, admin, leader = group
    heir = next(
        one.member.broker
        for one in (await admin.metadata(leader)).members
        if one.is_voter and one.member.broker != leader
    )
    assert await admin.transfer_metadata(leader, heir) is None
    found = await until(lambda: admin.metadata(heir), lambda one: isinstance(one, Metadata))
    assert found.leader == heir
    assert f"b{leader_of_metadata(world)}" == heir


async def test_verified_says_when_it_is_another_directory(group):
    _, admin, _ = group
    consent = await admin.check_restart(
        "b2",
        (await admin.process_report("b2")).report.start_id,
        accepts_unavailable=True,
        needs_full_isr=False,
    )
    verified = await admin.verify_restart("b2", consent.token)
    assert isinstance(verified, Verified)
    assert verified.blockers != ()
    other = await admin.verify_restart("b3", consent.token)
    assert isinstance(other, Refusal)


async def test_channels_of_brokers_that_left_are_closed(group):
    _, admin, leader = group
    await asyncio.gather(*(admin.process_report(f"b{one}") for one in range(1, 5)))
    assert len(admin._channels) == 4
    await admin.forget([leader])
    assert list(admin._channels) == [leader]
    assert isinstance(await admin.process_report("b1"), ProcessReport)
