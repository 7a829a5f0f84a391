"""Frames between brokers: golden, whole, cut, fuzzed, in chunks with bounded memory."""

from random import Random

import pytest

from liftbridge_broker.errors import WireError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.fetching import (
    FetchBody,
    FetchedHead,
    FetchError,
    FetchPosition,
    FetchReplyBody,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
    PublisherId,
)
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.wire.peer.bodies import (
    CLOCK_NS_MAX,
    Body,
    CoordinatorReport,
    CursorReply,
    CursorRequest,
    LeaderReport,
    ListeningReply,
    ListeningRequest,
    LogInfo,
    LogInfoReply,
    LogInfoRequest,
    MessagesLost,
    Propose,
    ProposeRefused,
    RaftBody,
    SequencesReply,
    SequencesRequest,
    Silence,
)
from liftbridge_broker.wire.peer.fetch import records_of
from liftbridge_broker.wire.peer.frame import MESSAGE_BYTES_MAX, Piece, open_frame, read_open
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply
from liftbridge_broker.wire.peer.membership import Claim, Discover, DiscoverReply, Hello, Join
from liftbridge_broker.wire.peer.messages import (
    OPEN_MESSAGES_MAX,
    PeerHeader,
    Reassembler,
    decode,
    encode,
    pack,
)
from liftbridge_proto.internal.v1 import peer_pb2 as pb
from liftbridge_testkit.fuzzing import Fuzz

FUZZ_COUNT = 100_000
A, B = BrokerId("a"), BrokerId("b")
P, Q = PartitionId(1 << 24), PartitionId((7 << 24) + 3)
ORIGIN = bytes(range(16))
HEAD = FetchedHead(P, Offset(7), LeaderEpoch(3), Offset(6), Offset(1), None, None, 2)
BODIES: list[Body] = [
    RaftBody(),
    RaftBody(0),
    RaftBody(CLOCK_NS_MAX),
    Propose(ORIGIN, 7, is_essential=True),
    Propose(ORIGIN, 9, is_essential=False, term=3, deadline_ns=2**62),
    Propose(ORIGIN, 8, is_essential=False),
    ProposeRefused(ORIGIN, 7, is_definite=True, code="C", reason="why", leader=B),
    ProposeRefused(ORIGIN, 7, is_definite=False, code="", reason="", leader=None),
    Heartbeat(MetadataIndex(9), b"hash", want_fence=True, want_shutdown=False),
    Heartbeat(MetadataIndex(0), b"", want_fence=False, want_shutdown=False),
    HeartbeatReply(4, "run", is_fenced=True, should_shutdown=True, term=6),
    HeartbeatReply(0, "", is_fenced=False, should_shutdown=False, term=0),
    LeaderReport((Silence(P, B, LeaderEpoch(3), MetadataIndex(4), 600_000_000),)),
    LeaderReport(()),
    LogInfoRequest((P, Q)),
    LogInfoReply(
        (LogInfo(P, LeaderEpoch(0), Offset(8)), LogInfo(Q, None, Offset(0), is_damaged=True)),
    ),
    Discover("disk", is_empty=True, cluster_id="c"),
    Discover("disk", is_empty=False, cluster_id=""),
    Discover("disk", is_empty=True, cluster_id="", claim=Claim(is_seed=True)),
    DiscoverReply("d", is_empty=False, cluster_id="c", leader=Peer(A, "1"), voters=(Peer(B, "2"),)),
    DiscoverReply("d", is_empty=True, cluster_id="", leader=None, voters=()),
    DiscoverReply(
        "d", is_empty=True, cluster_id="", leader=None, voters=(), claim=Claim(listed=(A, B))
    ),
    Join("disk", as_voter=True),
    ListeningRequest((P, Q)),
    ListeningReply((Q,)),
    ListeningReply(()),
    SequencesRequest(PublisherId(9), 2, (P, Q)),
    SequencesReply(PublisherId(9), 2, ((P, 0), (Q, 1 << 40))),
    SequencesReply(PublisherId(1), 0, ()),
    CursorRequest(1 << 62, P, b"archive,s,0"),
    CursorReply(7, Offset(1 << 40), 9),
    CursorReply(7, Offset(0), 0),
    CursorReply(7, None, 9),
    CoordinatorReport("g", "m", A, 7),
    MessagesLost(),
    FetchBody(
        5,
        6,
        7,
        (
            FetchPosition(
                P, MetadataIndex(2), LeaderEpoch(3), Offset(9), Offset(8), LeaderEpoch(0), Offset(1)
            ),
            FetchPosition(
                Q, MetadataIndex(2), LeaderEpoch(3), Offset(0), Offset(0), None, Offset(0)
            ),
        ),
        (Q,),
    ),
    FetchBody(0, 0, 0, (), ()),
    FetchReplyBody(
        session_id=5,
        session_epoch=6,
        is_session_lost=False,
        partitions=(
            HEAD,
            HEAD._replace(
                partition=Q, error=FetchError.NOT_LEADER, data_bytes=0
            ),
            HEAD._replace(diverging=(LeaderEpoch(0), Offset(0)), data_bytes=1),
        ),
    ),
    FetchReplyBody(0, 0, is_session_lost=True, partitions=()),
    Hello(1 << 63, 7),
    Hello(0, 0),
]  # fmt: skip


def header(body: Body) -> PeerHeader:
    return PeerHeader("cluster", A, "run-1", 12, 99, body)


@pytest.mark.parametrize("body", BODIES)
def test_every_body_comes_back(body: Body) -> None:
    for head in (header(body), PeerHeader("", A, "r", 0, 0, body)):
        for tail in (b"", b"tail"):
            found, rest = decode(read_open(open_frame(encode(head, tail))))
            assert (found, type(found.body), rest) == (head, type(body), tail)


def test_every_body_is_among_those_tested() -> None:
    assert {type(body) for body in BODIES} == set(Body.__args__)


def test_layout_is_fixed() -> None:
    assert open_frame(encode(header(Join("d", as_voter=True)), b"xy")).hex() == (
        "421f1b2e" "01000000" "00000021" "0a07636c757374657210011a016122057275"
        "6e2d31280c3063" "8a01050a01641001" "7879"
    )  # fmt: skip


def test_a_frame_with_any_bit_flipped_or_cut_anywhere_is_refused() -> None:
    data = open_frame(encode(header(BODIES[3]), b"tail"))

    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode(read_open(bytes(damaged)))
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode(read_open(data[:length]))


def test_no_header_does_more_than_refuse(fuzz: Fuzz) -> None:
    """The checksum is made right again, so that what is behind it is reached."""
    samples = [encode(header(body)).head for body in BODIES]
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
            found, _ = decode(read_open(sealed(bytes(data), b"tail")))
        except WireError:
            continue
        assert decode(encode(found))[0] == found
        taken += 1
    assert fuzz.count // 100 < taken < fuzz.count


def test_a_clock_beyond_all_machines_is_refused() -> None:
    body = RaftBody(CLOCK_NS_MAX + 1)

    with pytest.raises(WireError, match="clock"):
        decode(encode(header(body)))


def test_every_error_of_a_fetch_comes_back() -> None:
    heads = tuple(HEAD._replace(error=error, data_bytes=0) for error in FetchError)
    body = FetchReplyBody(1, 2, is_session_lost=False, partitions=heads)

    assert decode(encode(header(body)))[0].body == body
    assert {f"FETCH_ERROR_{error.name}": error.value for error in FetchError} == {
        name: number for name, number in pb.FetchError.items() if number
    }


def test_records_of_a_reply_are_cut_by_its_heads() -> None:
    body = BODIES[-4]
    assert isinstance(body, FetchReplyBody)

    assert records_of(body, b"abc") == [b"ab", b"", b"c"]
    for wrong in (b"ab", b"abcd"):
        with pytest.raises(WireError, match="tail"):
            records_of(body, wrong)


def sealed(head: bytes, tail: bytes, kind: int = 0) -> bytes:
    """A frame with a right checksum around any header."""
    data = bytes((1, kind, 0, 0)) + len(head).to_bytes(4, "big") + head + tail
    return crc32c(data).to_bytes(4, "big") + data


# Chunks.

LIMIT = 4096


def chunks(size: int, message_id: int = 1, sender: BrokerId = A) -> list[Piece]:
    head = header(RaftBody())._replace(sender=sender)
    tail = Random(size).randbytes(size)
    return list(pack(head, tail, payload_bytes_max=LIMIT, message_id=message_id))


def test_a_message_that_fits_is_not_cut() -> None:
    (payload,) = chunks(100)

    assert Reassembler().take(payload) == (header(RaftBody()), Random(100).randbytes(100))


def test_a_long_message_comes_back_from_chunks_that_fit() -> None:
    payloads = chunks(20_000)
    assert len(payloads) == 8
    assert max(len(open_frame(payload)) for payload in payloads) <= LIMIT
    taker = Reassembler()

    found = [taker.take(payload) for payload in payloads]

    assert found[:-1] == [None] * 7
    assert found[-1] == (header(RaftBody()), Random(20_000).randbytes(20_000))
    assert (taker.held_bytes, taker.lost_count) == (0, 0)


def test_a_lost_chunk_loses_its_message_and_nothing_else() -> None:
    for lost in range(8):
        taker = Reassembler()
        for number, payload in enumerate(chunks(20_000)):
            assert number == lost or taker.take(payload) is None
        found = [taker.take(payload) for payload in chunks(9_000, message_id=2)]
        assert found[-1] is not None
        assert taker.held_bytes == 0


def test_chunks_that_come_twice_do_no_harm() -> None:
    taker = Reassembler()
    found = [taker.take(payload) for payload in chunks(20_000) for _ in range(2)]

    assert [one is not None for one in found].count(True) == 1


def test_messages_of_several_senders_may_be_mixed() -> None:
    taker = Reassembler()
    ours, theirs = chunks(9_000), chunks(9_000, sender=B)

    found = [taker.take(payload) for pair in zip(ours, theirs, strict=True) for payload in pair]

    assert [one[0].sender for one in found if one is not None] == [A, B]


def test_memory_for_chunks_is_bounded() -> None:
    taker = Reassembler()
    for number in range(OPEN_MESSAGES_MAX + 10):
        taker.take(chunks(9_000, sender=BrokerId(f"b{number}"))[0])

    assert taker.lost_count == 10
    assert taker.held_bytes <= OPEN_MESSAGES_MAX * LIMIT


def test_bytes_of_chunks_are_bounded() -> None:
    taker = Reassembler(bytes_max=MESSAGE_BYTES_MAX)
    head = header(RaftBody())
    big = pack(
        head, bytes(MESSAGE_BYTES_MAX - 200), payload_bytes_max=MESSAGE_BYTES_MAX // 2, message_id=1
    )
    taker.take(big[0])
    taker.take(big[1])
    for number in range(30):
        for payload in chunks(9_000, sender=BrokerId(f"b{number}"))[:-1]:
            taker.take(payload)
        assert taker.held_bytes <= MESSAGE_BYTES_MAX
    assert taker.lost_count == 0 or taker.held_bytes < MESSAGE_BYTES_MAX // 2


def test_a_message_beyond_the_bound_is_not_sent() -> None:
    with pytest.raises(WireError, match="bytes"):
        pack(header(RaftBody()), bytes(MESSAGE_BYTES_MAX), payload_bytes_max=LIMIT, message_id=1)


def chunk(number: int, count: int, total_bytes: int) -> Piece:
    head = pb.PeerChunk(
        sender="a", incarnation_id="run", message_id=1, number=number, count=count,
        total_bytes=total_bytes,
    )  # fmt: skip
    return read_open(sealed(head.SerializeToString(), b"piece", kind=1))


def test_chunks_that_contradict_themselves_are_refused() -> None:
    taker = Reassembler()
    for number, count, total in ((1, 1, 9), (0, 0, 0), (0, 10, 9), (0, 2, MESSAGE_BYTES_MAX + 1)):
        with pytest.raises(WireError, match="chunk"):
            taker.take(chunk(number, count, total))
    assert taker.take(chunk(0, 2, 3)) is None
    assert (taker.held_bytes, taker.lost_count) == (0, 1)
