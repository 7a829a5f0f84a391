"""A log whose offsets are used up takes no more, is read as before, and harms nobody else.

No client brings a log there (`api.batch_run`), but one of a former version may be there.
"""

import pytest

from liftbridge_broker.errors import ReadonlyError
from liftbridge_broker.model.ids import OFFSET_MAX
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import Answers, NodeWorld

LAST = OFFSET_MAX - 1


def filled(world: NodeWorld, *, left: int = 0) -> Partition:
    """A partition with so many offsets left."""
    partition = world.create()
    assert world.publish(partition, b"last", offsets=[LAST - left]).offset == LAST - left
    return partition


def is_refused(answers: Answers) -> bool:
    return isinstance(answers.error, ReadonlyError) and str(LAST) in answers.error.text


@pytest.mark.parametrize("left", [0, 1, 2])
def test_publishes_that_need_more_offsets_than_are_left_are_refused(
    world: NodeWorld, left: int
) -> None:
    partition = filled(world, left=left)
    assert is_refused(world.publish(partition, *[b"v"] * (left + 1)))
    assert is_refused(world.publish(partition, b"v", offsets=[OFFSET_MAX]))
    assert partition.log.log_end_offset == OFFSET_MAX - left
    if left:
        assert world.publish(partition, *[b"v"] * left).offset == OFFSET_MAX - left
        assert is_refused(world.publish(partition, b"v"))


def test_messages_of_nats_are_not_stored_when_no_offset_is_left(world: NodeWorld) -> None:
    partition = filled(world)
    world.deliver(partition.subject, b"plain")
    assert world.values(partition) == {LAST: b"last"}


def test_what_an_idempotent_publisher_stored_last_is_a_duplicate(world: NodeWorld) -> None:
    partition = filled(world, left=1)
    publisher = world.init_publisher()
    stamp = PublisherStamp(publisher.publisher_id, publisher.publisher_epoch, 0)
    assert world.publish(partition, b"v", publisher=stamp).offset == LAST
    assert world.publish(partition, b"v", publisher=stamp).stored[0].is_duplicate
    assert is_refused(world.publish(partition, b"v", publisher=stamp._replace(first_sequence=1)))


def test_broker_starts_with_such_a_log_and_serves_it(world: NodeWorld) -> None:
    filled(world)
    world.kill()
    partition = world.partition()
    assert world.values(partition) == {LAST: b"last"}
    assert is_refused(world.publish(partition, b"v"))
    assert world.publish(world.create("other"), b"v").offset == 0


def test_followers_copy_such_a_log_and_one_of_them_leads_it() -> None:
    world = ClusterWorld()
    world.create()
    stored = world.publish(b"last", offsets=[LAST])
    world.until(lambda: bool(stored.stored))
    former = world.leader()
    assert former is not None
    former.kill()
    world.until(lambda: world.leader() not in (None, former))
    assert is_refused(world.publish(b"v", policy=POLICY_LEADER))
    former.start()
    world.until(lambda: len(world.state().isr) == 3)
    assert {world.replica(number).log.log_end_offset for number in (1, 2, 3)} == {OFFSET_MAX}
