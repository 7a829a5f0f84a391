"""What the operator asks about streams, asked of brokers that run as processes."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.streams import actions as act
from liftbridge_operator.streams.changing import change
from liftbridge_operator.streams.decide import decide_stream
from liftbridge_operator.streams.grpc_streams import GrpcStreams
from liftbridge_operator.streams.observation import ClusterState, Seen, SeenCluster
from liftbridge_operator.streams.port import ChangedError, RefusedError, SilentError
from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.older_broker import older_broker
from liftbridge_testkit.streams_memory import resource

WAIT_SECONDS = 20.0
MARK = "streams.liftbridge.io/shop/orders/uid-1"

_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    """Three brokers; the tests leave them as they are."""
    config = {"cursors.stream.partitions": 1}
    with ClusterKit(tmp_path_factory.mktemp("cluster"), config=config) as running:
        yield running


@pytest.fixture
async def brokers(cluster):
    """The brokers as the operator sees them."""
    made = GrpcStreams([endpoint(cluster, name) for name in cluster.brokers])
    yield made
    await made.close()


@pytest.fixture
def name():
    """A stream of the test's own."""
    return f"s{next(_numbers)}"


def endpoint(cluster, broker):
    return Endpoint(broker, cluster[broker].admin_address)


async def create(brokers, name, **changes):
    given = {"subject": name, "group": "", "partitions": 1, "factor": 3, "settings": {}}
    return await brokers.create(name, **{**given, **changes})


async def until(brokers, name, is_so):
    """The stream once it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = (await brokers.streams()).get(name)
            if found is not None and is_so(found):
                return found


SETTINGS = {
    "retention_max_bytes": 1 << 30,
    "retention_max_messages": 5,
    "retention_max_age": 60_000,
    "cleaner_interval": 30_000,
    "segment_max_bytes": 1 << 20,
    "segment_max_age": 45_000,
    "compact_enabled": True,
    "compact_max_goroutines": 3,
    "tombstone_retention": 120_000,
    "auto_pause_time": 90_000,
    "auto_pause_disable_if_subscribers": True,
    "min_isr": 1,
    "optimistic_concurrency_control": True,
    "encryption": False,
    "fsync_policy": "commit",
    "unclean_mode": "manual",
    "retention_cursor": "archive",
    "retention_cursor_max_bytes": 1 << 40,
    "ack_reply": True,
}


async def test_created_stream_is_seen_with_everything_it_was_given(brokers, name):
    stream_id = await create(brokers, name, group="g", partitions=2, settings=SETTINGS)
    found = await until(brokers, name, lambda one: len(one.partitions) == 2)
    assert (found.stream_id, found.subject, found.group) == (stream_id, name, "g")
    assert (found.factor, found.partition_count, found.owner) == (3, 2, "")
    assert found.settings == SETTINGS
    assert [one.number for one in found.partitions] == [0, 1]
    assert all(one.leader in one.replicas and len(one.replicas) == 3 for one in found.partitions)
    assert not any(one.is_readonly or one.is_moving for one in found.partitions)


async def test_streams_of_the_brokers_themselves_are_not_seen(brokers, name):
    await create(brokers, name)
    assert name in await brokers.streams()
    assert not [one for one in await brokers.streams() if one.startswith("__")]


async def test_mark_is_compared_and_set(brokers, name):
    stream_id = await create(brokers, name)
    await brokers.mark(name, stream_id, expected="", owner=MARK)
    assert (await brokers.streams())[name].owner == MARK
    with pytest.raises(ChangedError):
        await brokers.mark(name, stream_id, expected="", owner="another")
    with pytest.raises(ChangedError):
        await brokers.mark(name, stream_id + 1, expected=MARK, owner="")
    await brokers.mark(name, stream_id, expected=MARK, owner="")
    assert (await brokers.streams())[name].owner == ""


async def test_settings_replicas_and_the_read_only_flag_change(brokers, name):
    await create(brokers, name, factor=1, partitions=2)
    await brokers.alter(name, {"retention_max_bytes": 9, "min_isr": 2}, factor=3)
    found = await until(
        brokers, name, lambda one: all(part.in_sync == 3 for part in one.partitions)
    )
    assert (found.factor, found.settings["retention_max_bytes"]) == (3, 9)
    assert found.settings["min_isr"] == 2
    await brokers.alter(name, {}, factor=2)
    found = await until(
        brokers, name, lambda one: all(len(part.replicas) == 2 for part in one.partitions)
    )
    assert found.factor == 2
    await brokers.set_readonly(name, is_readonly=True)
    assert all(one.is_readonly for one in (await brokers.streams())[name].partitions)
    await brokers.set_readonly(name, is_readonly=False)
    assert not any(one.is_readonly for one in (await brokers.streams())[name].partitions)


async def test_messages_are_counted_by_the_leaders(cluster, brokers, name):
    await create(brokers, name, partitions=3)
    found = await until(brokers, name, lambda one: all(part.leader for part in one.partitions))
    assert await brokers.count_messages(found) == 0
    for part in found.partitions:
        with cluster[part.leader].channel() as channel:
            request = api_pb2.PublishRequest(
                stream=name, partition=part.number, value=b"v", ackPolicy=api_pb2.ALL
            )
            api(channel).Publish(request, timeout=WAIT_SECONDS)
    assert await brokers.count_messages(found) == 3
    unled = found._replace(partitions=(found.partitions[0]._replace(leader=""),))
    assert await brokers.count_messages(unled) is None


async def test_refusals_and_changes_by_others_are_told_apart(brokers, name):
    with pytest.raises(RefusedError, match="replicationFactor 9"):
        await create(brokers, name, factor=9)
    with pytest.raises(RefusedError, match="segmentMaxBytes"):
        await create(brokers, name, settings={"segment_max_bytes": -1})
    await create(brokers, name)
    with pytest.raises(ChangedError):
        await create(brokers, name)
    await brokers.delete(name)
    with pytest.raises(ChangedError):
        await brokers.delete(name)
    with pytest.raises(ChangedError):
        await brokers.alter(name, {"min_isr": 1}, factor=0)
    assert name not in await brokers.streams()


async def test_setting_that_a_broker_passes_over_is_a_refusal():
    async with older_broker() as address:
        brokers = GrpcStreams([Endpoint("older", address)])
        with pytest.raises(RefusedError, match=r"config\.retentionCursor archive is not in force"):
            await brokers.alter("s", {"retention_cursor": "archive"}, factor=0)
        with pytest.raises(RefusedError, match=r"config\.ackReply True is not in force"):
            await brokers.alter("s", {"ack_reply": True}, factor=0)
        await brokers.alter("s", {"retention_cursor": "", "ack_reply": False}, factor=0)
        await brokers.close()


async def test_broker_that_is_away_is_left_for_the_next(cluster, brokers, name):
    await create(brokers, name)
    gone = Endpoint("gone", "127.0.0.1:1")
    others = GrpcStreams([gone, endpoint(cluster, "b2")])
    assert name in await others.streams()
    await others.close()
    nobody = GrpcStreams([gone])
    with pytest.raises(SilentError):
        await nobody.streams()
    await nobody.close()


async def test_what_was_decided_is_so_afterwards_and_nothing_is_left_to_do(brokers, name):
    spec = {
        "streamName": name,
        "subject": name,
        "partitions": 2,
        "readonly": True,
        "config": {
            "retentionMaxAge": "36h",
            "retentionMaxBytes": "10Gi",
            "segmentMaxAge": "1h30m",
            "minISR": 0,
            "compactEnabled": True,
            "fsyncPolicy": "auto",
            "uncleanMode": "balanced",
            "tombstoneRetention": "90s",
        },
    }
    made = resource(spec=spec)
    done = []
    for _ in range(6):
        found = (await brokers.streams()).get(name)
        look = Seen(SeenCluster("shop/c", ClusterState.PRESENT), found)
        action = decide_stream(made, look).action
        if action is None:
            break
        done.append(type(action))
        await change(brokers, made, action)
    assert done == [act.Create, act.SetReadonly]
    assert found is not None
    assert found.settings["min_isr"] == 2
