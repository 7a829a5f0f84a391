"""Broken HTTP/2 and gRPC input, endless and repeatable: for the core alone and for live servers."""

import random
from collections.abc import Iterator
from typing import Final

from liftbridge_broker.http2 import frames
from liftbridge_testkit.http2_peer import GRPC_FIELDS, Http2Peer, prefixed

SESSIONS_MAX: Final = 200
PATHS: Final = ("/test.Echo/Bidi", "/test.Echo/Unary", "/test.Echo/Hang", "/no.Such/Method", "/")
FIELDS: Final = (
    ("grpc-timeout", "1x"),
    ("grpc-timeout", "100m"),
    ("x-bin", "?"),
    ("grpc-encoding", "gzip"),
    ("content-length", "3"),
    ("te", "gzip"),
    ("x", "y" * 40),
)


def session(rng: random.Random) -> bytes:
    """Return bytes of an ordinary client on one connection, with an occasional mistake in gRPC."""
    peer = Http2Peer()
    pieces = [peer.hello({frames.SETTING_INITIAL_WINDOW_SIZE: rng.choice((0, 10, 65_535))})]
    for stream_id in range(1, 2 * rng.randint(1, 5), 2):
        more = (*GRPC_FIELDS, *rng.sample(FIELDS, rng.choice((0, 0, 1, 2))))
        pieces.append(
            peer.request(stream_id, rng.choice(PATHS), more=more if rng.random() < 0.9 else ())
        )
        pieces += [_message(rng, stream_id) for _ in range(rng.randint(0, 3))]
        pieces.append(frames.window_update_frame(stream_id, rng.randint(1, 100)))
    pieces.append(peer.data(1, prefixed(bytes(20))[: rng.randint(1, 24)]))
    return b"".join(pieces)


def _message(rng: random.Random, stream_id: int) -> bytes:
    """Return a DATA frame with a message, or with something that is almost one."""
    body = prefixed(bytes(rng.randint(0, 60)))
    match rng.randrange(10):
        case 0:
            body = b"\x01" + body[1:]
        case 1:
            body = rng.randbytes(5) + body
        case 2:
            body = body[:-1]
        case _:
            pass
    return Http2Peer.data(stream_id, body, ends=rng.random() < 0.3)


def mutated(rng: random.Random, known: list[bytes]) -> bytes:
    """Return a session with bits flipped, bytes cut out, doubled or put in."""
    data = bytearray(rng.choice(known))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(24, len(data)) if rng.random() < 0.95 else rng.randrange(24)
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 60)]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 20))
    return bytes(data)


def random_frames(rng: random.Random, greeting: bytes) -> bytes:
    """Return well-formed frames with random contents."""
    pieces = [greeting]
    for _ in range(rng.randint(1, 12)):
        payload = rng.randbytes(rng.choice((0, 4, 5, 6, 8, 8, 9, rng.randint(0, 60))))
        stream_id = rng.choice((0, 0, 1, 1, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1))
        flags = rng.choice((0, 1, 4, 5, 8, 0x20, 0x2D, 255))
        kind = rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 255))
        pieces.append(frames.frame(kind, flags, stream_id, payload))
    return b"".join(pieces)


def broken_inputs(seed: int) -> Iterator[bytes]:
    """Endless broken inputs of each sort; the same for the same seed."""
    rng = random.Random(seed)
    # Encoding headers is slow in Python, so sessions are made once and mutated often.
    known = [session(rng) for _ in range(SESSIONS_MAX)]
    peer = Http2Peer()
    hello = peer.hello()
    greeting = hello + peer.request(1)
    while True:
        yield mutated(rng, known)
        yield mutated(rng, known)
        yield random_frames(rng, greeting)
        yield hello + rng.randbytes(rng.randint(1, 100))
