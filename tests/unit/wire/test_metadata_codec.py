"""Commands and snapshots as bytes: golden, canonical, cut, fuzzed, checked in every relation."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    InitPublisher,
    PauseStream,
    RegisterBroker,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError, LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

FUZZ_COUNT = 100_000
FOO = StreamName("foo")
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
)
REGISTER = RegisterBroker(
    broker=BrokerId("a"), incarnation_id="i", data_dir_id="d", host="h", port=9292,
    previous_broker_epoch=3, clean_partitions=(PartitionId(1), PartitionId(2**63)),
)  # fmt: skip

CREATION_WITH_EVERYTHING = (
    "124b0a03666f6f1201731a01672001280332290800100118ffffffffffffffff7f2003280430053806"
    "4000480750015801600168007004780880010138ffffffffffffffffff01400148015002"
)

GOLDEN: list[tuple[Command, str]] = [
    (REGISTER, "0a1e0a01611201691a016422016828cc4830033a0b0180808080808080808001"),
    (
        CreateStream(name=FOO, subject="s", creation_timestamp=5),
        "12170a03666f6f120173200228023200380548904e50a08d06",
    ),
    (
        CreateStream(
            name=FOO, subject="s", group="g", replication_factor=-1, partitions=-2,
            overrides=OVERRIDES, creation_timestamp=-1, is_internal=True, partitions_max=1,
            streams_max=2,
        ),
        CREATION_WITH_EVERYTHING,
    ),
    (DeleteStream(name=FOO, is_internal=True), "1a070a03666f6f1001"),
    (
        AlterStream(name=FOO, overrides=StreamOverrides(min_isr=2), is_internal=True),
        "220b0a03666f6f120258021801",
    ),
    (
        PauseStream(
            name=FOO, partitions=(1, -1), resume_all=True, is_automatic=True, is_internal=True
        ),
        "2a0f0a03666f6f12020201180120012801",
    ),
    (ResumeStream(name=FOO, partitions=(0, 2)), "32090a03666f6f12020004"),
    (SetReadonly(name=FOO), "3a070a03666f6f1801"),
    (SetReadonly(name=FOO, partitions=(3,), readonly=False, is_internal=True),
     "3a0a0a03666f6f1201062001"),
    (InitPublisher(stream=FOO, publisher="p"), "42080a03666f6f120170"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "golden"), GOLDEN)
def test_bytes_of_commands_are_fixed(command: Command, golden: str) -> None:
    assert encode_command(command).hex() == golden
    assert decode_command(bytes.fromhex(golden)) == command


@pytest.mark.parametrize("command", [command for command, _ in GOLDEN])
def test_a_command_cut_anywhere_is_refused_or_another_whole_one(command: Command) -> None:
    data = encode_command(command)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_command(data[:length])


@pytest.mark.parametrize("data", [b"", b"\xfa\x01\x00", b"\x4a\x00"])
def test_an_unknown_command_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="does not know"):
        decode_command(data)


def test_an_unknown_field_is_refused() -> None:
    data = encode_command(DeleteStream(name=FOO))
    inner = data[2:] + b"\xa8\x06\x01"

    with pytest.raises(CorruptionError, match="fields that this version does not know"):
        decode_command(b"\x1a" + bytes([len(inner)]) + inner)


def test_another_encoding_of_the_same_command_is_refused() -> None:
    with pytest.raises(CorruptionError):
        decode_command(b"\x1a\x0a\x0a\x03bar\x0a\x03foo")


@pytest.mark.parametrize("field", ["fsync_policy", "unclean_mode"])
@pytest.mark.parametrize("value", [99, -1])
def test_an_unknown_enum_value_is_refused(field: str, value: int) -> None:
    message = pb.Command()
    setattr(message.alter_stream.overrides, field, value)

    with pytest.raises(CorruptionError, match="is not known"):
        decode_command(message.SerializeToString(deterministic=True))


def test_numbers_beyond_their_field_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_command(CreateStream(name=FOO, subject="s", partitions=2**31))


def sample_state() -> ClusterState:
    state = ClusterState()
    commands: list[Command] = [
        replace(REGISTER, previous_broker_epoch=0),
        replace(REGISTER, broker=BrokerId("b")),
        CreateStream(
            name=FOO, subject="s.*", group="g", partitions=3, replication_factor=2,
            overrides=OVERRIDES, creation_timestamp=7,
        ),
        CreateStream(name=StreamName("bar"), subject="t"),
        PauseStream(name=FOO, partitions=(0,), resume_all=True),
        PauseStream(name=FOO, partitions=(1,), is_automatic=True),
        SetReadonly(name=FOO, partitions=(2,)),
        InitPublisher(stream=FOO, publisher="q"),
        InitPublisher(stream=FOO, publisher="p"),
        InitPublisher(stream=FOO, publisher="q"),
        replace(REGISTER, incarnation_id="again"),
    ]  # fmt: skip
    for index, command in enumerate(commands, start=1):
        answer = apply(state, MetadataIndex(index), command).answer
        assert not isinstance(answer, LiftbridgeError), answer
    return state


GOLDEN_STATE = (
    "080b12150a0161100b1a05616761696e2201642a016830cc4812110a016210021a01692201642a016830cc48"
    "1a9e0108031203666f6f1a03732e2a220167280732290800100118ffffffffffffffff7f2003280430053806"
    "40004807500158016001680070047808800101380142160a020001120200011800200b280b300b38017a0203"
    "0342160a02010012020001180020032806380140017a02030342160a020001120200011800200b280b300b48"
    "017a0203034a050a017010094a070a01711008180150025801680270021a25080412036261721a0174320042"
    "0f0a01011201001800200428047a01045001580168027002"
)


def test_a_snapshot_gives_the_state_back() -> None:
    state = sample_state()
    data = encode_state(state)
    restored = decode_state(data)

    assert restored == state
    assert encode_state(restored) == data
    assert list(restored.streams[state.stream_ids[FOO]].publishers) == ["p", "q"]
    assert restored.partition_count == 4
    assert restored.publisher_epochs == {8: 1, 9: 0}


def test_a_snapshot_of_nothing_is_empty() -> None:
    assert encode_state(ClusterState()) == b""
    assert decode_state(b"") == ClusterState()


def test_bytes_of_a_snapshot_are_fixed() -> None:
    assert encode_state(sample_state()).hex() == GOLDEN_STATE


def test_a_snapshot_cut_anywhere_never_raises_anything_else() -> None:
    data = encode_state(sample_state())
    whole = 0
    for length in range(len(data)):
        try:
            decode_state(data[:length])
        except CorruptionError:
            continue
        whole += 1
    # Only what ends between two entries of the outermost level can be read at all.
    assert whole <= 5


Damage = Callable[[pb.Snapshot], object]
DAMAGES: list[tuple[str, Damage]] = [
    ("broker a twice", lambda s: s.brokers.add(broker="a")),
    ("a broker epoch ahead", lambda s: setattr(s.brokers[0], "broker_epoch", 99)),
    ("stream id 3 out of order", lambda s: setattr(s.streams[1], "stream_id", 3)),
    ("stream id 99 out of order", lambda s: setattr(s.streams[1], "stream_id", 99)),
    ("stream id 0 out of order", lambda s: setattr(s.streams[0], "stream_id", 0)),
    ("stream foo twice", lambda s: setattr(s.streams[1], "name", "foo")),
    ("with 0 partitions", lambda s: s.streams[0].ClearField("partitions")),
    ("partition epoch ahead", lambda s: setattr(s.streams[0].partitions[0], "partition_epoch", 99)),
    ("unknown broker", lambda s: s.streams[0].partitions[0].replicas.append(2)),
    ("distinct replicas", lambda s: s.streams[0].partitions[0].replicas.append(0)),
    ("distinct replicas", lambda s: s.streams[0].partitions[0].ClearField("replicas")),
    ("disordered isr", lambda s: s.streams[0].partitions[0].isr.append(0)),
    ("isr elsewhere", lambda s: s.streams[0].partitions[0].isr.append(2)),
    ("led out of sync", lambda s: setattr(s.streams[0].partitions[0], "leader", 5)),
    ("led out of sync", lambda s: s.streams[0].partitions[0].ClearField("isr")),
    ("disordered epochs", lambda s: setattr(s.streams[0].partitions[1], "leader_epoch", 11)),
    ("disordered epochs", lambda s: setattr(s.streams[0].partitions[1], "leader_epoch", 1)),
    ("disordered epochs", lambda s: setattr(s.streams[0].partitions[1], "unclean_epoch", 5)),
    ("disordered pause", lambda s: setattr(s.streams[0].partitions[2], "auto_paused", True)),
    ("a publisher twice", lambda s: s.streams[0].publishers.add(publisher="p", publisher_id=1)),
    ("a publisher id twice", lambda s: s.streams[1].publishers.add(publisher="x", publisher_id=8)),
    ("a publisher id twice", lambda s: s.streams[0].publishers.add(publisher="x", publisher_id=8)),
    ("a publisher id ahead", lambda s: s.streams[0].publishers.add(publisher="x")),
    ("a publisher id ahead", lambda s: s.streams[1].publishers.add(publisher="x", publisher_id=99)),
    ("is not known", lambda s: setattr(s.streams[0].overrides, "fsync_policy", 9)),
]


@pytest.mark.parametrize(("fault", "damage"), DAMAGES, ids=[fault for fault, _ in DAMAGES])
def test_a_snapshot_that_contradicts_itself_is_refused(fault: str, damage: Damage) -> None:
    message = pb.Snapshot.FromString(encode_state(sample_state()))
    damage(message)

    with pytest.raises(CorruptionError, match=fault):
        decode_state(message.SerializeToString(deterministic=True))


def mutated(random: Random, data: bytes) -> bytes:
    """Damage of the kinds that reach deep into a parser."""
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


def test_no_bytes_make_the_decoder_of_commands_fail_otherwise() -> None:
    random = Random(20)
    samples = [encode_command(command) for command, _ in GOLDEN]
    taken = 0
    for _ in range(FUZZ_COUNT):
        data = mutated(random, random.choice(samples))
        try:
            command = decode_command(data)
        except CorruptionError:
            continue
        taken += 1
        assert encode_command(command) == data
    assert 0 < taken < FUZZ_COUNT


def test_no_bytes_make_the_decoder_of_snapshots_fail_otherwise() -> None:
    random = Random(21)
    sample = encode_state(sample_state())
    taken = 0
    for _ in range(FUZZ_COUNT):
        data = mutated(random, sample)
        try:
            state = decode_state(data)
        except CorruptionError:
            continue
        taken += 1
        # Not always `data`: what a version without clusters left out is written from now on.
        assert decode_state(encode_state(state)) == state
    assert 0 < taken < FUZZ_COUNT
