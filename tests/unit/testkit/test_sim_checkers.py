"""Each checker of the simulator accepts a sound history and sees the one thing it is there for."""

import pytest

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition.runs import POLICY_ALL
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.checkers import all_checkers
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.history import FinalLog, History, Record

HERE = PartitionId(1 << 24)


@pytest.fixture
def history():
    history = History(Coverage())
    history.checkers = all_checkers(history)
    return history


@pytest.fixture
def publisher(history):
    return history.new_publisher()


def write(history, publisher, **fields):
    return history.invoke(publisher, HERE, 0, policy=POLICY_ALL, **fields)


def ack(history, one, offset):
    history.acked(one, 1, offset=offset, leader_epoch=1, is_committed=True)


def acked(history, publisher, offset, **fields):
    one = write(history, publisher, **fields)
    ack(history, one, offset)
    return one


def log(*writes, start=0, is_compacted=False):
    records = [Record(start + at, one.key, one.name) for at, one in enumerate(writes)]
    return FinalLog(HERE, start, start + len(writes), records, is_compacted)


def record(one, offset):
    return Record(offset, one.key, one.name)


def expect_broken(name):
    return pytest.raises(BrokenInvariantError, match=f"^{name}: ")


def test_sound_history_is_accepted(history, publisher):
    stored = [acked(history, publisher, offset) for offset in range(3)]
    unknown = write(history, publisher)
    history.unknown(unknown)
    history.refused(write(history, publisher), 1)
    for offset, one in enumerate(stored):
        history.seen(HERE, "reader", record(one, offset))
    history.check_end(log(*stored, unknown))
    assert history.coverage.counts["client", "acked record"] == 3


def test_lost_ack_is_seen(history, publisher):
    first = acked(history, publisher, 0)
    acked(history, publisher, 1)
    with expect_broken("I10|I13"):
        history.check_end(log(first))


def test_acked_record_that_changed_is_seen(history, publisher):
    acked(history, publisher, 0)
    other = write(history, publisher)
    with expect_broken("I10|I13"):
        history.check_end(log(other))


def test_loss_that_is_allowed_is_accepted(history, publisher):
    first = acked(history, publisher, 0)
    acked(history, publisher, 1)
    history.may_lose(HERE, 1)
    again = acked(history, publisher, 1)
    history.seen(HERE, "reader", record(again, 1))
    history.check_end(log(first, again))
    assert again.offset == 1


def test_loss_below_what_is_allowed_is_seen(history, publisher):
    acked(history, publisher, 0)
    history.may_lose(HERE, 1)
    with expect_broken("I10|I13"):
        history.check_end(log())


def test_retention_explains_what_is_gone(history, publisher):
    acked(history, publisher, 0)
    second = acked(history, publisher, 1)
    history.check_end(log(second, start=1))
    assert second.offset == 1


def test_compaction_explains_an_older_record_of_a_key(history, publisher):
    acked(history, publisher, 0, key=b"k")
    newest = acked(history, publisher, 1, key=b"k")
    compacted = FinalLog(HERE, 0, 2, [record(newest, 1)], is_compacted=True)
    history.check_end(compacted)
    with expect_broken("I10|I13"):
        history.check_end(FinalLog(HERE, 0, 2, [], is_compacted=True))


def test_two_acks_of_one_offset_are_seen(history, publisher):
    one, other = write(history, publisher), write(history, publisher)
    ack(history, one, 5)
    with expect_broken("offsets"):
        ack(history, other, 5)


def test_ack_behind_an_earlier_one_in_real_time_is_seen(history, publisher):
    acked(history, publisher, 5)
    later = write(history, publisher)
    with expect_broken("realtime"):
        ack(history, later, 4)


def test_concurrent_writes_may_be_stored_in_any_order(history, publisher):
    early, late = write(history, publisher), write(history, publisher)
    ack(history, late, 0)
    ack(history, early, 1)
    assert early.offset > late.offset


def test_other_offset_than_the_expected_one_is_seen(history, publisher):
    one = write(history, publisher, expected_offset=3)
    with expect_broken("expected"):
        ack(history, one, 4)


def test_record_that_changes_under_a_reader_is_seen(history, publisher):
    one, other = write(history, publisher), write(history, publisher)
    history.seen(HERE, "first", record(one, 0))
    with expect_broken("I10"):
        history.seen(HERE, "second", record(other, 0))


def test_reader_that_goes_back_is_seen(history, publisher):
    one = acked(history, publisher, 0)
    history.seen(HERE, "reader", record(one, 0))
    with expect_broken("I10"):
        history.seen(HERE, "reader", record(one, 0))


def test_record_that_a_reader_skipped_is_seen(history, publisher):
    stored = [acked(history, publisher, offset) for offset in range(3)]
    history.seen(HERE, "reader", record(stored[0], 0))
    history.seen(HERE, "reader", record(stored[2], 2))
    with expect_broken("readers"):
        history.check_end(log(*stored))


def test_reader_skips_what_retention_removed_where_it_read(history, publisher):
    """Another replica may have kept it: it did not hear of that before its leader was cut off."""
    stored = [acked(history, publisher, offset) for offset in range(3)]
    history.seen(HERE, "reader", record(stored[0], 0), 0)
    history.seen(HERE, "reader", record(stored[2], 2), 2)
    history.check_end(log(*stored))


def test_reader_that_skips_more_than_retention_removed_is_seen(history, publisher):
    """That the log begins behind the gap in the end is no excuse."""
    stored = [acked(history, publisher, offset) for offset in range(4)]
    history.seen(HERE, "reader", record(stored[0], 0), 0)
    history.seen(HERE, "reader", record(stored[3], 3), 2)
    with expect_broken("readers"):
        history.check_end(log(stored[3], start=3))


def test_read_record_that_goes_away_is_seen(history, publisher):
    one = write(history, publisher)
    history.seen(HERE, "reader", record(one, 0))
    with expect_broken("I10"):
        history.check_end(log())


def test_record_that_nobody_published_is_seen(history):
    with expect_broken("published"):
        history.seen(HERE, "reader", Record(0, b"", b"forged"))


def test_record_of_another_partition_is_seen(history, publisher):
    stranger = history.invoke(publisher, PartitionId(2 << 24), 0, policy=POLICY_ALL)
    with expect_broken("published"):
        history.check_end(log(stranger))


def test_refused_record_that_is_stored_is_seen(history, publisher):
    one = write(history, publisher)
    history.refused(one, 1)
    with expect_broken("refused"):
        history.check_end(log(one))


def test_record_stored_twice_is_seen(history, publisher):
    one = write(history, publisher)
    history.unknown(one)
    with expect_broken("I18"):
        history.check_end(log(one, one))


def test_messages_of_an_idempotent_publisher_out_of_order_are_seen(history, publisher):
    first = write(history, publisher, is_idempotent=True)
    second = write(history, publisher, is_idempotent=True)
    with expect_broken("I19"):
        history.check_end(log(second, first))
