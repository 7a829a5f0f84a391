"""Encrypted streams on three brokers: replicas without keys, elections, moves, rotation."""

from random import Random

import pytest

from liftbridge_broker.controller.balance import preferred_elections
from liftbridge_broker.controller.commands import Bootstrap, SetMasterKey, StartReassignment
from liftbridge_broker.errors import FailedPreconditionError, KeyUnavailableError, LiftbridgeError
from liftbridge_broker.logformat.batch import walk
from liftbridge_broker.logformat.encryption import read_cipher_head
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_testkit.batches import frames_of
from liftbridge_testkit.cluster_world import CLUSTER_ID, ClusterWorld, Member
from liftbridge_testkit.held_keys import master

SECRET = b"secret-value"
K1 = {"k1": master(1)}


@pytest.fixture
def world() -> ClusterWorld:
    made = ClusterWorld(master_keys=K1)
    made.propose(Bootstrap(cluster_id=CLUSTER_ID))
    made.until(lambda: all(report(made, member) == ["k1"] for member in made.members.values()))
    return made


def report(world: ClusterWorld, member: Member) -> list[str]:
    """Return the master keys that a broker has reported, as another broker knows them."""
    state = world.alive[0].node.state
    return [key.key_id for key in state.brokers[member.broker].master_keys]


def set_keys(world: ClusterWorld, member: Member, keys: dict[str, bytes]) -> None:
    member.masters.set(keys)
    member.node.renew_master_keys(world.now)


def values_of(world: ClusterWorld, number: int) -> list[bytes]:
    """Return the committed values as a reader of a replica sees them."""
    partition = world.replica(number)
    assert partition.writer.cipher is not None
    reader = OpenedReader(partition.log, Offset(0), partition.writer.cipher)
    result = reader.read(1 << 20, partition.log.high_watermark)
    reader.close()
    return [frame.value for frame in frames_of(result.slices)]


def holds_plain_text(member: Member) -> bool:
    return any(SECRET in member.files.content(path) for path in member.files.paths(""))


def test_replicas_hold_equal_bytes_and_any_of_them_can_lead(world: ClusterWorld) -> None:
    partition = world.create(encryption=True)
    world.commit(SECRET, b"b")
    world.commit(b"c")
    world.run(50)
    assert len({member.log_bytes(partition) for member in world.alive}) == 1
    assert not any(holds_plain_text(member) for member in world.alive)
    for _ in range(2):
        leader = world.leader()
        assert leader is not None
        leader.kill(power_cut=True)
        world.until(lambda: world.leader() is not None)
        world.commit(b"more")
        leader.restart()
        world.until(lambda: world.is_whole and len(world.state().isr) == 3)
    world.run(100)
    assert values_of(world, 1) == values_of(world, 2) == [SECRET, b"b", b"c", b"more", b"more"]
    assert len({member.log_bytes(partition) for member in world.alive}) == 1
    assert not any(holds_plain_text(member) for member in world.alive)


def test_follower_without_the_key_replicates_and_truncates(world: ClusterWorld) -> None:
    partition = world.create(encryption=True, fsync_policy=FsyncPolicy.INTERVAL)
    world.commit(SECRET)
    leader = world.leader()
    assert leader is not None
    follower = next(member for member in world.alive if member is not leader)
    set_keys(world, follower, {})
    world.until(lambda: report(world, follower) == [])
    world.commit(b"b")
    world.publish(b"uncommitted", policy=1)
    follower.kill(power_cut=True)
    world.commit(b"c")
    follower.restart()
    world.until(lambda: world.is_whole and len(world.state().isr) == 3)
    world.run(200)
    assert len({member.log_bytes(partition) for member in world.alive}) == 1
    replica = follower.node.partitions[partition]
    assert replica.role is Role.FOLLOWER
    assert replica.writer.cipher is not None
    with pytest.raises(KeyUnavailableError, match="'k1' is not configured"):
        replica.writer.cipher.check()
    assert not replica.offline_reason
    assert not holds_plain_text(follower)


def test_leader_that_loses_the_key_gives_way_and_stays_away_until_it_is_back(
    world: ClusterWorld,
) -> None:
    world.create(encryption=True)
    world.commit(SECRET)
    leader = world.leader()
    assert leader is not None
    set_keys(world, leader, {})
    world.until(lambda: world.leader() not in (None, leader))
    world.commit(b"b")
    world.run(100)
    assert preferred_elections(leader.node.state, 10) is None
    set_keys(world, leader, K1)
    world.until(lambda: report(world, leader) == ["k1"])
    elections = preferred_elections(world.alive[0].node.state, 10)
    assert elections is not None
    world.propose(elections)
    world.until(lambda: world.leader() is leader)
    world.commit(b"c")


def test_sole_holder_without_key_keeps_the_leadership_and_refuses(world: ClusterWorld) -> None:
    world.create(encryption=True)
    world.commit(SECRET)
    for member in world.alive:
        set_keys(world, member, {})
    world.run(3_000)
    leader = world.leader()
    assert leader is not None
    epoch = world.state().leader_epoch
    answers = world.publish(b"x", at=leader)
    assert isinstance(answers.error, KeyUnavailableError)
    world.run(5_000)
    assert world.state().leader_epoch == epoch
    for member in world.alive:
        set_keys(world, member, K1)
    world.commit(b"b")
    assert values_of(world, 1)[0] == SECRET


def test_creation_is_refused_while_a_broker_lacks_the_key(world: ClusterWorld) -> None:
    set_keys(world, world[3], {})
    world.until(lambda: report(world, world[3]) == [])
    with pytest.raises(AssertionError, match="broker b3 has not reported master key 'k1'"):
        world.create(encryption=True)
    assert world.alive[0].node.state.stream("s") is None


def test_moved_replica_gets_the_cipher_text_and_the_key(world: ClusterWorld) -> None:
    partition = world.create(encryption=True, factor=2)
    world.commit(SECRET, b"b")
    state = world.state()
    target = next(member for member in world.alive if member.broker not in state.replicas)
    kept = next(broker for broker in state.replicas if broker != state.leader)
    move = StartReassignment(partition_id=partition, target=(target.broker, kept))
    assert not isinstance(world.propose(move), LiftbridgeError)
    world.until(lambda: world.leader() is target, milliseconds=120_000)
    world.commit(b"c")
    assert values_of(world, int(target.broker[1:])) == [SECRET, b"b", b"c"]
    assert not holds_plain_text(target)


def test_rotation_needs_the_key_everywhere_and_rewrites_no_log(world: ClusterWorld) -> None:
    partition = world.create(encryption=True)
    world.commit(SECRET)
    world.run(100)
    logs = {member.broker: member.log_bytes(partition) for member in world.alive}
    both = {**K1, "k2": master(2)}
    for member in world.alive[:2]:
        set_keys(world, member, both)
    world.until(lambda: report(world, world.alive[1]) == ["k1", "k2"])
    refusal = world.propose(SetMasterKey(master_key="k2"))
    assert isinstance(refusal, FailedPreconditionError)
    assert "broker b3 has not reported master key 'k2'" in refusal.text
    set_keys(world, world[3], both)
    world.until(lambda: report(world, world[3]) == ["k1", "k2"])
    assert not isinstance(world.propose(SetMasterKey(master_key="k2")), LiftbridgeError)
    outcomes: list[object] = []
    world[2].node.rewrapping.begin(outcomes.append)
    world.until(lambda: bool(outcomes))
    assert outcomes == [(1, 0)]
    for member in world.alive:
        set_keys(world, member, {"k2": master(2)})
    assert {member.broker: member.log_bytes(partition) for member in world.alive} == logs
    world.commit(b"b")
    world.run(100)
    assert values_of(world, 1) == [SECRET, b"b"]


def note_batches(world: ClusterWorld, seen: dict[tuple[bytes, bytes], bytes]) -> None:
    """Note what was encrypted under each key and nonce; a batch that was cut counts as whole."""
    partition = world.state().partition_id
    for member in world.members.values():
        if not member.is_alive or partition not in member.node.partitions:
            continue
        data = member.log_bytes(partition)
        for at, header in walk(data, 0, len(data)):
            if not header.is_filler:
                batch = data[at : at + header.size]
                head = read_cipher_head(batch, header)
                text = batch[head.cipher_start :]
                assert seen.setdefault((head.salt, head.nonce), text) == text


@pytest.mark.parametrize("seed", range(4))
def test_no_nonce_repeats_through_crashes_truncations_and_elections(seed: int) -> None:
    random = Random(seed)
    world = ClusterWorld(seed=seed, master_keys=K1)
    world.propose(Bootstrap(cluster_id=CLUSTER_ID))
    world.until(lambda: all(report(world, one) == ["k1"] for one in world.members.values()))
    world.create(encryption=True, fsync_policy=random.choice(list(FsyncPolicy)))
    seen: dict[tuple[bytes, bytes], bytes] = {}
    for number in range(25):
        leader = world.leader()
        if leader is not None:
            value = SECRET + b"%d" % number
            world.publish(value, at=leader, policy=random.choice((0, 1)))
            world.run(random.randrange(30))
            if random.random() < 0.4:
                others = [one for one in world.alive if one is not leader]
                world.cut(leader, *others)
                world.publish(b"cut off %d" % number, at=leader, policy=0)
                world.run(random.randrange(200))
            if random.random() < 0.4:
                leader.kill(power_cut=random.random() < 0.7)
                world.run(random.randrange(400))
                leader.restart()
            world.heal()
        world.run(random.randrange(100, 1_500))
        note_batches(world, seen)
    world.until(lambda: world.is_whole and world.leader() is not None)
    world.until(lambda: len(world.state().isr) == 3)
    world.run(500)
    note_batches(world, seen)
    assert len({salt for salt, _ in seen}) > 3
    held = values_of(world, 1)
    assert held == values_of(world, 2) == values_of(world, 3)
    assert not any(holds_plain_text(member) for member in world.members.values())
