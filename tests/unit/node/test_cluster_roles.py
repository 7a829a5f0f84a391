"""Several nodes: readers, damage, snapshots of the metadata, and messages nobody should act on."""

from dataclasses import replace

import pytest

from liftbridge_broker.adapters.memory.files import Fault
from liftbridge_broker.controller.commands import (
    AlterStream,
    DeleteStream,
    InitPublisher,
    SetReadonly,
)
from liftbridge_broker.errors import (
    EndOfStreamError,
    FilesError,
    LiftbridgeError,
    NotAppendedError,
    NotLeaderError,
    OffsetNotAvailableError,
    UnavailableError,
)
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead
from liftbridge_broker.node.reading.subscription import (
    Position,
    StartPosition,
    Subscription,
    start_offset,
)
from liftbridge_broker.node.replicas import replicas
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.wire.peer.frame import open_frame
from liftbridge_broker.wire.peer.heartbeat import Heartbeat
from liftbridge_broker.wire.peer.messages import PeerHeader, encode
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import EARLIEST, NEVER


@pytest.fixture
def world():
    return ClusterWorld()


def followers(world):
    return [member for member in world.alive if member is not world.leader()]


def in_sync(world, count):
    return lambda: len(world.state().isr) == count and world.leader() is not None


class Reader:
    """A subscription that notes what it gets and how it ends."""

    def __init__(self, member, *, reads_replica, start=EARLIEST):
        self.data = b""
        self.end = None
        partition = member.node.find_replica("s", 0)
        self.subscription = Subscription.open(
            partition,
            member.node.client_reads,
            self.pull,
            start=start,
            stop=NEVER,
            is_reverse=False,
            reads_replica=reads_replica,
        )
        self.pull()

    def pull(self):
        while self.end is None:
            slices, _, self.end, waits = self.subscription.pull(1 << 20)
            self.data += b"".join(bytes(piece) for piece in slices)
            if waits:
                return


class BulkReader:
    """A bulk read without an end, of any replica, that notes what it gets and how it ends."""

    def __init__(self, member):
        self.data = b""
        self.end = None
        wanted = BulkRange(0, 0, 0, follows=True, reads_replica=True)
        partition = member.node.find_replica("s", 0)
        self.read = BulkRead(partition, member.node.client_reads, self.pull, wanted)
        self.pull()

    def pull(self):
        try:
            while self.end is None and (chunk := self.read.pull(1 << 20)) is not None:
                self.data += chunk.data
        except LiftbridgeError as error:
            self.end = error


def test_readers_of_a_replica_go_on_when_the_leader_changes(world):
    world.create()
    world.commit(b"one")
    former = world.leader()
    follower = followers(world)[0]
    at_leader = Reader(former, reads_replica=False)
    at_replica = Reader(follower, reads_replica=True)
    world.run(50)
    assert b"one" in at_replica.data
    former.node.cluster.session.want_shutdown = True
    world.until(lambda: world.leader() not in (None, former))
    world.commit(b"two")
    world.run(100)
    assert isinstance(at_leader.end, UnavailableError)
    assert at_leader.end.text == "leader changed"
    assert at_replica.end is None
    assert b"two" in at_replica.data


def test_a_reader_that_comes_to_a_replica_which_is_behind_waits_there(world):
    """It goes on where it was, at another replica: nothing twice and nothing left out (KIP-392)."""
    world.create()
    world.commit(b"one")
    leader, behind = world.leader(), followers(world)[0]
    log = behind.node.partitions[world.state().partition_id].log
    world.until(lambda: log.high_watermark == 1)
    world.deaf |= {(leader.broker, behind.broker, Channel.DATA)}
    assert world.commit(b"two") == 1  # once the replica is no longer waited for
    assert world.commit(b"three") == 2
    reader = Reader(behind, reads_replica=True, start=Position(StartPosition.OFFSET, 2, 0))
    world.run(100)
    assert (log.log_end_offset, reader.data, reader.end) == (1, b"", None)
    world.deaf.clear()
    world.until(lambda: log.high_watermark == 3)
    assert b"three" in reader.data
    assert b"two" not in reader.data


def test_readers_of_a_replica_whose_log_is_cut_below_them_have_to_ask_again(world):
    """What comes in the place of what they had is not what they had (KIP-320)."""
    partition = world.create()
    world.commit(b"one", b"two")
    world.run(50)
    follower = followers(world)[0]
    beyond = Reader(follower, reads_replica=True)
    fresh = Reader(follower, reads_replica=True, start=Position(StartPosition.OFFSET, 1, 0))
    assert beyond.data
    assert fresh.data
    following = follower.node.cluster.replicas.following[partition]
    following.restart_at(following.partition.log.log_start_offset, world.now)
    assert [one.end.text for one in (beyond, fresh)] == ["leader changed"] * 2


def test_the_latest_offset_is_told_when_it_is_known(world):
    world.create()
    world.commit(b"a")
    former = world.leader()
    one, other = followers(world)
    former.kill()
    world.deaf |= {(one.broker, other.broker, Channel.DATA)}
    world.deaf |= {(other.broker, one.broker, Channel.DATA)}
    world.until(lambda: world.leader() is not None)
    partition = world.leader().node.find_partition("s", 0)
    assert (partition.log.high_watermark, partition.log.log_end_offset) == (0, 1)
    leader = world.leader()

    def at(kind, offset=0):
        return Reader(leader, reads_replica=False, start=Position(kind, offset, 0))

    for kind in (StartPosition.NEW_ONLY, StartPosition.LATEST, StartPosition.TIMESTAMP):
        with pytest.raises(OffsetNotAvailableError):
            at(kind)
    with pytest.raises(OffsetNotAvailableError):
        at(StartPosition.OFFSET, 1)
    assert at(StartPosition.OFFSET).subscription.next_offset == 0
    assert at(StartPosition.EARLIEST).subscription.next_offset == 0
    world.heal()
    world.until(lambda: partition.log.high_watermark == 1)
    assert start_offset(partition, Position(StartPosition.NEW_ONLY, 0, 0)) == 1
    assert start_offset(partition, Position(StartPosition.OFFSET, 1, 0)) == 1


def test_readers_see_only_what_is_committed(world):
    world.create()
    leader = world.leader()
    world.cut(leader)
    reader = Reader(leader, reads_replica=False)
    world.publish(b"hidden", policy=POLICY_LEADER)
    world.run(100)
    assert reader.data == b""


def test_a_damaged_follower_is_declared_unclean_and_copied_anew(world):
    partition = world.create()
    world.commit(b"one", b"two")
    follower = followers(world)[0]
    epoch = world.state().replica_epoch(follower.broker)
    follower.node.partitions[partition].go_offline("a bit flipped")
    world.until(lambda: world.state().replica_epoch(follower.broker) > epoch)
    world.until(in_sync(world, 3))
    assert follower.node.partitions[partition].offline_reason == ""
    assert follower.log_bytes(partition) == world.leader().log_bytes(partition)


def test_a_damaged_leader_hands_over_and_is_copied_anew(world):
    partition = world.create()
    world.commit(b"one", b"two")
    former = world.leader()
    former.node.partitions[partition].go_offline("a bit flipped")
    world.until(lambda: world.leader() not in (None, former))
    assert world.commit(b"three") == 2
    world.until(in_sync(world, 3))
    assert former.log_bytes(partition) == world.leader().log_bytes(partition)


def test_a_replica_that_a_bulk_read_finds_unreadable_is_copied_anew(world):
    partition = world.create()
    world.commit(b"one", b"two")
    former = world.leader()
    former.files.fail(Fault("read", f"*/{partition >> 24:010x}-s/*.log"))
    wanted = BulkRange(0, 0, 0, follows=False)
    read = BulkRead(
        former.node.partitions[partition], former.node.client_reads, lambda: None, wanted
    )
    with pytest.raises(FilesError):
        read.pull(1 << 20)
    world.until(lambda: world.leader() not in (None, former))
    assert world.commit(b"three") == 2
    world.until(in_sync(world, 3))
    assert former.log_bytes(partition) == world.leader().log_bytes(partition)


def test_a_broker_that_missed_everything_takes_a_snapshot_and_brings_its_disk_in_line():
    world = ClusterWorld(snapshot_entries=5)
    gone = world.create("gone")
    kept = world.create("kept")
    world.commit(b"old", name="gone")
    world.commit(b"a", name="kept")
    away = next(
        member
        for member in world.alive
        if member is not world.leader("kept") and member is not world.leader("gone")
    )
    away.kill()
    world.until(lambda: len(world.state("kept").isr) == 2)
    world.propose(DeleteStream(name="gone"))
    for number in range(20):
        world.propose(SetReadonly(name="kept", partitions=(0,), readonly=number % 2 == 0))
    new = world.create("new", factor=2)
    world.commit(b"b", name="kept")
    away.restart()
    world.until(lambda: world.is_whole)
    world.until(lambda: len(world.state("kept").isr) == 3)
    world.run(100)
    assert gone not in away.node.partitions
    assert away.store.log(gone) is None
    assert away.log_bytes(kept) == world.leader("kept").log_bytes(kept)
    assert not away.node.partitions[kept].is_readonly
    assert (new in away.node.partitions) == (away.broker in world.state("new").replicas)


def test_readonly_partitions_end_their_readers_on_every_replica(world):
    world.create()
    world.commit(b"one")
    reader = Reader(followers(world)[0], reads_replica=True)
    world.run(20)
    world.propose(SetReadonly(name="s", partitions=(0,), readonly=True))
    world.run(100)
    assert isinstance(reader.end, EndOfStreamError)


def test_replica_that_is_behind_does_not_end_a_readonly_partition(world):
    """The end of its log is not the end of the partition."""
    world.create()
    world.commit(b"one")
    leader, behind = world.leader(), followers(world)[0]
    reader = Reader(behind, reads_replica=True)
    bulk = BulkReader(behind)
    log = behind.node.partitions[world.state().partition_id].log
    world.until(lambda: log.high_watermark == 1)
    world.deaf |= {(leader.broker, behind.broker, Channel.DATA)}
    assert world.commit(b"two") == 1
    world.propose(SetReadonly(name="s", partitions=(0,), readonly=True))
    world.run(100)
    assert behind.node.partitions[world.state().partition_id].is_readonly
    assert isinstance(reader.end, NotLeaderError)
    assert isinstance(bulk.end, NotLeaderError)
    world.deaf.clear()
    world.until(lambda: log.high_watermark == 2 and behind.broker in world.state().isr)
    reader, bulk = Reader(behind, reads_replica=True), BulkReader(behind)
    world.run(100)
    assert isinstance(reader.end, EndOfStreamError)
    assert isinstance(bulk.end, EndOfStreamError)
    assert b"two" in reader.data
    assert b"two" in bulk.data


def test_leader_that_is_cut_off_gives_no_reasons(world):
    """Its log may be another by now: what it refuses was not appended, and another may take it."""
    world.create()
    world.commit(b"one")
    leader, stamp = world.leader(), PublisherStamp(77, 0, 5)
    assert isinstance(world.publish(b"v", publisher=stamp, at=leader).errors[0], NotAppendedError)
    world.cut(leader)
    world.until(lambda: leader.node.cluster.is_self_fenced(world.now))
    assert isinstance(world.publish(b"v", publisher=stamp, at=leader).errors[0], UnavailableError)


def test_messages_of_another_cluster_and_garbage_are_counted_and_nothing_else(world):
    member = world[1]
    header = PeerHeader(
        "another", "b2", "run", 1, 1, Heartbeat(1, b"", want_fence=False, want_shutdown=False)
    )
    peers, link = member.node.cluster.peers, member.node.cluster.link
    member.node.on_peer(Channel.METADATA, open_frame(encode(header)), world.now, world.wall_ns)
    assert peers.foreign_count == 1
    member.node.on_peer(Channel.DATA, b"garbage", world.now, world.wall_ns)
    damaged = bytearray(open_frame(encode(header._replace(cluster_id="cluster"))))
    damaged[-1] ^= 1
    member.node.on_peer(Channel.DATA, bytes(damaged), world.now, world.wall_ns)
    assert link.malformed_count == 2
    assert link.held_bytes == 0


def test_frames_that_are_not_believed_end_no_turn(world, monkeypatch):
    """They may come by the thousand, and what is due is looked up at the end of each turn."""
    node, looked_up = world[1].node, []
    monkeypatch.setattr(type(node), "next_deadline", lambda _: looked_up.append(1))
    heartbeat = Heartbeat(1, b"", want_fence=False, want_shutdown=False)
    for cluster_id, count in (("another", 0), ("cluster", 1)):
        frame = open_frame(encode(PeerHeader(cluster_id, "b2", "run", 1, 1, heartbeat)))
        node.on_peer(Channel.METADATA, frame[:-1], world.now, world.wall_ns)
        node.on_peer(Channel.METADATA, frame, world.now, world.wall_ns)
        assert len(looked_up) == count


def test_a_session_is_spoken_for_only_by_the_start_that_registered_it(world):
    """A heartbeat that asks to stop, in the name of a broker, takes nothing from it."""
    leader = next(member for member in world.members.values() if member.consensus.is_leader)
    other = next(member for member in world.members.values() if member is not leader)
    state = leader.node.state.brokers[other.broker]
    asks = Heartbeat(1, b"", want_fence=False, want_shutdown=True)
    said = PeerHeader("cluster", other.broker, "another", state.broker_epoch, 1, asks)
    leader.node.on_peer(Channel.METADATA, open_frame(encode(said)), world.now, world.wall_ns)
    world.run(100)
    assert leader.node.cluster.impostor_count == 1
    assert not leader.node.state.brokers[other.broker].in_controlled_shutdown


def test_a_default_of_a_broker_does_not_say_when_records_count(world):
    """The stream has the policy of the broker that made it, at all brokers, for good."""
    world.create()
    member = world[1]
    for policy in FsyncPolicy:
        member.node.set_defaults(replace(world.defaults, fsync_policy=policy), world.now)
        partition = next(iter(member.node.partitions.values()))
        assert partition.options.fsync_policy is FsyncPolicy.INTERVAL
    world.propose(AlterStream(name="s", overrides=StreamOverrides(fsync_policy=FsyncPolicy.COMMIT)))
    world.run(100)
    partitions = [one for each in world.members.values() for one in each.node.partitions.values()]
    assert {one.options.fsync_policy for one in partitions} == {FsyncPolicy.COMMIT}


def test_an_idle_cluster_says_little(world):
    for number in range(20):
        world.create(f"s{number}")
    world.run(2_000)
    before = world.carried
    world.run(3_000)
    # Each broker: heartbeats of 150 ms with answers, those of Raft, and one fetch held 0.3 s for
    # each broker it follows, whatever the number of partitions.
    per_second = (world.carried - before) / 3
    assert per_second < 3 * 2 * (1 / 0.15 + 1 / 0.1 + 2 / 0.3)


def test_only_leaders_listen_to_the_subject(world):
    partition = world.create()
    listening = [
        member.broker for member in world.alive if partition in member.messaging.subscriptions
    ]
    assert listening == [world.leader().broker]
    former = world.leader()
    former.node.cluster.session.want_shutdown = True
    world.until(lambda: world.leader() not in (None, former))
    listening = [
        member.broker for member in world.alive if partition in member.messaging.subscriptions
    ]
    assert listening == [world.leader().broker]
    assert former.node.partitions[partition].role is Role.FOLLOWER


def test_a_leader_that_fenced_itself_listens_no_longer(world):
    partition = world.create()
    former = world.leader()
    world.cut(former)
    world.until(lambda: former.node.cluster.is_self_fenced(world.now))
    world.run(100)
    assert former.node.partitions[partition].role is Role.LEADER
    assert partition not in former.messaging.subscriptions


def test_a_retry_after_a_change_of_leaders_is_stored_once(world):
    world.create()
    publisher = world.propose(InitPublisher(stream="s", publisher="p"))
    stamp = PublisherStamp(publisher.publisher_id, publisher.publisher_epoch, 0)
    first = world.publish(b"one", b"two", publisher=stamp)
    world.until(lambda: first.is_answered)
    former = world.leader()
    former.kill()
    world.until(lambda: world.leader() is not None)
    again = world.publish(b"one", b"two", publisher=stamp)
    world.until(lambda: again.is_answered)
    assert again.offset == first.offset == 0
    assert again.stored[0].is_duplicate
    follow_up = world.publish(b"three", publisher=stamp._replace(first_sequence=2))
    world.until(lambda: follow_up.is_answered)
    assert follow_up.offset == 2


def test_a_leader_whose_disk_is_full_hands_over(world):
    partition = world.create()
    world.commit(b"a")
    former = world.leader()
    former.files.fail(Fault("append", "*/*.log", is_full=True))
    refused = world.publish(b"b")
    assert refused.error.code == "STORAGE_FULL"
    world.until(lambda: world.leader() not in (None, former))
    assert world.commit(b"c") == 1
    world.until(in_sync(world, 3))
    assert former.log_bytes(partition) == world.leader().log_bytes(partition)


def test_only_the_leader_pauses_an_idle_partition(world):
    world.create(auto_pause_ms=1_000)
    for _ in range(10):
        world.commit(b"a")
        world.run(300)
    assert not world.state().paused
    world.run(2_500)
    assert world.state().paused
    world.publish_nats("s", b"wakes it up")
    world.run(100)
    assert not world.state().paused
    assert world.leader().node.find_partition("s", 0).log.log_end_offset == 11


def test_nobody_takes_over_from_a_damaged_leader_that_was_alone_in_sync(world):
    partition = world.create(min_isr=1)
    world.commit(b"a")
    leader = world.leader()
    for member in followers(world):
        world.cut(member)
    world.until(lambda: True)
    leader.node.partitions[partition].go_offline("a bit flipped")
    state = world.state()
    world.run(500)
    assert world.state().leader_epoch == state.leader_epoch


def test_an_only_replica_comes_back_by_itself_after_a_crash(world):
    partition = world.create(factor=1)
    world.commit(b"a")
    owner = world.leader()
    owner.kill()
    world.until(lambda: world.state().leader is None)
    owner.restart()
    world.until(lambda: world.leader() is owner)
    world.until(lambda: not world.state().is_recovering)
    assert world.commit(b"b") == 1
    assert owner.node.partitions[partition].replication is None
    assert owner.node.partitions[partition].log.high_watermark == 2


def test_nothing_stops_when_the_metadata_leader_dies_and_leads_no_partition(world):
    name = next(
        name
        for name in ("s", "t", "u", "v")
        if world.create(name) and not world.leader(name).consensus.is_leader
    )
    leader = world.leader(name)
    next(member for member in world.alive if member.consensus.is_leader).kill()
    answers = world.publish(b"a", name=name)
    took = world.until(lambda: answers.is_answered)
    assert answers.offset == 0
    assert took < 3_500
    assert world.leader(name) is leader


def test_a_silent_leader_is_replaced_by_reports_before_its_session_ends(world):
    world.create()
    former = silenced_leader(world)
    took = world.until(lambda: world.leader() not in (None, former))
    assert took < 1_500
    assert former.broker not in [
        broker.broker for broker in world[1].node.state.brokers.values() if broker.fenced
    ]


def test_a_leader_may_be_silent_for_longer_the_more_partitions_have_to_move(world, monkeypatch):
    monkeypatch.setattr(replicas, "MOVE_NS", 250 * MILLISECOND_NS)
    world.create(partitions=12)
    former = silenced_leader(world)
    took = world.until(lambda: world.leader() not in (None, former))
    assert 1_500 < took < 3_000


def silenced_leader(world):
    """Return the leader of the stream, which followers do not hear any more."""
    world.commit(b"a")
    former = world.leader()
    metadata = next(member for member in world.alive if member.consensus.is_leader)
    if former is metadata:
        # Its heartbeats go on while its partitions are not served: only followers can tell.
        other = followers(world)[0]
        former.consensus.transfer(other.broker)
        world.until(lambda: other.consensus.is_leader)
    for member in followers(world):
        world.deaf.add((former.broker, member.broker, Channel.DATA))
    return former


def test_a_damaged_log_tells_what_recovery_verified_of_it(world):
    """Its replica was complete before: without its answer nobody would ever lead again."""
    partition = world.create()
    for number in range(6):
        world.commit(b"%d" % number)
    lagging, damaged = followers(world)
    whole = world.leader()
    lagging.kill()
    world.until(lambda: len(world.state().isr) == 2)
    world.run(2_000)
    for member in (damaged, whole):
        member.kill()
    (segment,) = (path for path in damaged.files.paths("streams") if path.endswith(".log"))
    damaged.files.flip_bit(segment, 0)
    for member in (lagging, whole):
        member.restart()
    world.until(lambda: world.state().last_known_elr == (whole.broker,))
    damaged.restart()
    assert damaged.node.partitions[partition].offline_reason
    world.until(lambda: world.leader() is whole)
    assert world.state().unclean_epoch
    assert whole.node.partitions[partition].log.log_end_offset == 6
    world.until(in_sync(world, 3))
    assert damaged.log_bytes(partition) == whole.log_bytes(partition)
