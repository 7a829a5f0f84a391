"""Several nodes: records reach every replica, and nothing acknowledged is lost."""

import pytest

from liftbridge_broker.adapters.memory.files import Fault
from liftbridge_broker.controller.commands import (
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
    SetCatchUpRate,
    StartReassignment,
)
from liftbridge_broker.errors import (
    LiftbridgeError,
    NoMetadataLeaderError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    UnavailableError,
)
from liftbridge_broker.logformat.batch import walk
from liftbridge_broker.model.ids import Offset, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, StreamOverrides
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.directory import JOURNAL
from liftbridge_broker.storage.journal import parse_journal
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import envelope


@pytest.fixture
def world():
    return ClusterWorld()


def values_of(world, number, name="s"):
    """Committed values as a reader of the replica sees them."""
    log = world.replica(number, name).log
    reader = log.reader(log.log_start_offset)
    data = b"".join(bytes(piece) for piece in reader.read(1 << 20, log.high_watermark).slices)
    reader.close()
    return data


def is_in_sync(world, count, name="s"):
    return lambda: len(world.state(name).isr) == count and world.leader(name) is not None


def logs_agree(world, partition):
    def agree():
        logs = {
            member.log_bytes(partition)
            for member in world.alive
            if partition in member.node.partitions
        }
        return len(logs) == 1

    return agree


def test_acknowledged_records_are_on_every_log(world):
    partition = world.create()
    assert world.commit(b"a", b"b") == 0
    assert world.commit(b"c") == 2
    world.run(50)
    assert logs_agree(world, partition)()
    for number in (1, 2, 3):
        log = world.replica(number).log
        assert (log.log_end_offset, log.high_watermark) == (3, 3)


def test_nothing_is_acknowledged_by_all_while_followers_are_cut_off(world):
    world.create()
    leader = world.leader()
    world.cut(leader)
    everybody = world.publish(b"a")
    alone = world.publish(b"b", policy=POLICY_LEADER)
    world.run(300)
    assert alone.offset == 1
    assert not everybody.is_answered


def test_another_leads_after_a_kill_and_has_all_that_was_acknowledged(world):
    partition = world.create()
    for number in range(10):
        world.commit(b"%d" % number)
    former = world.leader()
    former.kill()
    took = world.until(lambda: world.leader() is not None)
    assert took < 3_500  # a session, an election of the metadata leader, and some
    assert world.leader() is not former
    assert world.commit(b"after") == 10
    former.restart()
    world.until(is_in_sync(world, 3))
    assert logs_agree(world, partition)()


def test_what_the_dead_leader_alone_had_is_cut_when_it_comes_back(world):
    partition = world.create()
    world.commit(b"a")
    former = world.leader()
    world.cut(former)
    lost = world.publish(b"lost", policy=POLICY_LEADER)
    world.run(20)
    assert lost.offset == 1
    former.kill()
    world.heal()
    world.until(lambda: world.leader() is not None)
    assert world.commit(b"b", b"c") == 1
    former.restart()
    world.until(is_in_sync(world, 3))
    assert logs_agree(world, partition)()
    assert b"lost" not in former.log_bytes(partition)
    assert [kind for kind, _ in former.told].count("log_truncated") == 1


def test_a_leader_that_is_cut_off_fences_itself_and_tells_its_publishers_nothing_wrong(world):
    world.create()
    world.commit(b"a")
    former = world.leader()
    world.cut(former)
    owed = world.publish(b"owed", at=former)
    world.run(2_600)  # it leads the metadata too, and answers itself until it misses its quorum
    assert former.node.cluster.is_self_fenced(world.now)
    refused = world.publish(b"refused", at=former, policy=POLICY_LEADER)
    assert isinstance(refused.error, UnavailableError)
    assert not owed.is_answered
    world.until(lambda: world.leader() is not None and world.leader() is not former)
    world.commit(b"b")
    world.heal()
    world.until(is_in_sync(world, 3))
    assert isinstance(owed.error, OutcomeUnknownError)
    assert values_of(world, 1) == values_of(world, 2) == values_of(world, 3)


def test_the_in_sync_set_shrinks_without_a_follower_and_grows_with_it(world):
    partition = world.create()
    follower = next(member for member in world.alive if member is not world.leader())
    follower.kill()
    answers = world.publish(b"a")
    took = world.until(lambda: answers.is_answered)
    assert answers.offset == 0
    assert took < 2_500
    assert follower.broker not in world.state().isr
    follower.restart()
    world.until(is_in_sync(world, 3))
    assert logs_agree(world, partition)()


@pytest.mark.parametrize("is_of_the_cluster", [False, True], ids=["stream", "cluster"])
def test_too_few_replicas_in_sync_refuse_acks_of_all_before_anything_is_stored(
    world, is_of_the_cluster
):
    command = CreateStream(
        name=StreamName("s"),
        subject="s",
        partitions=1,
        replication_factor=3,
        overrides=StreamOverrides() if is_of_the_cluster else StreamOverrides(min_isr=3),
    )
    defaults = StreamOptions(min_isr=3) if is_of_the_cluster else StreamOptions()
    assert not isinstance(world.propose(command.with_defaults(defaults)), LiftbridgeError)
    world.until(lambda: world.leader() is not None)
    world.commit(b"a")
    leader = world.leader()
    behind = next(member for member in world.alive if member is not leader)
    # Whoever leads the metadata must be heard: the partition's leader stays the same.
    world.deaf |= {(leader.broker, behind.broker, Channel.DATA)}
    answers = world.publish(b"nobody waits for it", policy=POLICY_LEADER)
    world.until(is_in_sync(world, 2))
    log = world.leader().node.find_partition("s", 0).log
    end = log.log_end_offset
    refused = world.publish(b"b")
    assert isinstance(refused.error, NotEnoughReplicasError)
    assert refused.error.text == "not appended: 2 replicas in sync, 3 needed"
    assert (log.log_end_offset, answers.is_answered) == (end, True)
    world.heal()
    world.until(is_in_sync(world, 3))
    assert world.commit(b"c") == end


def test_min_isr_is_enforced(world):
    world.create(min_isr=3)
    world.commit(b"a")
    follower = next(member for member in world.alive if member is not world.leader())
    follower.kill()
    world.until(lambda: len(world.state().isr) == 2 and world.leader() is not None)
    log = world.leader().node.find_partition("s", 0).log
    answers = world.publish(b"b")
    assert isinstance(answers.error, NotEnoughReplicasError)
    assert log.log_end_offset == 1
    assert world.publish(b"c", policy=POLICY_LEADER).offset == 1
    assert log.high_watermark == 1
    follower.restart()
    world.until(is_in_sync(world, 3))
    world.until(lambda: log.high_watermark == 2)


def test_reload_of_settings_below_min_isr_refuses_no_message_for_its_neighbour(world):
    world.create(min_isr=3)
    world.commit(b"a")
    next(member for member in world.alive if member is not world.leader()).kill()
    world.until(lambda: len(world.state().isr) == 2 and world.leader() is not None)
    node = world.leader().node
    node.set_defaults(node.context.options.defaults, world.now)
    partition = node.find_partition("s", 0)
    asked = envelope(b"b", ackInbox="i", ackPolicy=POLICY_ALL)
    subscription = SubscriptionId(partition.partition_id)
    arrivals = [Arrival("s", "", b"")] * 2
    node.on_messages(subscription, arrivals, [asked, b"c"], world.now, world.wall_ns)
    (ack,) = world.leader().messaging.acks("i")
    assert ack.refusal == "not appended: 2 replicas in sync, 3 needed"
    assert partition.log.log_end_offset == 2


def test_plain_messages_below_min_isr_are_stored_in_one_batch(world):
    world.create(min_isr=3)
    world.commit(b"a")
    next(member for member in world.alive if member is not world.leader()).kill()
    world.until(lambda: len(world.state().isr) == 2 and world.leader() is not None)
    node = world.leader().node
    partition = node.find_partition("s", 0)
    arrivals, payloads = [Arrival("s", "", b"")] * 1_000, [b"b"] * 1_000
    node.on_messages(
        SubscriptionId(partition.partition_id), arrivals, payloads, world.now, world.wall_ns
    )
    stored = partition.log.read_batches(Offset(1), 1 << 20, partition.log.log_end_offset)
    assert [header.count for _, header in walk(stored, 0, len(stored))] == [1_000]


def test_a_stop_in_order_hands_over_first(world):
    world.create()
    world.commit(b"a")
    former = world.leader()
    former.node.cluster.session.want_shutdown = True
    took = world.until(lambda: former.node.cluster.session.may_stop)
    assert took < 1_500
    assert world.leader() is not former
    former.stop()
    assert world.commit(b"b") == 1
    former.restart()
    world.until(is_in_sync(world, 3))


def test_a_stop_goes_on_as_soon_as_the_others_have_what_acks_wait_for(world):
    world.create(fsync_policy=FsyncPolicy.NEVER)
    owed = world.publish(b"a")
    settled = []
    world.leader().node.begin_stop(lambda: settled.append(owed.is_answered))
    assert not settled
    assert world.until(lambda: bool(settled)) < 100
    assert settled == [True]


def test_deleted_streams_go_from_every_disk(world):
    partition = world.create()
    world.commit(b"a")
    world.propose(DeleteStream(name="s"))
    world.run(300)
    for member in world.alive:
        assert partition not in member.node.partitions
        assert member.store.log(partition) is None


def test_a_stream_deleted_while_a_broker_is_away_goes_when_it_is_back(world):
    partition = world.create()
    world.commit(b"a")
    away = world[3]
    away.kill()
    world.until(lambda: world.leader() is not None)
    world.propose(DeleteStream(name="s"))
    world.run(100)
    away.restart()
    world.until(lambda: world.is_whole)
    world.run(300)
    assert partition not in away.node.partitions


def test_a_pause_stops_intake_and_nothing_else(world):
    partition = world.create()
    world.commit(b"a")
    world.propose(PauseStream(name="s"))
    world.run(200)
    assert all(member.node.partitions[partition].is_paused for member in world.alive)
    world.propose(ResumeStream(name="s", partitions=(0,)))
    world.run(200)
    assert world.commit(b"b") == 1
    follower = next(member for member in world.alive if member is not world.leader())
    follower.kill()
    answers = world.publish(b"c")
    world.until(lambda: answers.is_answered)
    assert answers.offset == 2


def test_all_brokers_come_back_after_a_power_cut_with_what_was_flushed(world):
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    for number in range(5):
        world.commit(b"%d" % number)
    for member in list(world.alive):
        member.kill(power_cut=True)
    for member in world.members.values():
        member.restart()
    world.until(lambda: world.is_whole)
    world.until(is_in_sync(world, 3))
    assert world.commit(b"after") == 5
    world.run(50)
    assert logs_agree(world, partition)()


def test_all_brokers_killed_at_once_come_back(world):
    partition = world.create()
    world.commit(b"a", b"b")
    for member in list(world.alive):
        member.kill()
    for member in world.members.values():
        member.restart()
    world.until(lambda: world.is_whole)
    world.until(is_in_sync(world, 3))
    assert world.commit(b"after") == 2
    world.run(50)
    assert logs_agree(world, partition)()


def test_a_publish_elsewhere_goes_to_the_leader_and_its_ack_comes_back(world):
    world.create()
    other = next(member for member in world.alive if member is not world.leader())
    answers = world.publish(b"a", at=other)
    world.until(lambda: answers.is_answered)
    assert answers.offset == 0
    with pytest.raises(NotLeaderError, match="Server not partition leader"):
        other.node.find_partition("s", 0)
    assert other.node.find_replica("s", 0).role is Role.FOLLOWER


def test_messages_of_nats_are_stored_once_by_whoever_leads(world):
    partition = world.create()
    world.publish_nats("s", b"plain")
    world.run(100)
    assert logs_agree(world, partition)()
    former = world.leader()
    former.kill()
    world.until(lambda: world.leader() is not None)
    world.publish_nats("s", b"again")
    assert world.leader().node.find_partition("s", 0).log.log_end_offset == 2


def test_replicas_move_to_another_broker_while_in_use():
    world = ClusterWorld(size=4)
    partition = world.create(factor=3)
    world.commit(b"a")
    state = world.state()
    spare = next(broker for broker in world.members if broker not in state.replicas)
    target = (spare, *state.replicas[1:])
    outcome = world.propose(StartReassignment(partition_id=partition, target=target))
    assert not isinstance(outcome, LiftbridgeError), outcome
    world.commit(b"b")
    world.until(lambda: not world.state().is_reassigning)
    assert set(world.state().isr) == set(target)
    world.until(lambda: world.leader() is not None)
    assert world.commit(b"c") == 2
    world.run(100)
    removed = world.members[state.replicas[0]]
    assert partition not in removed.node.partitions
    assert removed.store.log(partition) is None
    assert logs_agree(world, partition)()


def test_without_a_metadata_leader_changes_are_refused_in_the_words_of_the_original(world):
    lone = world.alive[0]
    world.cut(lone)
    world.until(lambda: lone.consensus.leader is None)
    command = CreateStream(name=StreamName("new"), subject="new")
    outcome = world.propose(command, at=lone)
    assert isinstance(outcome, NoMetadataLeaderError)
    assert outcome.text == "no known metadata leader"
    world.heal()
    world.until(lambda: lone.consensus.leader is not None)
    assert lone.node.state.stream("new") is None


def test_a_bounded_move_takes_its_time_and_slows_nobody_else():
    world = ClusterWorld(size=4)
    partition = world.create(factor=3)
    for number in range(20):
        world.commit(bytes([number]) * 50_000)  # 1 MB
    world.propose(SetCatchUpRate(bytes_per_second=200_000))
    state = world.state()
    spare = next(broker for broker in world.members if broker not in state.replicas)
    target = (spare, *state.replicas[1:])
    world.propose(StartReassignment(partition_id=partition, target=target))
    world.run(2_500)
    copied = world.members[spare].store.log(partition).log_end_offset
    assert 0 < copied < 18
    world.commit(b"meanwhile")
    # The limit is taken back, and what waited goes on at once.
    world.propose(SetCatchUpRate(bytes_per_second=0))
    world.until(lambda: not world.state().is_reassigning, milliseconds=2_000)
    world.run(100)
    assert logs_agree(world, partition)()


def test_an_only_replica_gets_others_without_a_pause_in_service(world):
    partition = world.create(factor=1)
    world.commit(b"a")
    state = world.state()
    outcome = world.propose(
        StartReassignment(partition_id=partition, target=tuple(sorted(world.members)))
    )
    assert not isinstance(outcome, LiftbridgeError), outcome
    assert world.commit(b"b") == 1
    world.until(lambda: len(world.state().isr) == 3 and not world.state().is_reassigning)
    world.until(lambda: world.leader() is not None)
    assert state.leader in world.state().isr
    assert world.commit(b"c") == 2
    world.run(100)
    assert logs_agree(world, partition)()


@pytest.mark.parametrize("values", [(), (b"a",)], ids=["empty", "with records"])
def test_an_only_replica_journals_its_epoch_before_others_hear_of_it(world, values):
    partition_id = world.create(factor=1)
    for value in values:
        world.commit(value)
    target = tuple(sorted(world.members))
    outcome = world.propose(StartReassignment(partition_id=partition_id, target=target))
    assert not isinstance(outcome, LiftbridgeError), outcome
    leader = world.leader()
    partition = leader.node.partitions[partition_id]
    world.until(lambda: partition.replication is not None and partition.replication.is_ready)
    journal = parse_journal(leader.files.durable_content(JOURNAL))
    epochs = dict(journal.states[partition_id].epochs)
    assert epochs == {partition.leader_epoch: 0}


def test_followers_get_a_short_append_that_is_not_read_back(world):
    partition = world.create()
    world.commit(b"a")
    world.leader().files.fail(Fault("read", "*/*.log", count=-1))
    assert world.commit(b"b" * 1_000) == 1
    world.leader().files.heal()
    world.run(50)
    assert logs_agree(world, partition)()


def test_short_appends_in_memory_are_those_of_followers_that_have_what_is_before(world):
    """A follower that lacks more than the last append gets all of it, in order."""
    partition = world.create()
    world.commit(b"a")
    leader = world.leader()
    behind = next(member for member in world.alive if member is not leader)
    world.deaf |= {(leader.broker, behind.broker, Channel.DATA)}
    for value in (b"b", b"c", b"d"):
        answers = world.publish(value, policy=POLICY_LEADER)
        world.until(lambda answers=answers: answers.is_answered)
    world.deaf.clear()
    world.until(logs_agree(world, partition))
    assert leader.node.partitions[partition].log.log_end_offset == 4
