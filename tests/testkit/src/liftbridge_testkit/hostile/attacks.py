"""Attacks of clients on a broker: bytes for each connection, generated where possible.

An attack is a number of connections to the broker or its NATS server, what each of them says first
and then again and again, and whether it reads what comes back. Numbers of streams rise from round
to round.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.grpc import literal
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.http2_peer import Http2Peer, prefixed
from liftbridge_testkit.nats_floods import ARRIVALS, PAYLOADS, published
from liftbridge_testkit.request_lists import ADMIN, CASES, STREAM, UNARY, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

FRAME_BYTES: Final = 16 << 10
FLOOD_BYTES: Final = 64 << 10
LIST_ENTRIES: Final = 50_000
LARGE_STREAM: Final = "large"
"""Holds records of 900 KB."""

CONNECTIONS_MAX: Final = 600
"""Connections that brokers under attack allow."""

CONFIG: Final = {"logging.format": "json", "grpc.max.connections": CONNECTIONS_MAX}
IDLE_CONNECTIONS: Final = CONNECTIONS_MAX + 200
BURST: Final = 1_000
MANY: Final = 100
_ALL_WINDOW: Final = (1 << 31) - 1
_WIDE: Final = {frames.SETTING_INITIAL_WINDOW_SIZE: _ALL_WINDOW}
_COUNT_MAX: Final = 200
"""Requests of one round; a new round is built each time."""


class Attack(NamedTuple):
    """See the module.

    Attributes:
        name: Name of the attack.
        connections: Number of simultaneous connections.
        round: Bytes of a round, by the number of the first stream that is free; and how many
            streams it takes.
        settings: First SETTINGS of the client.
        is_reading: Whether it reads what comes back.
        rounds_max: Rounds of one connection.
        is_on_nats: Whether it goes to the NATS server instead of the broker.
        has_hello: Whether it begins with a preface and SETTINGS.
    """

    name: str
    connections: int
    round: Callable[[int], tuple[bytes, int]]
    settings: dict[int, int] | None = None
    is_reading: bool = True
    rounds_max: int = 1_000_000
    is_on_nats: bool = False
    has_hello: bool = True


@cache
def _head(path: str, more: int = 0) -> bytes:
    """Return a header block without the table, with further fields."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *((b"x%d" % number, b"y") for number in range(more)),
    ]
    return b"".join(literal(name, value) for name, value in fields)


def _headers(stream_id: int, path: str, more: int = 0) -> bytes:
    return frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, stream_id, _head(path, more))


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _data(stream_id: int, payload: bytes, *, ends: bool = True) -> bytes:
    """DATA frames of a payload."""
    pieces = [payload[at : at + FRAME_BYTES] for at in range(0, len(payload), FRAME_BYTES)]
    return b"".join(
        Http2Peer.data(stream_id, piece, ends=ends and number == len(pieces) - 1)
        for number, piece in enumerate(pieces)
    )


def calls(path: str, message: bytes, count: int, first: int) -> tuple[bytes, int]:
    """Whole calls, one after the other."""
    payload = prefixed(message)
    ids = range(first, first + 2 * count, 2)
    return b"".join(_headers(one, path) + _data(one, payload) for one in ids), count


def _begun(path: str, payload: bytes, count: int, first: int) -> tuple[bytes, int]:
    """Return the calls that do not end."""
    ids = range(first, first + 2 * count, 2)
    return b"".join(_headers(one, path) + _data(one, payload, ends=False) for one in ids), count


def _resets(path: str, count: int, first: int) -> tuple[bytes, int]:
    reset = frames.rst_stream_frame
    ids = range(first, first + 2 * count, 2)
    return b"".join(_headers(one, path) + reset(one, frames.Http2Code.CANCEL) for one in ids), count


def _wide_headers(path: str, fields: int, count: int, first: int) -> tuple[bytes, int]:
    ids = range(first, first + 2 * count, 2)
    return b"".join(_headers(one, path, fields) for one in ids), count


def _repeated(data: bytes, count: int, _first: int) -> tuple[bytes, int]:
    return data * count, 0


def _continued(path: str, first: int) -> tuple[bytes, int]:
    """Return a header block in as many frames as it has bytes."""
    block = _head(path)
    begun = frames.frame(frames.HEADERS, 0, first, b"")
    return begun + b"".join(
        frames.frame(frames.CONTINUATION, 0, first, block[at : at + 1]) for at in range(len(block))
    ), 1


def _settings() -> bytes:
    """Return one frame that sets the window as often as fits."""
    pair = frames.SETTING_INITIAL_WINDOW_SIZE.to_bytes(2, "big")
    entries = b"".join(pair + size.to_bytes(4, "big") for size in (1, 65_535) * 1_365)
    return frames.frame(frames.SETTINGS, 0, 0, entries)


def _listed() -> list[Attack]:
    """Return a list of very many items in every unary call, in many calls at once."""
    found = []
    for case in CASES:
        if case.method.containing_service == ADMIN:
            continue  # the admin port is for operators
        for distinct in (False, True) if not case.is_map else (True,):
            message = case.request(distinct=distinct, times=LIST_ENTRIES).SerializeToString()
            kind = "others" if distinct else "the same"
            name = f"list of {case.name}, {kind}"
            found.append(Attack(name, 1, partial(calls, _path(case.method), message, 10)))
    return found


def _unary() -> list[Attack]:
    """Return every unary call a thousand times on one connection, and on a hundred."""
    found = []
    for method in UNARY:
        if method.containing_service == ADMIN:
            continue
        message = named(GetMessageClass(method.input_type)()).SerializeToString()
        if method.name == "FetchMetadata":
            message = b""  # of all streams
        for connections in (1, MANY):
            name = f"{method.name} without end on {connections}"
            one = partial(calls, _path(method), message, _COUNT_MAX if connections == 1 else 20)
            found.append(Attack(name, connections, one))
    return found


def _floods() -> list[Attack]:
    """Return messages on the subject of a stream, as fast as the NATS server takes them."""
    found = []
    for (arrival, kinds), (payload, value) in product(ARRIVALS.items(), PAYLOADS.items()):
        pair = b"".join(published(LARGE_STREAM, kind, value) for kind in kinds)
        one = partial(_repeated, pair * (FLOOD_BYTES // len(pair) + 1), 1)
        name = f"flood of NATS, {arrival}, {payload}"
        found.append(Attack(name, 1, one, is_on_nats=True))
    return found


def _idle() -> list[Attack]:
    """More connections than the broker allows, none of which makes a call."""
    said = {
        "silent": (b"", False),
        "PING": (frames.ping_frame(b"12345678"), True),
        "SETTINGS": (frames.settings_frame({}), True),
    }
    return [
        Attack(
            f"idle connections, {name}",
            IDLE_CONNECTIONS,
            partial(_repeated, data, 1),
            rounds_max=1,
            has_hello=has_hello,
        )
        for name, (data, has_hello) in said.items()
    ]


def _unread() -> list[Attack]:
    """Return the readers of every kind that read nothing of what they ask for."""
    forward = api_pb2.SubscribeRequest(stream=LARGE_STREAM, startPosition=api_pb2.EARLIEST)
    reverse = api_pb2.SubscribeRequest(
        stream=LARGE_STREAM, startPosition=api_pb2.LATEST, reverse=True
    )
    batches = data_pb2.FetchBatchesRequest(stream=LARGE_STREAM, follow=True)
    kinds: tuple[tuple[str, str, Message], ...] = (
        ("subscriptions", "/proto.API/Subscribe", forward),
        ("reverse subscriptions", "/proto.API/Subscribe", reverse),
        ("batches", "/liftbridge.ext.v1.Data/FetchBatches", batches),
    )
    return [
        Attack(
            f"unread {name}",
            MANY,
            partial(calls, path, message.SerializeToString(), MANY),
            _WIDE,
            is_reading=False,
            rounds_max=1,
        )
        for name, path, message in kinds
    ]


def _woken(first: int) -> tuple[bytes, int]:
    """Subscriptions to what comes, once; then a message that wakes all of them."""
    waiting = api_pb2.SubscribeRequest(stream=LARGE_STREAM, startPosition=api_pb2.NEW_ONLY)
    begun, count = b"", 0
    if first == 1:
        message = waiting.SerializeToString()
        begun, count = calls("/proto.API/Subscribe", message, MANY - 1, first)
    message = api_pb2.PublishRequest(stream=LARGE_STREAM, value=b"v").SerializeToString()
    publish, _ = calls("/proto.API/Publish", message, 1, first + 2 * count)
    return begun + publish, count + 1


def attacks() -> Sequence[Attack]:
    """Return all of them."""
    publish, asynchronous = "/proto.API/Publish", "/proto.API/PublishAsync"
    begun = (4 << 20).to_bytes(5, "big") + bytes((4 << 20) - 10)
    pairs = (
        ("PING", frames.ping_frame(b"12345678")),
        ("SETTINGS", _settings()),
        ("empty SETTINGS", frames.settings_frame({})),
        ("WINDOW_UPDATE", frames.window_update_frame(0, 1)),
        ("PRIORITY", frames.frame(2, 0, 1, bytes(5))),
        ("unknown frames", frames.frame(0xEE, 0, 0, b"")),
    )
    tiny = prefixed(
        api_pb2.PublishRequest(stream=STREAM, ackPolicy=api_pb2.NONE).SerializeToString()
    )
    return [
        *(Attack(name, 1, partial(_repeated, data, BURST)) for name, data in pairs),
        *_unread(),
        Attack("waiting subscriptions", MANY, _woken, rounds_max=5),
        Attack("messages that do not end", 120, partial(_begun, publish, begun, 4), rounds_max=4),
        Attack("open and reset on 1", 1, partial(_resets, publish, BURST)),
        Attack("open and reset on 100", MANY, partial(_resets, publish, BURST // 2)),
        Attack("headers", MANY, partial(_wide_headers, publish, 100, 10)),
        Attack("too many headers", MANY, partial(_wide_headers, publish, 500, 10)),
        Attack("CONTINUATION", MANY, partial(_continued, publish)),
        Attack("connections", 1_000, partial(_repeated, b"", 0), rounds_max=0),
        *_idle(),
        Attack("tiny messages", 1, partial(_begun, asynchronous, tiny * 10_000, 1)),
        *_floods(),
        *_unary(),
        *_listed(),
    ]


def short() -> Sequence[str]:
    """Return the names of those of the short form: one of each kind."""
    return (
        "SETTINGS",
        "unread subscriptions",
        "unread reverse subscriptions",
        "messages that do not end",
        "open and reset on 100",
        "too many headers",
        "connections",
        "idle connections, silent",
        "idle connections, PING",
        "flood of NATS, two subjects, acked",
        "FetchMetadata without end on 1",
        "FetchMetadata without end on 100",
        "list of FetchMetadata.streams, others",
        "list of AwaitNews.streams, others",
    )
