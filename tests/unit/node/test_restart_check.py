"""The comparison of a broker with what its token recorded, record by record."""

import pytest

from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, Offset
from liftbridge_broker.model.steps import finish
from liftbridge_broker.node.upkeep.restart_check import BlockerKind, record_of, verify_restart
from liftbridge_broker.wire.restart import decode_restart, encode_restart
from liftbridge_testkit.cluster_world import ClusterWorld

EXPIRES = 1_000


@pytest.fixture(scope="module")
def world():
    """Two brokers with a stream on both."""
    world = ClusterWorld(2)
    world.create("s", factor=2)
    world.until(lambda: len(world.state("s").isr) == 2)
    return world


def verified(world, *, end, high_watermark=5, was_in_sync=True, broker="b2", **changes):
    """Compare `broker`, whose log ends at `end`, with a record from before its present session."""
    state = world[1].node.state
    own = state.brokers[BrokerId(broker)]
    record = finish(record_of(state, own, lambda _: Offset(high_watermark), EXPIRES))
    before = record.broker_epoch - 1
    held = record.replicas[0]._replace(was_in_sync=was_in_sync)
    record = record._replace(start_id="former", broker_epoch=before, replicas=(held,), **changes)
    record = decode_restart(encode_restart(record))
    ends = {} if end is None else {held.partition_id: Offset(end)}
    return finish(verify_restart(state, own, record, ends, EXPIRES - 1))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (4, "partition 0 of stream s ends at 4, was committed to 5"),
        (None, "partition 0 of stream s is not open"),
    ],
)
def test_log_that_lacks_what_was_committed_is_told(world, end, text):
    found = verified(world, end=end)
    assert [(one.kind, one.text) for one in found.blockers] == [(BlockerKind.BEHIND, text)]


@pytest.mark.parametrize("end", [5, 6])
def test_log_that_has_what_was_committed_is_complete(world, end):
    found = verified(world, end=end)
    assert (found.blockers, found.compared, found.excluded) == ((), 1, 0)


def test_another_directory_is_told(world):
    found = verified(world, end=5, data_dir_id="other")
    assert [one.kind for one in found.blockers] == [BlockerKind.OTHER_DIRECTORY]


def test_replica_that_was_in_sync_must_be_so_again():
    world = ClusterWorld(3)
    world.create("s", factor=3)
    world.until(lambda: len(world.state("s").isr) == 3)
    away = next(n for n in (2, 3) if world.state("s").leader != f"b{n}")
    world[away].kill()
    world.until(lambda: f"b{away}" not in world[1].node.state.partition(
        world.state("s").partition_id).isr)  # fmt: skip
    kinds = [one.kind for one in verified(world, end=5, broker=f"b{away}").blockers]
    assert kinds == [BlockerKind.FENCED, BlockerKind.OUT_OF_SYNC]
    found = verified(world, end=5, broker=f"b{away}", was_in_sync=False)
    assert [one.kind for one in found.blockers] == [BlockerKind.FENCED]


def test_partition_recovered_uncleanly_since_is_left_out(world):
    state = world[1].node.state
    own = state.brokers[BrokerId("b2")]
    record = finish(record_of(state, own, lambda _: Offset(9), EXPIRES))
    held = record.replicas[0]._replace(unclean_epoch=LeaderEpoch(1))
    found = finish(verify_restart(state, own, record._replace(replicas=(held,)), {}, EXPIRES))
    assert (found.compared, found.excluded) == (0, 1)
    assert [one.text for one in found.blockers] == [
        "broker b2 was not restarted, and the token has expired: check again"
    ]
