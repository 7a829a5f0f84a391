"""What a replica tells of its log when nobody leads: its newest epoch and its end (C10)."""

from liftbridge_broker.node.metadata.inquiries import end_of
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.replica_logs import ReplicaLog


def test_end_of_a_log_is_told_with_the_epoch_of_its_last_record():
    told = end_of(PARTITION, ReplicaLog.of((3, 4), (5, 2)))
    assert (told.last_epoch, told.log_end_offset) == (5, 6)


def test_replica_whose_records_retention_removed_holds_no_less_than_before():
    log = ReplicaLog.of((3, 4), high_watermark=4)
    log.set_log_start(4)
    told = end_of(PARTITION, log)
    assert (told.last_epoch, told.log_end_offset) == (3, 4)


def test_leader_without_a_record_of_its_epoch_tells_the_epoch():
    told = end_of(PARTITION, ReplicaLog.of((3, 4), (9, 0)))
    assert (told.last_epoch, told.log_end_offset) == (9, 4)


def test_damaged_log_is_told_as_such():
    log = ReplicaLog.of((3, 4))
    assert not end_of(PARTITION, log).is_damaged
    assert end_of(PARTITION, log, is_damaged=True).is_damaged


def test_log_that_never_held_a_record_has_no_epoch():
    told = end_of(PARTITION, ReplicaLog())
    assert (told.last_epoch, told.log_end_offset) == (None, 0)
