"""Changes that operators ask for are made once and told rightly, whatever becomes of an attempt.

Brokers in memory decide. Between them and the client a gateway loses the answer to the first
attempt at a change; the same change without a loss shows what must come of it. A method that is new
belongs to one of the two tables, or a test fails.
"""

import asyncio
import inspect
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial

import grpc.aio
import pytest

from liftbridge_broker.controller.callers.commands import SetQuota
from liftbridge_broker.controller.commands import FEATURE_LEVEL, SetFeatureLevel, SetMasterKey
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.ports.transport import Channel
from liftbridge_client import AdminClient, Limits, Member, PartitionName, connect_admin
from liftbridge_client.admin_model import Election, NewToken, RewrappedKeys
from liftbridge_client.aio.admin.api_tokens import ApiTokens
from liftbridge_client.aio.admin.master_keys import MasterKeys
from liftbridge_client.aio.admin.quotas import Quotas
from liftbridge_client.errors import FailedPreconditionError, LiftbridgeError
from liftbridge_proto.ext.v1 import admin_pb2
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.admin_ports import admin_ports
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.held_keys import master

FATES = ("before", "after", "with", "late")
"""What happens to the first attempt, whose answer is always lost: it gets to no broker, or does so
at once, together with the second attempt, or after that was answered."""

LOOKS = ("Identity", "ClusterStatus", "ListBrokers", "ListPartitions", "ListReassignments")
LEADER_ONLY = ("TransferMetadataLeadership", "AddLearner", "PromoteLearner", "RemoveMember")
SETTLED_MILLISECONDS = 2_000
PARTITIONS = 12


class Fates:
    """What happens to attempts at a change.

    Attributes:
        next: Fate of the next attempt; empty for one that is answered.
        calls: Attempts that came.
        held: Attempts that no broker has got yet, each with the channel to one.
        work: Attempts whose answers nobody gets.
        is_still: Whether no time passes for the brokers.
        limit: How many attempts get to a broker; others are refused.
    """

    def __init__(self, fate):
        self.next = fate
        self.calls = 0
        self.held = []
        self.work = []
        self.is_still = False
        self.limit = 1_000

    def let_go(self):
        self.work += [ask() for ask, _ in self.held]
        self.held.clear()

    async def both(self, ask, channel):
        """Have brokers begin with what is held and with another attempt before either is done."""
        channels = [*(one for _, one in self.held), channel]
        self.is_still = True
        self.let_go()
        attempt = ask()
        for one in channels:  # answered after what came before on the same connection
            await one.unary_unary("/liftbridge.ext.v1.Admin/Identity")(b"")
        self.is_still = False
        return await attempt


class Gateway:
    """Passes calls on to a broker, and leaves attempts at a change to their fate."""

    def __init__(self, fates, address, leads):
        self.fates = fates
        self.leads = leads
        self.channel = grpc.aio.insecure_channel(address)
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop(None)
        await self.channel.close()

    def service(self, details):
        ask = self.channel.unary_unary(details.method)
        is_look = details.method.endswith(LOOKS)
        is_elsewhere = details.method.endswith(LEADER_ONLY) and not self.leads()

        async def on(request, call):
            self.fates.calls += not is_look
            act = self.answer if is_look or is_elsewhere else self.change
            return await act(partial(ask, request), call)

        return grpc.unary_unary_rpc_method_handler(on)

    async def answer(self, ask, call):
        try:
            return await ask()
        except grpc.aio.AioRpcError as error:
            await call.abort(error.code(), error.details(), tuple(error.trailing_metadata()))

    async def change(self, ask, call):
        fates = self.fates
        fates.limit -= 1
        if fates.limit < 0:
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        fate, fates.next = fates.next, "held" if fates.next == "with" else ""
        if fate == "after":
            await self.answer(ask, call)
        elif fate in {"with", "late"}:
            fates.held.append((ask, self.channel))
        if fate in FATES:
            await call.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if fate == "held":
            ask = partial(fates.both, ask, self.channel)
        found = await self.answer(ask, call)
        fates.let_go()
        return found


# -- the world before a change ------------------------------------------------------------------


def metadata_leader(world):
    return next(one for one in world.alive if one.consensus.is_leader)


def calls_of(world):
    return admin_of(world, int(metadata_leader(world).broker[1:]))


def victim(world):
    """The broker that is about to leave."""
    return next(one for one in world.members.values() if not one.consensus.is_leader)


def member_of(world):
    return admin_pb2.Member(**Member(*victim(world).peer)._asdict())


def as_made(_world):
    """Streams alone."""


def spread(world):
    """The other replicas of what one broker leads are not the same everywhere."""
    number = led(world)[-1].partition
    isr, source = world.state("s", number).isr, source_of(world)
    new = next(one for one in sorted(world.members) if one not in isr)
    target = [source, new, next(one for one in isr if one != source)]
    ref = admin_pb2.PartitionRef(stream="s", partition=number)
    calls_of(world).call("StartReassignment", partition=ref, target=target)
    world.until(lambda: world.state("s", number).replicas == tuple(target))


def given_away(world):
    """Leaderships are not where they are preferred."""
    for source in world.members:
        calls_of(world).call("TransferLeadership", **{"from": source})


def moving(world):
    """A partition is to get a replica on a broker that cannot catch up."""
    state = world.state()
    new = next(one for one in world.alive if one.broker not in state.replicas)
    world.deaf.add((new.broker, state.leader, Channel.DATA))
    ref = admin_pb2.PartitionRef(stream="s", partition=0)
    target = [*state.replicas[:2], new.broker]
    calls_of(world).call("StartReassignment", partition=ref, target=target)


def cordoned(world):
    """A broker is cordoned."""
    calls_of(world).call("CordonBroker", broker=victim(world).broker)


def owned(world):
    """A stream has an owner."""
    fields = {"stream": "s", "stream_id": stream_id(world), "owner": "o"}
    calls_of(world).call("SetStreamOwner", **fields)


def drained(world):
    """A broker has no replicas."""
    name = victim(world).broker
    calls_of(world).call("CordonBroker", broker=name, is_draining=True)
    world.until(lambda: not metadata_leader(world).node.state.replica_counts[name])


def demoted(world):
    """A broker has no replicas and no vote."""
    drained(world)
    calls_of(world).call("RemoveMember", member=member_of(world))
    peer = victim(world).peer
    world.until(lambda: all(peer not in one.consensus.voters for one in world.alive))


def learning(world):
    """A broker has no vote, and has caught up."""
    demoted(world)
    calls_of(world).call("AddLearner", member=member_of(world))
    world.run(SETTLED_MILLISECONDS)


def stopped(world):
    """A broker without replicas and vote is stopped."""
    demoted(world)
    gone = victim(world)
    gone.kill()
    world.until(lambda: metadata_leader(world).node.state.brokers[gone.broker].fenced)


def leaderless(world):
    """The only complete replica of a partition is gone."""
    world.create("lost", factor=2, min_isr=1, unclean_mode=UncleanMode.MANUAL)
    first, second = (world.members[one] for one in world.state("lost").replicas)
    second.kill()
    world.until(lambda: world.state("lost").isr == (first.broker,))
    second.restart()
    first.kill()
    world.until(lambda: world.state("lost").leader is None and second.is_registered)
    world.until(lambda: not second.node.state.brokers[second.broker].fenced)
    world.until(lambda: any(one.consensus.is_leader for one in world.alive))


def keyed(world):
    """A stream is encrypted, and all brokers have two master keys."""
    world.propose(SetFeatureLevel(feature_level=FEATURE_LEVEL))
    for member in world.alive:
        member.masters.set({"k1": master(1), "k2": master(2)})
        member.node.renew_master_keys(world.now)
    brokers = metadata_leader(world).node.state.brokers
    world.until(lambda: all(one.master_keys for one in brokers.values()))
    world.create("e", encryption=True)


def rotated(world):
    """The other master key is chosen, and the data key is not rewrapped yet."""
    keyed(world)
    world.propose(SetMasterKey(master_key="k2"))


# -- changes ------------------------------------------------------------------------------------

NAME = PartitionName("s", 0)


def source_of(world):
    """The broker that leads most partitions."""
    leaders = Counter(world.state("s", number).leader for number in range(PARTITIONS))
    return leaders.most_common(1)[0][0]


def led(world):
    """The partitions that it leads."""
    numbers = [one for one in range(PARTITIONS) if world.state("s", one).leader == source_of(world)]
    return [PartitionName("s", one) for one in numbers]


def follower(world):
    """A broker with replicas of some of those partitions, not of all."""
    isrs = [set(world.state(*one).isr) for one in led(world)]
    return next(one for one in sorted(set.union(*isrs)) if one not in set.intersection(*isrs))


def target_of(world):
    """The present replicas but one, and another broker."""
    state = world.state()
    new = next(one for one in sorted(world.members) if one not in state.replicas)
    return [*state.replicas[:2], new]


def stream_id(world):
    return metadata_leader(world).node.state.stream("s").stream_id


def lost(world):
    state = world.state("lost")
    survivor = next(one.broker for one in world.alive if one.broker in state.replicas)
    return PartitionName("lost", 0), survivor, state.partition_epoch


async def elect_unclean(admin, world):
    name, survivor, epoch = lost(world)
    return await admin.elect_unclean(name, survivor, partition_epoch=epoch)


def leaving(world):
    return Member(*victim(world).peer)


def of_level_4(world):
    admin_of(world, 1).call("SetFeatureLevel", feature_level=4)


def limited(world):
    """A principal has a quota."""
    of_level_4(world)
    world.propose(SetQuota(kind="principal", name="p", streams=1))


def with_token(world):
    of_level_4(world)
    admin_of(world, 1).call("CreateToken", principal="p")


def token_of(world):
    return next(iter(metadata_leader(world).node.state.tokens))


CHANGES = {
    "reload": (as_made, lambda admin, world: admin.reload(metadata_leader(world).broker)),
    "cordon": (as_made, lambda admin, world: admin.cordon(victim(world).broker)),
    "cordon to drain": (
        as_made,
        lambda admin, world: admin.cordon(victim(world).broker, drain=True),
    ),
    "uncordon": (cordoned, lambda admin, world: admin.uncordon(victim(world).broker)),
    "remove_broker": (stopped, lambda admin, world: admin.remove_broker(victim(world).broker)),
    "remove_broker of a session": (
        stopped,
        lambda admin, world: admin.remove_broker(
            victim(world).broker,
            broker_epoch=metadata_leader(world)
            .node.state.brokers[victim(world).broker]
            .broker_epoch,
        ),
    ),
    "retire": (demoted, lambda admin, world: admin.retire(*leaving(world))),
    "set_feature_level": (as_made, lambda admin, _world: admin.set_feature_level(1)),
    "set_catch_up_rate": (as_made, lambda admin, _world: admin.set_catch_up_rate(1 << 20)),
    "tokens.create": (of_level_4, lambda admin, _world: admin.tokens.create("p")),
    "tokens.revoke": (
        with_token,
        lambda admin, world: admin.tokens.revoke(token_of(world)),
    ),
    "tokens.revoke later": (
        with_token,
        lambda admin, world: admin.tokens.revoke(token_of(world), after=timedelta(hours=1)),
    ),
    "quotas.set": (
        of_level_4,
        lambda admin, _world: admin.quotas.set("principal", "p", Limits(streams=1)),
    ),
    "quotas.remove": (
        limited,
        lambda admin, _world: admin.quotas.remove("principal", "p"),
    ),
    "keys.rotate": (keyed, lambda admin, _world: admin.keys.rotate("k2")),
    "keys.rewrap": (rotated, lambda admin, _world: admin.keys.rewrap()),
    "set_stream_owner": (
        as_made,
        lambda admin, world: admin.set_stream_owner("s", "o", stream_id=stream_id(world)),
    ),
    "set_stream_owner of another": (
        owned,
        lambda admin, world: admin.set_stream_owner(
            "s", "p", stream_id=stream_id(world), expected="o"
        ),
    ),
    "transfer_leadership": (spread, lambda admin, world: admin.transfer_leadership(*led(world))),
    "transfer_leadership to": (
        spread,
        lambda admin, world: admin.transfer_leadership(*led(world), to=follower(world)),
    ),
    "transfer_leadership from": (
        spread,
        lambda admin, world: admin.transfer_leadership(from_broker=source_of(world)),
    ),
    "transfer_leadership from, to": (
        spread,
        lambda admin, world: admin.transfer_leadership(
            from_broker=source_of(world), to=follower(world)
        ),
    ),
    "elect_preferred": (
        given_away,
        lambda admin, _world: admin.elect_preferred(
            *(PartitionName("s", number) for number in range(PARTITIONS))
        ),
    ),
    "elect_preferred of all": (given_away, lambda admin, _world: admin.elect_preferred()),
    "elect_unclean": (leaderless, elect_unclean),
    "start_reassignment": (
        as_made,
        lambda admin, world: admin.start_reassignment(NAME, target_of(world)),
    ),
    "start_reassignment of an epoch": (
        as_made,
        lambda admin, world: admin.start_reassignment(
            NAME, target_of(world), partition_epoch=world.state().partition_epoch
        ),
    ),
    "cancel_reassignment of an epoch": (
        moving,
        lambda admin, world: admin.cancel_reassignment(
            NAME, partition_epoch=world.state().partition_epoch
        ),
    ),
    "cancel_reassignment": (moving, lambda admin, _world: admin.cancel_reassignment(NAME)),
    "bootstrap": (
        as_made,
        lambda admin, world: admin.bootstrap(
            "prod-1", [Member(*one.peer) for one in world.members.values()]
        ),
    ),
    "transfer_metadata_leadership": (
        as_made,
        lambda admin, _world: admin.transfer_metadata_leadership(),
    ),
    "transfer_metadata_leadership to": (
        as_made,
        lambda admin, world: admin.transfer_metadata_leadership(victim(world).broker),
    ),
    "add_learner": (as_made, lambda admin, _world: admin.add_learner(Member("b9", "disk-9"))),
    "promote_learner": (learning, lambda admin, world: admin.promote_learner(leaving(world))),
    "remove_member": (drained, lambda admin, world: admin.remove_member(leaving(world))),
}
OTHERS = {
    *("aclose", "broker_status", "brokers", "check_restart", "cluster", "identities"),
    *("partitions", "reassignments", "settings", "verify_restart"),
    *("tokens.list", "keys.status", "quotas.list"),
}

ALL, LEADER = "all, the leader last", "the leader alone"
"""Brokers that the client can ask."""

NEED_ALL = ("retire", "bootstrap", "transfer_metadata_leadership")
CASES = [
    (change, reach)
    for change in CHANGES
    for reach in (ALL, LEADER)
    if reach == ALL or not change.startswith(NEED_ALL)
]


PARTS = {"": AdminClient, "tokens.": ApiTokens, "keys.": MasterKeys, "quotas.": Quotas}


def test_every_method_is_listed():
    names = {
        prefix + name
        for prefix, kind in PARTS.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    assert names == {change.partition(" ")[0] for change in CHANGES} | OTHERS


def told(change, answer):
    """What a caller learns; metadata indexes differ from world to world."""
    if isinstance(answer, Election | NewToken | RewrappedKeys):
        # What is rewrapped already does not count again, and a token is another one.
        parts = {"leader", "left", "token"} & set(dir(answer))
        (part,) = (getattr(answer, name) for name in parts)
        return part.principal if isinstance(answer, NewToken) else part
    if isinstance(answer, int) and "reassignment" in change:
        return answer > 0
    if " from" in change or " of all" in change:
        return [one for one in answer if one.code]  # what is moved already is not listed again
    if "leadership" in change and not isinstance(answer, str):
        return [(one.stream, one.partition, one.code) for one in answer]
    return answer


def seen(world):
    """What a change may change, apart from metadata indexes."""
    leader = metadata_leader(world)
    state, group = leader.node.state, leader.consensus
    return {
        "leader": (leader.broker, leader.consensus.term),
        "members": (group.voters, group.learners),
        "cluster": (state.cluster_id, state.feature_level, state.catch_up_rate),
        "quotas": state.quotas,
        "tokens": [(one.principal, one.expires > 0) for one in state.tokens.values()],
        "streams": [
            (one.name, one.owner, one.data_key and one.data_key.master_key)
            for one in state.streams.values()
        ],
        "master key": state.master_key,
        "brokers": [(one.broker, one.cordoned, one.removed) for one in state.brokers.values()],
        "partitions": [
            (one.partition_id, one.leader, one.replicas, one.target)
            for stream in state.streams.values()
            for one in stream.partitions
        ],
    }


@asynccontextmanager
async def client_of(world, fates, reach=ALL):
    """A client that gets to brokers through gateways."""
    async with AsyncExitStack() as stack:
        ports = admin_ports(world, is_still=lambda: fates.is_still)
        addresses = await stack.enter_async_context(ports)
        leader = metadata_leader(world).broker
        names = [leader] if reach == LEADER else sorted(addresses, key=leader.__eq__)
        gateways = [
            Gateway(fates, addresses[name], lambda name=name: metadata_leader(world).broker == name)
            for name in names
        ]
        for one in gateways:
            await stack.enter_async_context(one)
        servers = ",".join(one.address for one in gateways)
        yield await stack.enter_async_context(connect_admin(servers))
        await asyncio.gather(*fates.work, return_exceptions=True)  # most are refused by now


def world_of(prepare):
    """Brokers at rest."""
    world = ClusterWorld(4)
    world.create("s", partitions=PARTITIONS)
    prepare(world)
    world.run(SETTLED_MILLISECONDS)
    return world


async def come_of(change, reach, fate):
    """What a caller is told of a change, how it is afterwards, and how often it was asked for."""
    prepare, make = CHANGES[change]
    world, fates = world_of(prepare), Fates(fate)
    async with client_of(world, fates, reach) as admin:
        answer = await make(admin, world)
    world.run(SETTLED_MILLISECONDS)
    return told(change, answer), seen(world), fates.calls


@pytest.mark.parametrize(("change", "reach"), CASES)
async def test_change_is_made_once_and_told_rightly_whatever_becomes_of_an_attempt(change, reach):
    answer, after, calls = await come_of(change, reach, "")
    for fate in FATES:
        found = await come_of(change, reach, fate)
        assert found[0] == answer, fate
        assert {key: one for key, one in found[1].items() if one != after[key]} == {}, fate
        assert found[2] > calls, fate


@pytest.mark.parametrize("change", ["transfer_leadership", "bootstrap"])
async def test_change_in_parts_that_fails_later_may_be_done(change):
    prepare, make = CHANGES[change]
    fates = Fates("")
    fates.limit = 1
    async with client_of(world := world_of(prepare), fates) as admin:
        with pytest.raises(FailedPreconditionError) as refusal:
            await make(admin, world)
        assert refusal.value.may_be_done
        fates.limit = 0
        with pytest.raises(FailedPreconditionError) as refusal:
            await make(admin, world)
        assert not refusal.value.may_be_done


def wrong_lists(world):
    """Lists of partitions that cannot be transferred together, or not at all."""
    other = next(one for one in range(PARTITIONS) if PartitionName("s", one) not in led(world))
    yield [*led(world), PartitionName("s", other)]
    yield [*led(world), led(world)[0]]
    yield [*led(world), PartitionName("s", PARTITIONS)]
    yield [*led(world), PartitionName("t", 0)]
    yield [PartitionName("lost", 0)]


async def test_lists_that_brokers_refuse_are_refused_alike():
    world = world_of(leaderless)
    async with client_of(world, Fates("")) as admin:
        for names in wrong_lists(world):
            refs = [admin_pb2.PartitionRef(**one._asdict()) for one in names]
            status, text = calls_of(world).refusal("TransferLeadership", partitions=refs)
            with pytest.raises(LiftbridgeError) as refusal:
                await admin.transfer_leadership(*names)
            assert (refusal.value.code, str(refusal.value)) == (
                {"INVALID_ARGUMENT": "INVALID_REQUEST"}.get(status.name, status.name),
                text,
            )


async def test_partition_without_another_replica_stays():
    world = world_of(lambda world: world.create("lone", factor=1))
    async with client_of(world, Fates("")) as admin:
        (outcome,) = await admin.transfer_leadership(PartitionName("lone", 0))
    assert outcome.code == "FAILED_PRECONDITION"
    assert outcome.text.endswith("has no other broker to lead it")
