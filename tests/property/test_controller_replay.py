"""Equal logs give equal states: in one process, over snapshots, and under another hash seed."""

import hashlib
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    AdvertiseListeners,
    AlterStream,
    Bootstrap,
    Command,
    CreateEncryptedStream,
    CreateStream,
    DeleteStream,
    InitPublisher,
    MarkStream,
    PauseStream,
    RegisterBroker,
    ReportMasterKeys,
    ResumeStream,
    RewrapDataKeys,
    RewrappedKey,
    SetCatchUpRate,
    SetMasterKey,
    SetReadonly,
    UnfenceBroker,
)
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionId,
    StreamId,
    StreamName,
)
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.wire.metadata import decode_command, encode_command
from liftbridge_broker.wire.snapshots import decode_state, encode_state

NAMES = st.sampled_from(["a", "b", "c", "__cursors", "", "bad name", "é"]).map(StreamName)
NUMBERS = st.lists(st.integers(-1, 3), max_size=3).map(tuple)
SMALL = st.none() | st.integers(-1, 3)
OVERRIDES = st.builds(
    StreamOverrides,
    retention_bytes_max=SMALL,
    retention_age_ms_max=SMALL,
    min_isr=SMALL,
    auto_pause_ms=st.none() | st.integers(0, 2**63 - 1),
    compact_enabled=st.none() | st.booleans(),
    encryption=st.none() | st.booleans(),
    fsync_policy=st.none() | st.sampled_from(FsyncPolicy),
    unclean_mode=st.none() | st.sampled_from(UncleanMode),
    retention_cursor=st.none() | st.sampled_from(["", "archive", "é" * 600]),
    retention_cursor_bytes_max=SMALL,
)
KEY_IDS = st.sampled_from(["k", "l", ""])
DATA_KEYS = st.builds(
    DataKey, KEY_IDS, st.sampled_from([b"", b"w", b"v"]), st.sampled_from([b"c" * 8, b"d" * 8])
)
CREATIONS = st.builds(
    CreateStream,
    name=NAMES,
    subject=st.just("s"),
    overrides=st.builds(StreamOverrides, encryption=st.sampled_from([True, True, None, False])),
)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateEncryptedStream, stream=CREATIONS, key=DATA_KEYS),
    st.builds(
        RewrapDataKeys,
        keys=st.lists(
            st.builds(
                RewrappedKey,
                st.integers(1, 8).map(StreamId),
                st.sampled_from([b"w", b"v"]),
                KEY_IDS,
                st.sampled_from([b"", b"w", b"v"]),
                st.sampled_from([b"c" * 8, b"d" * 8]),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(SetMasterKey, master_key=KEY_IDS),
    st.builds(
        ReportMasterKeys,
        broker=st.just(BrokerId("x")),
        broker_epoch=st.integers(0, 3),
        keys=st.lists(
            st.builds(MasterKey, KEY_IDS, st.sampled_from([b"", b"e" * 8, b"bad"])), max_size=2
        ).map(tuple),
    ),
    st.builds(
        RegisterBroker,
        broker=st.sampled_from(["x", "y", "z", ""]).map(BrokerId),
        incarnation_id=st.sampled_from(["1", "2", "3"]),
        data_dir_id=st.sampled_from(["d", "d", "d", "e"]),
        previous_broker_epoch=st.integers(0, 20),
        clean_partitions=st.lists(st.integers(0, 2**27).map(PartitionId), max_size=2).map(tuple),
    ),
    st.builds(
        CreateStream,
        name=NAMES,
        subject=st.sampled_from(["s", "s.*", "s.>", "", "$x"]),
        group=st.sampled_from(["", "g"]),
        replication_factor=st.integers(-2, 4),
        partitions=st.integers(-1, 4),
        overrides=OVERRIDES,
        creation_timestamp=st.integers(-(2**63), 2**63 - 1),
        is_internal=st.booleans(),
        partitions_max=st.integers(0, 10),
        streams_max=st.integers(0, 4),
    ),
    st.builds(DeleteStream, name=NAMES, is_internal=st.booleans()),
    st.builds(AlterStream, name=NAMES, overrides=OVERRIDES, is_internal=st.booleans()),
    st.builds(
        PauseStream,
        name=NAMES,
        partitions=NUMBERS,
        resume_all=st.booleans(),
        is_automatic=st.booleans(),
        is_internal=st.booleans(),
    ),
    st.builds(ResumeStream, name=NAMES, partitions=NUMBERS),
    st.builds(
        SetReadonly,
        name=NAMES,
        partitions=NUMBERS,
        readonly=st.booleans(),
        is_internal=st.booleans(),
    ),
    st.builds(InitPublisher, stream=NAMES, publisher=st.sampled_from(["p", "q", ""])),
    st.builds(
        MarkStream,
        name=NAMES,
        stream_id=st.integers(0, 4),
        expected=st.sampled_from(["", "x"]),
        owner=st.sampled_from(["", "x", "y"]),
    ),
    st.builds(SetCatchUpRate, bytes_per_second=st.sampled_from([0, 1, 4_096])),
    st.builds(
        AdvertiseListeners,
        broker=st.just(BrokerId("x")),
        broker_epoch=st.integers(0, 2),
        listeners=st.lists(
            st.builds(
                ListenerAddress,
                st.sampled_from(["out", "in", "-"]),
                st.just("h"),
                st.integers(0, 2),
            ),
            max_size=2,
        ).map(tuple),
    ),
)
PRELUDE: list[Command] = [
    RegisterBroker(
        broker=BrokerId("x"), incarnation_id="0", data_dir_id="d", feature_level=FEATURE_LEVEL
    ),
    UnfenceBroker(broker=BrokerId("x"), broker_epoch=1, applied_index=1),
    Bootstrap(cluster_id="c"),
    ReportMasterKeys(
        broker=BrokerId("x"), broker_epoch=1, keys=(MasterKey("k", b"e" * 8), MasterKey("l", b""))
    ),
    CreateEncryptedStream(
        stream=CreateStream(
            name=StreamName("b"), subject="s", overrides=StreamOverrides(encryption=True)
        ),
        key=DataKey("k", b"w", b"c" * 8),
    ),
    CreateStream(name=StreamName("a"), subject="s", partitions=3),
]
LOGS = st.lists(COMMANDS, max_size=25).map(lambda commands: PRELUDE + commands)


def applied(commands: list[Command], state: ClusterState | None = None) -> ClusterState:
    state = ClusterState() if state is None else state
    for command in commands:
        apply(state, MetadataIndex(state.applied_index + 1), command)
    return state


@given(LOGS)
def test_a_log_read_back_gives_an_equal_state(commands: list[Command]) -> None:
    read_back = [decode_command(encode_command(command)) for command in commands]
    assert read_back == commands

    one, two = applied(commands), applied(read_back)

    assert one == two
    assert encode_state(one) == encode_state(two)


@given(LOGS, st.data())
def test_a_snapshot_on_the_way_changes_nothing(
    commands: list[Command], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(commands)))
    straight = applied(commands)
    before = applied(commands[:cut])
    restored = decode_state(encode_state(before))
    assert restored == before

    over_snapshot = applied(commands[cut:], restored)

    assert over_snapshot == straight
    assert encode_state(over_snapshot) == encode_state(straight)


@given(LOGS, COMMANDS)
def test_decide_changes_nothing_and_says_the_same_again(
    commands: list[Command], command: Command
) -> None:
    state = applied(commands)
    before = deepcopy(state)
    index = MetadataIndex(state.applied_index + 1)

    first = decide(state, index, command)
    second = decide(state, index, command)

    assert state == before
    assert encode_state(state) == encode_state(before)
    assert first.records == second.records
    assert (first.records == ()) or not isinstance(first.answer, LiftbridgeError)
    if isinstance(first.answer, LiftbridgeError):
        assert isinstance(second.answer, LiftbridgeError)
        assert first.answer.text == second.answer.text
    else:
        assert first.answer == second.answer


@given(LOGS)
def test_states_keep_their_invariants(commands: list[Command]) -> None:
    state = applied(commands)

    assert list(state.streams) == sorted(state.streams)
    assert list(state.stream_ids.values()) == list(state.streams)
    assert state.partition_count == sum(1 for _ in state.partitions())
    registered = [
        publisher for stream in state.streams.values() for publisher in stream.publishers.values()
    ]
    assert dict(registered) == state.publisher_epochs
    for stream, partition in state.partitions():
        assert state.partition(partition.partition_id) is partition
        assert partition.leader in partition.isr
        assert set(partition.isr) <= set(partition.replicas)
        assert len(set(partition.replicas)) == len(partition.replicas) == stream.replication_factor
        assert partition.unclean_epoch <= partition.leader_epoch <= partition.partition_epoch
        assert stream.stream_id <= partition.leader_epoch <= state.applied_index
        assert partition.paused or not partition.auto_paused


DIGEST = """
import sys
sys.path.insert(0, sys.argv[1])
from test_controller_replay import digest
print(digest())
"""


def digest() -> str:
    """Hash of the state after a long random log, for comparison between processes."""
    random = Random(5)
    names = [StreamName(f"stream-{number}") for number in range(40)]
    state = applied(
        [
            RegisterBroker(broker=BrokerId(f"b{number}"), incarnation_id="1", data_dir_id="d")
            for number in range(5)
        ]
    )
    for step in range(2_000):
        name = random.choice(names)
        command: Command = random.choice(
            (
                CreateStream(
                    name=name, subject="s", partitions=random.randint(1, 5), replication_factor=3
                ),
                DeleteStream(name=name),
                PauseStream(name=name, partitions=(1, 0), resume_all=step % 2 == 0),
                ResumeStream(name=name),
                SetReadonly(name=name, readonly=step % 3 == 0),
                InitPublisher(stream=name, publisher=f"p{step % 7}"),
                RegisterBroker(
                    broker=BrokerId(f"b{step % 5}"), incarnation_id=str(step), data_dir_id="d"
                ),
            )
        )
        applied([command], state)
    assert len(state.streams) > 5
    return hashlib.sha256(encode_state(state)).hexdigest()


def test_the_hash_seed_does_not_show() -> None:
    here = str(Path(__file__).parent)
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert found == {digest()}
