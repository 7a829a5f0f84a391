"""Messages of the metadata group as bytes: golden, whole, cut, fuzzed, held to their bounds."""

import pytest

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, Peer, SnapshotMeta
from liftbridge_broker.raft import types as raft
from liftbridge_broker.raft.types import Message
from liftbridge_broker.wire.raft import (
    ENTRIES_MAX,
    INDEX_MAX,
    MESSAGE_BYTES_MAX,
    NAME_LENGTH_MAX,
    decode_message,
    encode_message,
)
from liftbridge_proto.internal.v1 import raft_pb2 as pb
from liftbridge_testkit.fuzzing import Fuzz

FUZZ_COUNT = 100_000
A, B = Peer(BrokerId("a"), "1"), Peer(BrokerId("b"), "2")
ENTRIES = (
    Entry(5, 2, EntryKind.COMMAND, b"xy"),
    Entry(6, 3, EntryKind.NOOP, b""),
    Entry(7, 3, EntryKind.CONFIG, b"z"),
)
META = SnapshotMeta(9, 2, Configuration((A, B), (Peer(BrokerId("c"), "3"),)), 6, bytes(32))

HEAD = "0a060a01611201311206" + "0a0162120132" + "1804"
GOLDEN: list[tuple[Message, str]] = [
    (raft.PreVote(A, B, 4, 9, 3), "220408091003"),
    (raft.PreVoteReply(A, B, 4, is_granted=True), "2a020801"),
    (raft.Vote(A, B, 4, 9, 3, is_transfer=True), "3206080910031801"),
    (raft.VoteReply(A, B, 4, is_granted=False), "3a00"),
    (
        raft.Append(A, B, 4, 4, 2, ENTRIES, 4),
        "421f0804100218042208080210011a027879220408031002220708031003" + "1a017a",
    ),
    (raft.Append(A, B, 4, 4, 2, (), 0), "420408041002"),
    (
        raft.AppendReply(A, B, 4, is_success=True, log_index=7, hint_index=0, hint_term=0),
        "4a0408011007",
    ),
    (
        raft.AppendReply(A, B, 4, is_success=False, log_index=7, hint_index=5, hint_term=2),
        "4a06100718052002",
    ),
    (raft.Heartbeat(A, B, 4, 8, 3), "520408081003"),
    (raft.HeartbeatReply(A, B, 4, 3), "5a020803"),
    (
        raft.InstallChunk(A, B, 4, META, 2, b"ab"),
        "6246080910021a060a01611201311a060a016212013222060a016312013328063220"
        + "00" * 32
        + "380242026162",
    ),
    (raft.InstallChunkReply(A, B, 4, 9, 4, is_done=False), "6a0408091004"),
    (raft.TimeoutNow(A, B, 4), "7200"),
    (raft.ReadIndex(A, B, 4, 11), "7a02080b"),
    (raft.ReadIndexReply(A, B, 4, 11, 8), "820104080b1008"),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_messages_have_fixed_bytes_and_come_back(message: Message, golden: str) -> None:
    data = encode_message(message)

    assert data.hex() == HEAD + golden
    assert decode_message(data) == message


def test_every_kind_of_message_is_among_the_golden_ones() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(Message.__args__)


@pytest.mark.parametrize("message", [message for message, _ in GOLDEN])
def test_cut_messages_are_refused_or_shorter_ones(message: Message) -> None:
    data = encode_message(message)

    for length in range(len(data)):
        try:
            found = decode_message(data[:length])
        except WireError:
            continue
        assert found != message or type(found) is type(message)


def test_no_bytes_do_more_than_refuse(fuzz: Fuzz) -> None:
    samples = [encode_message(message) for message, _ in GOLDEN]
    taken = 0
    for random in fuzz.rounds(20261121, FUZZ_COUNT):
        data = bytearray(random.choice(samples))
        for _ in range(random.randint(1, 4)):
            place = random.randrange(len(data))
            choice = random.randrange(3)
            if choice == 0:
                data[place] = random.randrange(256)
            elif choice == 1:
                data[place:place] = random.randbytes(random.randint(1, 4))
            elif len(data) > 1:
                del data[place]
        try:
            found = decode_message(bytes(data))
        except WireError:
            continue
        assert decode_message(encode_message(found)) == found
        taken += 1
    assert fuzz.count // 100 < taken < fuzz.count


def sound() -> pb.RaftMessage:
    """A message that only lacks its body."""
    message = pb.RaftMessage(term=1)
    message.sender.broker, message.sender.data_dir_id = A
    message.target.broker, message.target.data_dir_id = B
    return message


def test_messages_beyond_bounds_are_refused() -> None:
    beyond = [sound() for _ in range(9)]
    beyond[1].sender.broker = "x" * (NAME_LENGTH_MAX + 1)
    beyond[1].timeout_now.SetInParent()
    beyond[2].target.ClearField("data_dir_id")
    beyond[2].timeout_now.SetInParent()
    beyond[3].append.entries.add(term=1, kind=9)
    beyond[4].append.entries.add(term=1)
    beyond[5].heartbeat.commit = INDEX_MAX + 1
    beyond[6].pre_vote.is_transfer = True
    beyond[7].install_chunk.sha256 = bytes(31)
    beyond[8].append.entries.extend([pb.RaftEntry(kind=pb.RAFT_ENTRY_KIND_NOOP)] * ENTRIES_MAX)
    beyond[8].append.entries.add(kind=pb.RAFT_ENTRY_KIND_NOOP)
    for message in beyond:
        with pytest.raises(WireError):
            decode_message(message.SerializeToString())


def test_a_chunk_beyond_its_snapshot_is_refused() -> None:
    data = encode_message(raft.InstallChunk(A, B, 4, META, 5, b"ab"))

    with pytest.raises(WireError, match="position out of bounds"):
        decode_message(data)


def test_a_message_that_is_too_long_is_not_even_read() -> None:
    with pytest.raises(WireError, match="bytes"):
        decode_message(bytes(MESSAGE_BYTES_MAX + 1))
