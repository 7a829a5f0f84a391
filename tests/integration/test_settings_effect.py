"""Settings that bound something: each one is seen to bound it, also when it changes at work."""

from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import LeaderEpoch, MetadataIndex, Offset, PublisherId
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_testkit.lone_metadata import commit, open_lone
from liftbridge_testkit.memory_files import MemoryFiles
from liftbridge_testkit.node_world import NodeWorld


def test_as_many_metadata_snapshots_are_kept_as_the_setting_says() -> None:
    for kept in (1, 2, 4):
        files = MemoryFiles()
        log, _ = open_lone(files, snapshots_kept=kept)
        for number in range(1, 8):
            index = commit(files, log, number)
            log.snapshot(MetadataIndex(index), b"state %d" % number)
        names = [name for name in files.list("metadata") if name.endswith(".snapshot")]
        assert len(names) == kept
        assert names[-1] == f"{log.snapshot_index:020}.snapshot"


class Batch:
    """Header of a batch of one record by one publisher."""

    def __init__(self, publisher: int, offset: int, timestamp: int) -> None:
        self.publisher_id = PublisherId(publisher)
        self.publisher_epoch = 0
        self.first_sequence = 0
        self.base_offset = Offset(offset)
        self.last_offset = Offset(offset)
        self.count = 1
        self.largest_timestamp = timestamp
        self.leader_epoch = LeaderEpoch(1)


def test_publishers_beyond_a_lowered_limit_are_forgotten() -> None:
    table = PublisherTable(publishers_max=10, ttl_ns=1_000)
    for number in range(10):
        table.replay(Batch(number + 1, number, number))
    assert len(table) == 10
    table.set_limits(publishers_max=3, ttl_ns=1_000)
    table.replay(Batch(11, 10, 10))
    assert len(table) == 3
    table.set_limits(publishers_max=3, ttl_ns=5)
    table.replay(Batch(12, 11, 100))
    assert len(table) == 1


def test_histogram_of_acks_counts_messages_and_sums_times() -> None:
    times = Histogram(bounds=(10, 20))
    times.observe(5, 3)
    times.observe(20)
    times.observe(21)
    assert times.counts == [3, 1, 1]
    assert times.total == 15 + 20 + 21


def test_publishers_are_held_back_while_too_much_waits_for_its_acks() -> None:
    world = NodeWorld()
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    node = world.node
    node.set_limits(
        publishers_max=1,
        publisher_ttl_ns=1,
        unanswered_bytes_max=100,
        consumer_timeout_ns=SECOND_NS,
        coordinator_timeout_ns=SECOND_NS,
    )
    world.publish(partition, bytes(100))
    assert (node.context.unanswered_bytes, node.is_congested) == (100, False)
    world.publish(partition, b"v")
    assert (node.context.unanswered_bytes, node.is_congested) == (101, True)
    world.settle()
    assert (node.context.unanswered_bytes, node.is_congested) == (0, False)


def test_acks_that_are_given_up_hold_nobody_back() -> None:
    world = NodeWorld()
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    world.publish(partition, b"value")
    partition.go_offline("test")
    assert world.node.context.unanswered_bytes == 0
    world.publish(partition, b"one", b"two")
    assert world.node.context.refused_counts == {"PARTITION_OFFLINE": 2}
