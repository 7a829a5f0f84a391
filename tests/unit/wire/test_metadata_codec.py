"""Commands and snapshots as bytes: golden, canonical, cut, fuzzed, checked in every relation."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.callers.commands import CreateToken, ExpireToken, RevokeToken
from liftbridge_broker.controller.commands import (
    AdvertiseListeners,
    AlterPartition,
    AlterStream,
    Bootstrap,
    BrokerLoad,
    CancelReassignment,
    ChangeLeader,
    Command,
    ConfirmActivity,
    CordonBroker,
    CreateEncryptedStream,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    InitPublisher,
    IsrMember,
    LeaderChange,
    Leadership,
    MarkStream,
    PauseStream,
    RecoverUnclean,
    RemoveBroker,
    ReplicaAnswer,
    ReportMasterKeys,
    Resign,
    ResumeStream,
    RewrapDataKeys,
    RewrappedKey,
    SetActivity,
    SetCatchUpRate,
    SetFeatureLevel,
    SetMasterKey,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import (
    PartitionId,
    StreamId,
)
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_proto.internal.v1 import metadata_pb2 as pb
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.metadata_samples import FOO, OUTSIDE, OVERRIDES, REGISTER, A, B, mutated

FUZZ_COUNT = 100_000
CREATION_WITH_EVERYTHING = (
    "12550a03666f6f1201731a01672001280332330800100118ffffffffffffffff7f2003280430053806"
    "40004807500158016001680070047808800101"  # ... and the later settings:
    "8a01016390010998010138ffffffffffffffffff01400148015002"
)

REGISTRATION_WITH_EVERYTHING = (
    "0a290a01611201691a016422016828cc4830033a0b01808080808080808080014201074a017a5201765801"
)

GOLDEN: list[tuple[Command, str]] = [
    (REGISTER, "0a1e0a01611201691a016422016828cc4830033a0b0180808080808080808001"),
    (
        CreateStream(name=FOO, subject="s", creation_timestamp=5),
        "12170a03666f6f120173200228023200380548904e50a08d06",
    ),
    (
        CreateStream(
            name=FOO,
            subject="s",
            group="g",
            replication_factor=-1,
            partitions=-2,
            overrides=OVERRIDES,
            creation_timestamp=-1,
            is_internal=True,
            partitions_max=1,
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
    (
        SetReadonly(name=FOO, partitions=(3,), readonly=False, is_internal=True),
        "3a0a0a03666f6f1201062001",
    ),
    (InitPublisher(stream=FOO, publisher="p"), "42080a03666f6f120170"),
    (
        replace(
            REGISTER,
            quarantined_partitions=(PartitionId(7),),
            zone="z",
            version="v",
            feature_level=1,
        ),
        REGISTRATION_WITH_EVERYTHING,
    ),
    (
        CreateStream(
            name=FOO,
            subject="s",
            min_isr_default=2,
            load=(BrokerLoad(A, 3),),
            fsync_policy_default=FsyncPolicy.COMMIT,
            unclean_mode_default=UncleanMode.MANUAL,
        ),
        "12220a03666f6f12017320022802320048904e50a08d0658026003680172050a01611003",
    ),
    (
        AlterStream(
            name=FOO, overrides=StreamOverrides(), replication_factor=3, load=(BrokerLoad(A, 0),)
        ),
        "220e0a03666f6f120020062a030a0161",
    ),
    (Bootstrap(cluster_id="c", feature_level=1), "4a050a01631001"),
    (
        UnfenceBroker(broker=A, broker_epoch=3, applied_index=4, want_fence=True),
        "52090a0161100318042001",
    ),
    (FenceBroker(broker=A, broker_epoch=3), "5a050a01611003"),
    (ShutDownBroker(broker=A, broker_epoch=3), "62050a01611003"),
    (CordonBroker(broker=A, draining=True), "6a070a016110011801"),
    (RemoveBroker(broker=A, broker_epoch=3), "72050a01611003"),
    (SetFeatureLevel(feature_level=2), "7a020802"),
    (
        AlterPartition(
            broker=A,
            broker_epoch=3,
            partition_id=PartitionId(1),
            leader_epoch=5,
            partition_epoch=6,
            isr=(IsrMember(A, -1), IsrMember(B, 2**40)),
            is_recovering=True,
        ),
        "8201200a0161100318012005280632050a01611001320a0a0162108080808080403801",
    ),
    (
        StartReassignment(partition_id=PartitionId(1), target=(A, B), partition_epoch=6),
        "8a010a08011201611201621806",
    ),
    (
        CancelReassignment(partition_id=PartitionId(1), partition_epoch=6, is_unclean=True),
        "920106080110061801",
    ),
    (
        ElectPreferred(partitions=(PartitionId(1), PartitionId(2**63))),
        "9a010d0a0b0180808080808080808001",
    ),
    (
        RecoverUnclean(
            partition_id=PartitionId(1),
            chosen=A,
            partition_epoch=6,
            mode=UncleanMode.BALANCED,
            answers=(ReplicaAnswer(B, 1, 2, 3), ReplicaAnswer(B, 1, 2, 3, is_damaged=True)),
        ),
        "a201210801120161180620022a090a01621001180220032a0b0a01621001180220032801",
    ),
    (
        ChangeLeader(changes=(LeaderChange(PartitionId(1), 5, 6, A),)),
        "aa010b0a09080110051806220161",
    ),
    (
        DeclareUnclean(
            broker=A, broker_epoch=3, partition_id=PartitionId(1), replica_epoch=4, reason="rot"
        ),
        "b2010e0a01611003180120042a03726f74",
    ),
    (
        Resign(
            broker=A,
            broker_epoch=3,
            partitions=(Leadership(PartitionId(1), 5),),
            leaves_isr=True,
            successor=B,
            reason="full",
        ),
        "ba01160a016110031a040801100520012a0162320466756c6c",
    ),
    (SetFeatureLevel(feature_level=0), "7a00"),
    (
        MarkStream(name=FOO, stream_id=9, expected="a", owner="b"),
        "c2010d0a03666f6f10091a0161220162",
    ),
    (SetCatchUpRate(bytes_per_second=2**20), "ca010408808040"),
    (SetActivity(broker=A, broker_epoch=3, is_wanted=True), "9a02070a016110031801"),
    (SetActivity(broker=A, broker_epoch=3, is_wanted=False), "9a02050a01611003"),
    (
        ConfirmActivity(
            partition_id=PartitionId(1), leader_epoch=5, start_offset=7, last_id=9, end_offset=8
        ),
        "a2020a08011005180720092808",
    ),
    (AdvertiseListeners(broker=A, broker_epoch=3), "d201050a01611003"),
    (
        CreateToken(
            token_id="t",
            principal="p",
            groups=("g", "h"),
            verifier="v",
            created=1,
            expires=2,
            created_by="o",
        ),
        "c202160a01741201701a01671a0168220176280130023a016f",
    ),
    (ExpireToken(token_id="t", expires=7), "ca02050a01741007"),
    (RevokeToken(token_id="t"), "d202030a0174"),
    (
        CreateEncryptedStream(
            stream=CreateStream(name=FOO, subject="s"), key=DataKey("m", b"w", b"checkval")
        ),
        "da02290a150a03666f6f12017320022802320048904e50a08d0612100a016d1201771a08636865636b76616c",
    ),
    (
        RewrapDataKeys(keys=(RewrappedKey(StreamId(9), b"w", "n", b"v", b"checkval"),)),
        "e202170a1508091201771a016e2201762a08636865636b76616c",
    ),
    (SetMasterKey(master_key="m"), "ea02030a016d"),
    (
        ReportMasterKeys(broker=A, broker_epoch=3, keys=(MasterKey("m", b"checkval"),)),
        "f202140a016110031a0d0a016d1208636865636b76616c",
    ),
    (
        AdvertiseListeners(broker=A, broker_epoch=3, listeners=(OUTSIDE,)),
        "d201110a016110031a0a0a036f75741201681809",
    ),
    (
        JoinGroup(
            group_id="g",
            member_id="m",
            streams=("foo", "b.*"),
            is_incremental=True,
            member_epoch=7,
            instance_id="i",
            zone="z",
        ),
        "da011a0a016712016d1a03666f6f1a03622e2a200128073201693a017a",
    ),
    (
        JoinGroup(group_id="g", member_id="m", streams=("foo",)),
        "da010b0a016712016d1a03666f6f",
    ),
    (LeaveGroup(group_id="g", member_id="m"), "e201060a016712016d"),
    (
        LeaveGroup(
            group_id="g",
            member_id="m",
            member_epoch=7,
            is_expired=True,
            coordinator=B,
            coordinator_epoch=5,
        ),
        "e2010f0a016712016d180720012a01623005",
    ),
    (
        ChangeCoordinator(group_id="g", coordinator=B, coordinator_epoch=5),
        "ea01080a01671201621805",
    ),
    (
        ReleasePartitions(
            group_id="g",
            member_id="m",
            member_epoch=7,
            partition_ids=(PartitionId(1 << 24), PartitionId(1 << 24 | 1)),
            group_epoch=9,
        ),
        "f201140a016712016d1807220880808008818080082809",
    ),
    (DeleteGroup(group_id="g"), "fa01030a0167"),
    (
        replace(REGISTER, started=1),
        "0a200a01611201691a016422016828cc4830033a0b01808080808080808080016001",
    ),
]


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


@pytest.mark.parametrize("data", [b"", b"\xfa\x07\x00", b"\xfa\x0f\x00"])
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


def test_no_bytes_make_the_decoder_of_commands_fail_otherwise(fuzz: Fuzz) -> None:
    samples = [encode_command(command) for command, _ in GOLDEN]
    taken = 0
    for random in fuzz.rounds(20, FUZZ_COUNT):
        data = mutated(random, random.choice(samples))
        try:
            command = decode_command(data)
        except CorruptionError:
            continue
        taken += 1
        assert encode_command(command) == data
    assert 0 < taken < fuzz.count
