"""Frames between brokers: every kind of message against every way to forge one."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.peers.peer_sessions import (
    GREET_NS,
    PARKED_MAX,
    PARKED_NS,
    PEERS_MAX,
    ROUTES_MAX,
    STARTS_MAX,
    WINDOW,
    PeerSessions,
    Refusal,
    ReplayWindow,
)
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.wire.peer.bodies import Body, RaftBody
from liftbridge_broker.wire.peer.frame import (
    NO_START,
    SHORT_BYTES_MAX,
    SIGNATURE_SIZE,
    START_SIZE,
    Piece,
    SigningKey,
    open_frame,
    read_signed,
    signed_frame,
    start_of,
)
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring, parse_keys
from liftbridge_broker.wire.peer.membership import Discover, Hello
from liftbridge_broker.wire.peer.messages import PeerHeader, encode
from liftbridge_testkit.peer_messages import body_of, kinds

KEY, OLD, OTHER = ("k" * 32, "o" * 32, "x" * 32)
SEARCH_KINDS = {"discover", "discover_reply", "join"}


def ring(*lines: str) -> Keyring:
    return parse_keys("\n".join(lines), "keys")


START_PLACE = 6
"""Place of the sender's start in a signed frame: after key id, version and length of the name."""


class Wires:
    """Carries frames at once, unless they are kept; notes all."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.links: dict[str, PeerLink] = {}
        self.sent: list[tuple[str, Channel, bytes]] = []
        self.heard: list[tuple[str, PeerHeader, bytes]] = []
        self.is_cut = False

    def start(self, broker: str, incarnation: str, keys: Keyring, cluster: str = "id") -> PeerLink:
        """A process of a broker, in place of the one before."""
        sessions = PeerSessions(
            BrokerId(broker), incarnation, keys, Random(incarnation), lambda: self.now
        )
        link = self.links[broker] = PeerLink(_Port(self), sessions, cluster)
        return link

    def deliver(self, broker: str, channel: Channel, payload: bytes) -> bool:
        """Give a frame to a broker; whether it was believed."""
        link = self.links[broker]
        message = link.receive(channel, payload)
        is_taken = message is not None and link.is_ours(message[0])
        if message is not None and is_taken:
            self.heard.append((broker, *message))
        return is_taken

    def frame_to(self, broker: str) -> bytes:
        """The last frame sent to a broker."""
        return next(payload for target, _, payload in reversed(self.sent) if target == broker)


class _Port:
    """One end of the wires."""

    is_connected = True
    payload_bytes_max = 1 << 20

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        wires = self._wires
        wires.sent.append((broker, channel, payload))
        if not wires.is_cut:
            for name in list(wires.links) if broker == EVERYONE else [broker]:
                if name in wires.links:
                    wires.deliver(name, channel, payload)

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Do nothing: nobody is absent."""


def acquainted(*lines: str) -> Wires:
    """Brokers a and b that know each other; what is sent now is kept back."""
    wires = Wires()
    a = wires.start("a", "a-1", ring(*lines or (KEY,)))
    wires.start("b", "b-1", ring(*lines or (KEY,)))
    a.send(BrokerId("b"), Channel.METADATA, RaftBody())
    assert [broker for broker, *_ in wires.heard] == ["b"]
    wires.is_cut = True
    wires.heard.clear()
    return wires


def say(
    wires: Wires, body: Body, sender: str = "a", target: str = "b", tail: bytes = b"tail"
) -> bytes:
    """A frame as `sender` makes it."""
    wires.links[sender].send(BrokerId(target), Channel.METADATA, body, tail)
    return wires.frame_to(target)


def sign(
    secret: str,
    body: Body,
    *,
    sender: str = "a",
    incarnation: str = "a-1",
    target: str = "b",
    target_start: bytes | None = None,
    cluster: str = "id",
    sequence: int = 1 << 20,
    named: tuple[str, str] | None = None,
) -> bytes:
    """A frame made by somebody who has `secret`."""
    key = ring(secret).signer
    assert key is not None
    aim = start_of("b-1") if target_start is None else target_start
    name, start_name = named or (sender, incarnation)
    return signed_frame(
        SigningKey(key, sender, start_of(incarnation), "" if aim == NO_START else target, aim),
        encode(PeerHeader(cluster, BrokerId(name), start_name, 0, 0, body), b"tail"),
        channel=Channel.METADATA,
        sequence=sequence,
    )


def _unsigned(wires: Wires, body: Body) -> bytes:
    del wires
    return open_frame(encode(PeerHeader("id", BrokerId("a"), "a-1", 0, 0, body), b"tail"))


def _unsigned_without_cluster(wires: Wires, body: Body) -> bytes:
    del wires
    return open_frame(encode(PeerHeader("", BrokerId("a"), "a-1", 0, 0, body), b"tail"))


def _replayed(wires: Wires, body: Body) -> bytes:
    frame = say(wires, body)
    wires.deliver("b", Channel.METADATA, frame)
    wires.heard.clear()
    return frame


def _replayed_after_restart(wires: Wires, body: Body) -> bytes:
    frame = say(wires, body)
    wires.start("b", "b-2", ring(KEY))
    return frame


def _replayed_of_a_former_start(wires: Wires, body: Body) -> bytes:
    frame = _replayed(wires, body)
    wires.start("a", "a-2", ring(KEY))
    wires.is_cut = False
    wires.links["a"].send(BrokerId("b"), Channel.METADATA, RaftBody())
    wires.is_cut = True
    wires.heard.clear()
    return frame


def _other_key_id(wires: Wires, body: Body) -> bytes:
    frame = bytearray(say(wires, body))
    frame[0] ^= 1
    return bytes(frame)


FORGERIES: dict[str, Callable[[Wires, Body], bytes]] = {
    "no signature": _unsigned,
    "no signature and no cluster": _unsigned_without_cluster,
    "wrong key": lambda _wires, body: sign(OTHER, body),
    "wrong key under the right id": lambda wires, body: (
        say(wires, body)[:4] + sign(OTHER, body)[4:]
    ),
    "key that is not listed any more": lambda _wires, body: sign(OLD, body),
    "key id that is not listed": _other_key_id,
    "replayed": _replayed,
    "replayed after a restart of the receiver": _replayed_after_restart,
    "replayed after a restart of the sender": _replayed_of_a_former_start,
    "greeting": lambda _wires, body: sign(KEY, body, target_start=NO_START),
    "start that did not answer": lambda _wires, body: sign(KEY, body, incarnation="a-9"),
    "broker that did not answer": lambda _wires, body: sign(
        KEY, body, sender="c", incarnation="c-1"
    ),
    "other sender inside": lambda _wires, body: sign(KEY, body, named=("c", "a-1")),
    "other start inside": lambda _wires, body: sign(KEY, body, named=("a", "a-9")),
    "meant for another broker": lambda _wires, body: sign(KEY, body, target="c"),
    "meant for another start": lambda _wires, body: sign(KEY, body, target_start=start_of("b-0")),
    "header turned to the sender's own": lambda wires, body: say(wires, body, "b", "a"),
}


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_forged_message_of_any_kind_is_believed(kind: str, forgery: str) -> None:
    wires = acquainted()
    frame = FORGERIES[forgery](wires, body_of(kind))
    is_question = kind == "discover" and forgery == "greeting"

    assert wires.deliver("b", Channel.METADATA, frame) is is_question
    assert bool(wires.heard) is is_question


@pytest.mark.parametrize("kind", kinds())
def test_a_message_of_another_cluster_with_the_same_secret_is_not_ours(kind: str) -> None:
    for cluster in ("other", ""):
        wires = acquainted()
        is_search = kind in SEARCH_KINDS and not cluster
        frame = sign(KEY, body_of(kind), cluster=cluster)
        assert wires.deliver("b", Channel.METADATA, frame) is is_search


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_is_believed_when_nothing_is_wrong(kind: str) -> None:
    for lines in ((KEY,), (KEY, OLD), (OLD, KEY), (KEY, "open"), ("open", KEY)):
        wires = acquainted(*lines)
        frame = say(wires, body_of(kind))
        # The exchange of challenges ends in the link.
        assert wires.deliver("b", Channel.METADATA, frame) is (kind != "hello")


@pytest.mark.parametrize("kind", kinds())
def test_a_message_with_any_byte_changed_or_cut_anywhere_is_not_believed(kind: str) -> None:
    wires = acquainted()
    assert_only_whole(wires, say(wires, body_of(kind)))
    assert wires.heard == []


@pytest.mark.parametrize("beyond", [0, 1])
def test_both_signatures_hold_where_one_gives_way_to_the_other(beyond: int) -> None:
    wires = acquainted()
    shortest = len(say(wires, RaftBody(), tail=b""))
    tail = Random(beyond).randbytes(SHORT_BYTES_MAX + SIGNATURE_SIZE + beyond - shortest)
    frame = say(wires, RaftBody(), tail=tail)
    assert len(frame) - SIGNATURE_SIZE == SHORT_BYTES_MAX + beyond

    assert_only_whole(wires, frame)
    assert wires.deliver("b", Channel.METADATA, frame)


def assert_only_whole(wires: Wires, frame: bytes) -> None:
    """No frame that differs from this one in a byte or in its length is believed."""
    for place in range(len(frame)):
        for flip in (1, 128):
            damaged = bytearray(frame)
            damaged[place] ^= flip
            assert not wires.deliver("b", Channel.METADATA, bytes(damaged))
        assert not wires.deliver("b", Channel.METADATA, frame[:place])
        assert not wires.deliver("b", Channel.METADATA, frame + frame[: place + 1])
    assert not wires.deliver("b", Channel.DATA, frame)


def test_chunks_are_signed_one_by_one() -> None:
    wires = acquainted()
    tail = Random(1).randbytes(3 << 20)
    before = len(wires.sent)
    wires.links["a"].send(BrokerId("b"), Channel.DATA, RaftBody(), tail)
    chunks = [payload for _, _, payload in wires.sent[before:]]
    assert len(chunks) == 4

    for chunk in chunks:
        damaged = bytearray(chunk)
        damaged[len(damaged) // 2] ^= 1
        assert not wires.deliver("b", Channel.DATA, bytes(damaged))
        assert not wires.deliver("b", Channel.METADATA, chunk)
    took = [wires.deliver("b", Channel.DATA, chunk) for chunk in chunks]

    assert took == [False, False, False, True]
    assert wires.heard[-1][2] == tail


def test_a_restarted_broker_is_recognised_and_the_first_messages_wait_for_that() -> None:
    wires = acquainted()
    wires.is_cut = False
    wires.start("b", "b-2", ring(KEY))
    wires.links["a"].send(BrokerId("b"), Channel.METADATA, RaftBody(), b"lost")
    wires.links["a"].send(BrokerId("b"), Channel.METADATA, RaftBody(), b"there")
    assert [tail for *_, tail in wires.heard] == [b"there"]

    wires.start("a", "a-2", ring(KEY))
    wires.links["a"].send(BrokerId("b"), Channel.METADATA, RaftBody(), b"first")
    wires.links["b"].send(BrokerId("a"), Channel.METADATA, RaftBody(), b"back")
    assert [tail for *_, tail in wires.heard] == [b"there", b"first", b"back"]


def test_keys_rotate_while_brokers_talk() -> None:
    wires = acquainted(OLD)
    wires.is_cut = False
    a, b = wires.links["a"], wires.links["b"]
    steps = (
        (OLD,), (OLD, KEY), (KEY, OLD), (KEY,), (KEY, "open"), ("open", KEY), ("open",),
        ("open", KEY), (KEY, "open"), (KEY,),
    )  # fmt: skip
    for before, after in pairwise(steps):
        for one, other in ((after, before), (after, after)):
            a.sessions.set_keys(ring(*one))
            b.sessions.set_keys(ring(*other))
            wires.now = Instant(wires.now + GREET_NS)
            wires.heard.clear()
            a.send(BrokerId("b"), Channel.DATA, RaftBody())
            b.send(BrokerId("a"), Channel.DATA, RaftBody())
            assert [broker for broker, *_ in wires.heard] == ["b", "a"], (one, other)


def of_b(incarnation: str, sequence: int) -> bytes:
    """A frame from a start of b to a, as only b can make it."""
    return sign(
        KEY,
        RaftBody(),
        sender="b",
        incarnation=incarnation,
        target="a",
        target_start=start_of("a-1"),
        sequence=1 << 20 | sequence,
    )


def test_the_frames_of_a_key_that_is_listed_no_longer_are_believed_no_longer() -> None:
    wires = acquainted()
    assert wires.deliver("a", Channel.METADATA, of_b("b-1", 1))
    wires.links["a"].sessions.set_keys(ring(OTHER))
    assert not wires.deliver("a", Channel.METADATA, of_b("b-1", 2))
    assert wires.links["a"].sessions.refused[Refusal.UNKNOWN_KEY] == 1
    wires.links["a"].sessions.set_keys(ring(OTHER, KEY))
    assert wires.deliver("a", Channel.METADATA, of_b("b-1", 3))
    assert not wires.deliver("a", Channel.METADATA, of_b("b-1", 1))


@pytest.mark.parametrize("forgets", ["the start", "the broker"])
def test_the_frames_of_who_was_forgotten_are_believed_no_longer(forgets: str) -> None:
    wires = acquainted()
    a = wires.links["a"]
    assert wires.deliver("a", Channel.METADATA, of_b("b-1", 1))
    if forgets == "the start":
        wires.is_cut = False
        for number in range(STARTS_MAX):
            fresh = wires.start("b", f"b-{number + 2}", ring(KEY))
            fresh.send(BrokerId("a"), Channel.METADATA, RaftBody())
    else:
        for number in range(PEERS_MAX):
            a.send(BrokerId(f"n{number}"), Channel.METADATA, RaftBody())
    assert not wires.deliver("a", Channel.METADATA, of_b("b-1", 2))
    assert a.sessions.refused[Refusal.START] == 1


def test_a_recorded_answer_introduces_nobody() -> None:
    """A frame held back, of a start that is over, must not take the place of the present one."""
    wires = acquainted()
    late = say(wires, RaftBody())
    hello = sign(KEY, Hello(0, 12345), incarnation="a-0")
    wires.start("b", "b-1", ring(KEY))

    assert not wires.deliver("b", Channel.METADATA, late)
    assert not wires.deliver("b", Channel.METADATA, hello)
    assert wires.links["b"].sessions.outgoing(BrokerId("a")) is None


def test_everyone_may_be_asked_for_a_cluster_and_nothing_else() -> None:
    wires = acquainted()
    question = body_of("discover")
    assert wires.deliver("b", Channel.METADATA, say(wires, question, target=EVERYONE))
    for kind in kinds():
        is_taken = wires.deliver("b", Channel.METADATA, say(wires, body_of(kind), target=EVERYONE))
        assert is_taken is (kind == "discover")


def test_greetings_to_a_silent_broker_are_few() -> None:
    wires = Wires()
    a = wires.start("a", "a-1", ring(KEY))
    for _ in range(100):
        a.send(BrokerId("z"), Channel.METADATA, RaftBody())
    assert len(wires.sent) == 1
    wires.now = Instant(GREET_NS)
    a.send(BrokerId("z"), Channel.METADATA, RaftBody())
    assert len(wires.sent) == 2


def test_what_waits_for_an_answer_is_bounded_and_not_sent_too_late() -> None:
    wires = Wires()
    a = wires.start("a", "a-1", ring(KEY))
    for number in range(PARKED_MAX + 9):
        a.send(BrokerId("b"), Channel.METADATA, RaftBody(), bytes((number,)))
    wires.start("b", "b-1", ring(KEY))
    wires.now = Instant(GREET_NS)
    a.send(BrokerId("b"), Channel.METADATA, RaftBody())
    assert [tail[0] for *_, tail in wires.heard] == list(range(PARKED_MAX))

    late = Wires()
    a = late.start("a", "a-1", ring(KEY))
    a.send(BrokerId("b"), Channel.METADATA, RaftBody(), b"old")
    late.start("b", "b-1", ring(KEY))
    late.now = Instant(PARKED_NS + 1)
    a.send(BrokerId("b"), Channel.METADATA, RaftBody(), b"new")
    assert [tail for *_, tail in late.heard] == [b"new"]


def test_what_is_remembered_of_others_is_bounded() -> None:
    wires = Wires()
    a = wires.start("a", "a-1", ring(KEY))
    for number in range(PEERS_MAX + 10):
        a.send(BrokerId(f"n{number}"), Channel.METADATA, RaftBody())
    wires.start("b", "b-0", ring(KEY))
    starts = [f"b-{number}" for number in range(STARTS_MAX + 3)]
    for name in starts:
        wires.start("b", name, ring(KEY)).send(BrokerId("a"), Channel.METADATA, RaftBody())
    assert len(wires.heard) == len(starts)
    assert a.sessions.remembered_count <= PEERS_MAX + STARTS_MAX + 1


def test_routes_of_forged_fronts_are_bounded_and_known_senders_stay_known() -> None:
    wires = acquainted()
    frame = say(wires, RaftBody())
    before, after = frame[:START_PLACE], frame[START_PLACE + START_SIZE :]
    for number in range(ROUTES_MAX + 10):
        forged = before + number.to_bytes(START_SIZE, "big") + after
        assert not wires.deliver("b", Channel.METADATA, forged)
    assert wires.deliver("b", Channel.METADATA, frame)
    assert 0 < len(wires.links["b"].sessions._routes) <= ROUTES_MAX


def test_nothing_unsigned_is_believed_unless_the_ring_says_so() -> None:
    for lines, is_believed in (((KEY,), False), ((KEY, "open"), True), (("open", KEY), True)):
        wires = acquainted(*lines)
        frame = _unsigned(wires, RaftBody())
        assert wires.deliver("b", Channel.METADATA, frame) is is_believed
    wires = acquainted()
    wires.deliver("b", Channel.METADATA, _unsigned(wires, RaftBody()))
    assert wires.links["b"].sessions.refused[Refusal.UNSIGNED] == 1


def test_a_broker_without_a_secret_takes_no_signed_frame_and_no_challenge() -> None:
    wires = Wires()
    b = wires.start("b", "b-1", OPEN_KEYRING)
    assert not wires.deliver("b", Channel.METADATA, sign(KEY, RaftBody()))
    assert not wires.deliver("b", Channel.METADATA, _unsigned(wires, Hello(1, 0)))
    assert b.sessions.refused[Refusal.UNKNOWN_KEY] == b.sessions.refused[Refusal.KIND] == 1


def test_a_question_of_oneself_comes_back_and_starts_nothing() -> None:
    wires = Wires()
    a = wires.start("a", "a-1", ring(KEY))
    a.send(EVERYONE, Channel.METADATA, Discover("d", is_empty=True, cluster_id=""))
    assert [(broker, header.sender) for broker, header, _ in wires.heard] == [("a", "a")]
    assert len(wires.sent) == 1


def test_the_window_admits_each_sequence_once_and_nothing_too_old() -> None:
    random = Random(7)
    window, admitted, highest = ReplayWindow(), set[int](), -1
    base = 0
    for _ in range(20_000):
        base += random.choice((0, 0, 1, 1, 1, 2, 50))
        sequence = max(0, base - random.choice((0, 0, 0, 1, 5, WINDOW - 1, WINDOW, 2 * WINDOW)))
        expected = sequence not in admitted and sequence > highest - WINDOW
        assert window.admit(sequence) is expected
        admitted.add(sequence)
        highest = max(highest, sequence)


def test_a_signed_frame_that_says_too_much_is_malformed() -> None:
    wires = acquainted()
    frame = say(wires, RaftBody())
    assert read_signed(frame).piece == Piece(*read_signed(frame).piece)
    before = wires.links["b"].malformed_count
    kind = 38 + len("a")  # behind the name of the sender
    for place, value in ((kind, b"\x07"), (kind + 1, b"\x02"), (kind + 2, b"\x01")):
        bad = frame[:place] + value + frame[place + 1 :]
        assert not wires.deliver("b", Channel.METADATA, bad)
    for bad in (frame[:60], frame[:5] + b"\xff" + frame[6:]):
        assert not wires.deliver("b", Channel.METADATA, bad)
    assert wires.links["b"].malformed_count == before + 5
