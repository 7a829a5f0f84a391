"""Commands and a state with every field set, for tests of their bytes."""

from dataclasses import replace
from random import Random

from liftbridge_broker.controller.callers.commands import CreateToken, SetQuota
from liftbridge_broker.controller.callers.tokens import VERIFIER_PREFIX
from liftbridge_broker.controller.commands import (
    AdvertiseListeners,
    Bootstrap,
    Command,
    CordonBroker,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    FenceBroker,
    InitPublisher,
    MarkStream,
    PauseStream,
    RegisterBroker,
    SetCatchUpRate,
    SetFeatureLevel,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    StreamId,
    StreamName,
    partition_id,
)
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode

FOO = StreamName("foo")
A, B = BrokerId("a"), BrokerId("b")
OUTSIDE = ListenerAddress("out", "h", 9)
OVERRIDES = StreamOverrides(
    retention_bytes_max=0,
    retention_messages_max=1,
    retention_age_ms_max=2**63 - 1,
    cleaner_interval_ms=3,
    segment_bytes_max=4,
    segment_age_ms_max=5,
    compact_goroutines_max=6,
    compact_enabled=False,
    auto_pause_ms=7,
    auto_pause_disable_if_subscribers=True,
    min_isr=1,
    optimistic_concurrency=True,
    encryption=False,
    fsync_policy=FsyncPolicy.AUTO,
    tombstone_retention_ms=8,
    unclean_mode=UncleanMode.MANUAL,
    retention_cursor="c",
    retention_cursor_bytes_max=9,
    ack_reply=True,
)
REGISTER = RegisterBroker(
    broker=BrokerId("a"), incarnation_id="i", data_dir_id="d", host="h", port=9292,
    previous_broker_epoch=3, clean_partitions=(PartitionId(1), PartitionId(2**63)),
)  # fmt: skip

TOKEN = CreateToken(
    token_id="", principal="p", groups=("g", "h"), created=1, expires=2, created_by="o",
    verifier=VERIFIER_PREFIX + "s" * 22 + "$" + "h" * 43,
)  # fmt: skip


def sample_state() -> ClusterState:
    """Three brokers, a stream with pools and a reassignment, one being recovered, one deleted."""
    foo = [partition_id(StreamId(9), PartitionNumber(number)) for number in range(3)]
    bar = partition_id(StreamId(10), PartitionNumber(0))
    a, b, c = BrokerId("a"), BrokerId("b"), BrokerId("c")
    new = replace(REGISTER, previous_broker_epoch=0, zone="z", version="1", feature_level=4)
    state = ClusterState()
    commands: list[Command] = [
        Bootstrap(cluster_id="cluster", feature_level=0),
        new,
        replace(new, broker=b),
        replace(new, broker=c),
        UnfenceBroker(broker=a, broker_epoch=2, applied_index=2),
        UnfenceBroker(broker=b, broker_epoch=3, applied_index=4),
        UnfenceBroker(broker=c, broker_epoch=4, applied_index=4),
        SetFeatureLevel(feature_level=4),
        CreateStream(
            name=FOO, subject="s.*", group="g", partitions=3, replication_factor=2,
            overrides=replace(OVERRIDES, min_isr=2, retention_cursor=""), creation_timestamp=7,
        ),
        CreateStream(name=StreamName("bar"), subject="t", min_isr_default=1),
        PauseStream(name=FOO, partitions=(0,), resume_all=True),
        PauseStream(name=FOO, partitions=(1,), is_automatic=True),
        SetReadonly(name=FOO, partitions=(2,)),
        InitPublisher(stream=FOO, publisher="q"),
        InitPublisher(stream=FOO, publisher="p"),
        InitPublisher(stream=FOO, publisher="q"),
        CreateStream(name=StreamName("gone"), subject="u"),
        DeleteStream(name=StreamName("gone")),
        StartReassignment(partition_id=foo[1], target=(c, a)),
        FenceBroker(broker=a, broker_epoch=2),
        DeclareUnclean(broker=b, broker_epoch=3, partition_id=foo[0], replica_epoch=9),
        replace(new, incarnation_id="again", quarantined_partitions=(bar,)),
        CordonBroker(broker=c, draining=True),
        ShutDownBroker(broker=c, broker_epoch=4),
        UnfenceBroker(broker=a, broker_epoch=22, applied_index=24),
        MarkStream(name=FOO, stream_id=9, owner="ns/foo"),
        SetCatchUpRate(bytes_per_second=2**20),
        AdvertiseListeners(broker=a, broker_epoch=22, listeners=(OUTSIDE,)),
        replace(TOKEN, token_id="0" * 12, expires=0),
        replace(TOKEN, token_id="1" * 12, groups=()),
        SetQuota(kind="principal", name="*", publish_bytes=1, subscriptions=2),
        SetQuota(kind="stream", name="foo", read_messages=3, stored_bytes=4),
    ]  # fmt: skip
    for index, command in enumerate(commands, start=1):
        answer = apply(state, MetadataIndex(index), command).answer
        assert not isinstance(answer, LiftbridgeError), answer
    state.master_key = "m"
    state.set_data_key(StreamId(9), DataKey("m", b"wrapped", b"checkval"))
    state.brokers[b] = replace(state.brokers[b], master_keys=(MasterKey("m", b"checkval"),))
    return state


def mutated(random: Random, data: bytes) -> bytes:
    """Return data with damage of the kinds that reach deep into a parser."""
    found = bytearray(data)
    for _ in range(random.randint(1, 3)):
        position = random.randrange(len(found) + 1)
        kind = random.randrange(4)
        if kind == 0 and found:
            found[position % len(found)] = random.randrange(256)
        elif kind == 1:
            found[position:position] = random.randbytes(random.randint(1, 4))
        elif kind == 2:
            del found[position : position + random.randint(1, 4)]
        else:
            found[position:position] = found[: random.randint(0, 8)]
    return bytes(found)
