"""An attacker on NATS without a key: reads the messages of brokers, and forges some.

It repeats frames unchanged, to the same broker or another one, at once or minutes later; changes
single bytes; or forges frames without a signature or with that of another key. A cluster with a
secret must continue as if no such frame had arrived.
"""

from collections import deque
from random import Random

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.types import Heartbeat
from liftbridge_broker.wire.peer.bodies import RaftBody
from liftbridge_broker.wire.peer.frame import (
    Piece,
    SigningKey,
    is_signed,
    open_frame,
    read_front,
    read_signed,
    signed_frame,
)
from liftbridge_broker.wire.peer.keys import parse_keys
from liftbridge_broker.wire.peer.messages import PeerHeader, decode, encode
from liftbridge_broker.wire.raft import encode_message
from liftbridge_testkit.peer_messages import body_of, kinds

RECENT_MAX = 512
OLD_MAX = 64
CLUSTER_KEYS = parse_keys("k" * 32, "keys of the simulated cluster")
"""Secret of the brokers of a cluster."""

_OTHER_KEY = parse_keys("x" * 32, "keys of somebody else").signer


class Forger:
    """The attacker; belongs to one network.

    Attributes:
        old: Old frames, kept to be repeated much later.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._recent: deque[tuple[str, Channel, bytes]] = deque(maxlen=RECENT_MAX)
        self._count = 0
        self.old: deque[tuple[str, Channel, bytes]] = deque(maxlen=OLD_MAX)

    def overhear(self, target: str, channel: Channel, payload: bytes) -> None:
        """Record a message that a broker sent to another one, or to all."""
        self._count += 1
        self._recent.append((target, channel, payload))
        if self._count % 97 == 0:
            self.old.append((target, channel, payload))

    def frame(self, brokers: list[str]) -> tuple[str, Channel, bytes] | None:
        """Return a frame with receiver and channel; `None` before the first message."""
        if not self._recent:
            return None
        random = self._random
        target, channel, payload = random.choice(
            self.old if self.old and random.random() < 0.3 else self._recent
        )
        if target not in brokers or random.random() < 0.3:
            target = random.choice(brokers)
        match random.randrange(5):
            case 0:
                pass
            case 1:
                channel = random.choice(tuple(Channel))
            case 2:
                payload = self._changed(payload)
            case _:
                payload = self._made_up(payload, target, channel)
        return target, channel, payload

    def _changed(self, payload: bytes) -> bytes:
        data = bytearray(payload)
        for _ in range(self._random.randint(1, 4)):
            data[self._random.randrange(len(data))] = self._random.randrange(256)
        return bytes(data)

    def _made_up(self, payload: bytes, target: str, channel: Channel) -> bytes:
        """Return a forged message of the sender of `payload`, with plausible content."""
        if not is_signed(payload):
            return self._changed(payload)
        try:
            frame = read_signed(payload)
            key_id, sender, sender_start, target_start = read_front(frame.front)
            piece = self._message(frame.piece, target)
        except WireError:  # it overheard a frame that it had changed
            return self._changed(payload)
        if self._random.random() < 0.5:
            return open_frame(piece)
        assert _OTHER_KEY is not None
        key = SigningKey(_OTHER_KEY, sender, sender_start, target, target_start)
        sequence = frame.sequence + self._random.randrange(1, 1 << 20)
        forged = signed_frame(key, piece, channel=channel, sequence=sequence)
        return key_id + forged[len(key_id) :]

    def _message(self, piece: Piece, target: str) -> Piece:
        if piece.kind:
            return piece
        header, tail = decode(piece)
        if isinstance(header.body, RaftBody):
            peers = [Peer(BrokerId(name), f"{name}.0") for name in (header.sender, target)]
            term = self._random.choice((1, 5, 1 << 20, 1 << 62))
            tail = encode_message(
                Heartbeat(peers[0], peers[1], term, commit=1 << 40, read_context=0)
            )
            return encode(header, tail)
        body = body_of(self._random.choice(kinds()))
        return encode(PeerHeader(*header[:-1], body), tail)
