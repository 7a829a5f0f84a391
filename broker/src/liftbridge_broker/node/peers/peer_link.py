"""Messages to and from other brokers: headers, frames and signatures.

With a secret, every frame is signed for one process of the target broker, which must be known first
(`node.peers.peer_sessions`): until it has answered, a few messages wait. Without a secret, frames
are sent unsigned and accepted.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.peers.peer_sessions import PeerSessions, Refusal, Standing
from liftbridge_broker.ports.transport import EVERYONE, Channel, Transport
from liftbridge_broker.wire.peer.bodies import Body
from liftbridge_broker.wire.peer.frame import (
    MESSAGE,
    NO_START,
    Origin,
    Piece,
    SignedFrame,
    SigningKey,
    is_signed,
    open_frame,
    read_open,
    read_signed,
    signed_frame,
)
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING
from liftbridge_broker.wire.peer.membership import Discover, DiscoverReply, Hello, Join
from liftbridge_broker.wire.peer.messages import PeerHeader, Reassembler, encode, pack

_WITHOUT_CLUSTER: Final = (Discover, DiscoverReply, Join)
"""Messages that a broker without a cluster may send and receive."""


class NoPeers:
    """Transport of a sole broker, which has no peers."""

    is_connected = False
    payload_bytes_max = MIB

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Drop the payload."""

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Do nothing."""


class _NoChance:
    """Random source of a broker without a secret, which sends no challenges."""

    def randrange(self, stop: int, /) -> int:
        """Fail, as this is never called."""
        raise AssertionError(stop)


def unsigned_sessions(broker: BrokerId, incarnation_id: str) -> PeerSessions:
    """Sessions of a broker without a secret."""
    return PeerSessions(broker, incarnation_id, OPEN_KEYRING, _NoChance(), lambda: Instant(0))


class PeerLink:
    """Sends and receives messages in the name of this broker.

    Args:
        transport: Carries frames.
        sessions: Known peer processes; owned by this process.
        cluster_id: Cluster it belongs to; empty before it has one.

    Attributes:
        sessions: See above.
        cluster_id: See above.
        founders_id: Id that members use for a cluster without one
            (`node.metadata.bootstrap.founded_by`); empty without members.
        broker: Its name.
        incarnation_id: This process of the broker.
        broker_epoch: Its registration; 0 before it has one.
        lost_count: Messages too long to send.
        malformed_count: Frames that could not be read.
    """

    def __init__(self, transport: Transport, sessions: PeerSessions, cluster_id: str = "") -> None:
        """Start unregistered."""
        self._transport = transport
        self.sessions = sessions
        self._message_id = 0
        # Chunks arrive in order on one connection, and each channel has a separate one.
        self._chunks = {channel: Reassembler() for channel in Channel}
        self.cluster_id = cluster_id
        self.founders_id = ""
        self.broker = sessions.broker
        self.incarnation_id = sessions.incarnation_id
        self.broker_epoch = 0
        self.lost_count = 0
        self.malformed_count = 0

    @property
    def is_connected(self) -> bool:
        """Return whether messages can be sent now."""
        return self._transport.is_connected

    @property
    def held_bytes(self) -> int:
        """Bytes of partially received messages."""
        return sum(chunks.held_bytes for chunks in self._chunks.values())

    # -- sending ------------------------------------------------------------------------------

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Learn from NATS if nobody listens for a broker; see `Transport.probe`."""
        self._transport.probe(broker, channel, sent_at)

    def send(
        self,
        broker: BrokerId,
        channel: Channel,
        body: Body,
        tail: bytes = b"",
        *,
        correlation_id: int = 0,
    ) -> None:
        """Send at most once; a message that is too long is lost, as any message may be."""
        self._message_id += 1
        try:
            pieces = pack(
                self._header(body, correlation_id),
                tail,
                payload_bytes_max=self._transport.payload_bytes_max,
                message_id=self._message_id,
            )
        except WireError:
            self.lost_count += 1
            return
        key = self.sessions.keys.signer
        if key is None:
            for piece in pieces:
                self._transport.send(broker, channel, open_frame(piece))
        elif broker == EVERYONE:
            self._send_signed(
                self.sessions.outgoing_key(broker, NO_START, key), broker, channel, pieces
            )
        elif (outgoing := self.sessions.outgoing(broker)) is not None:
            self._send_signed(outgoing, broker, channel, pieces)
        else:
            self._park(broker, channel, pieces)
            self._greet(broker)

    def _header(self, body: Body, correlation_id: int = 0) -> PeerHeader:
        is_search = isinstance(body, _WITHOUT_CLUSTER)
        return PeerHeader(
            self.cluster_id if is_search else self.cluster_id or self.founders_id,
            self.broker,
            self.incarnation_id,
            self.broker_epoch,
            correlation_id,
            body,
        )

    def _send_signed(
        self, key: SigningKey, broker: BrokerId, channel: Channel, pieces: Sequence[Piece]
    ) -> None:
        for piece in pieces:
            sequence = self.sessions.next_sequence()
            frame = signed_frame(key, piece, channel=channel, sequence=sequence)
            self._transport.send(broker, channel, frame)

    def _park(self, broker: BrokerId, channel: Channel, pieces: Sequence[Piece]) -> None:
        """Hold a message until its target broker has answered a challenge."""

        def send() -> None:
            key = self.sessions.outgoing(broker)
            if key is not None:
                self._send_signed(key, broker, channel, pieces)

        self.sessions.park(broker, sum(len(piece.head) + len(piece.tail) for piece in pieces), send)

    def _greet(self, broker: BrokerId) -> None:
        """Challenge a broker, unless it was challenged recently."""
        if self.sessions.may_greet(broker):
            self._say(broker, NO_START, Hello(self.sessions.challenge_for(broker), 0))

    def _say(self, broker: BrokerId, start: bytes, hello: Hello) -> None:
        """Send one message of the challenge exchange; use the first key while nothing is signed."""
        key = self.sessions.keys.first_key
        if key is not None:
            outgoing = self.sessions.outgoing_key(broker, start, key)
            self._send_signed(outgoing, broker, Channel.METADATA, [encode(self._header(hello))])

    # -- receiving ----------------------------------------------------------------------------

    def receive(self, channel: Channel, payload: bytes) -> tuple[PeerHeader, bytes] | None:
        """Handle a frame; return the message that it holds or completes, if authentic."""
        try:
            if is_signed(payload):
                return self._receive_signed(channel, read_signed(payload))
            if not self.sessions.keys.accepts_unsigned:  # guard Auth.unsigned
                self.sessions.refuse(Refusal.UNSIGNED)
                return None
            message = self._chunks[channel].take(read_open(payload))
        except WireError:
            self.malformed_count += 1
            return None
        if message is not None and isinstance(message[0].body, Hello):
            self.sessions.refuse(Refusal.KIND)
            return None
        return message

    def _receive_signed(
        self, channel: Channel, frame: SignedFrame
    ) -> tuple[PeerHeader, bytes] | None:
        route = self.sessions.judge(channel, frame)
        if route is None:
            return None
        origin = route.origin
        match route.standing:
            case Standing.KNOWN:
                return self._receive_known(channel, origin, frame.piece)
            case Standing.GREETING:
                return self._receive_greeting(origin, frame.piece)
            case Standing.UNKNOWN:
                self._receive_unknown(origin, frame.piece)
            case Standing.FORMER:
                self.sessions.refuse(Refusal.START)
                self._greet(origin.sender)
        return None

    def _receive_known(
        self, channel: Channel, origin: Origin, piece: Piece
    ) -> tuple[PeerHeader, bytes] | None:
        message = self._chunks[channel].take(piece, origin.sender)
        if message is None:
            return None
        if not self.sessions.names_itself(origin, message[0]):
            raise WireError("peer message: header and signature of different processes")
        if isinstance(message[0].body, Hello):
            self._on_hello(origin, message[0].body)
            return None
        return message

    def _read(self, origin: Origin, piece: Piece) -> tuple[PeerHeader, bytes]:
        """Decode the message of a frame that is not a chunk, from the process that signed it.

        Raises:
            WireError: The frame is a chunk, is malformed, or names another sender or process.
        """
        if piece.kind != MESSAGE:
            raise WireError("peer message: a chunk of an unknown process")
        message = Reassembler().take(piece, origin.sender)
        if message is None or not self.sessions.names_itself(origin, message[0]):
            raise WireError("peer message: header and signature of different processes")
        return message

    def _receive_greeting(self, origin: Origin, piece: Piece) -> tuple[PeerHeader, bytes] | None:
        """Handle a frame that may be a replay: it can ask, but must not change anything."""
        header, tail = self._read(origin, piece)
        match header.body:
            case Discover():  # guard Auth.greeting
                return header, tail
            case Hello(challenge, 0) if challenge and origin.sender != self.broker:
                self._answer(origin, challenge)
            case _:
                self.sessions.refuse(Refusal.KIND)
        return None

    def _receive_unknown(self, origin: Origin, piece: Piece) -> None:
        """Handle a frame of a process that has not answered yet: only an answer counts."""
        header, _ = self._read(origin, piece)
        if isinstance(header.body, Hello):
            self._on_hello(origin, header.body)
            return
        self.sessions.refuse(Refusal.START)
        self._greet(origin.sender)

    def _on_hello(self, origin: Origin, hello: Hello) -> None:
        is_answer = self.sessions.on_answer(origin, hello.answer)
        if hello.challenge:
            # Answer first: the other process accepts the frames that follow only after that.
            self._answer(origin, hello.challenge)
        if is_answer:
            for send in self.sessions.take_parked(origin.sender):
                send()

    def _answer(self, origin: Origin, challenge: int) -> None:
        """Answer a challenge, and challenge in return while the other process is unknown."""
        hello = Hello(self.sessions.challenge_in_return(origin), challenge)
        self._say(origin.sender, origin.sender_start, hello)

    def is_ours(self, header: PeerHeader) -> bool:
        """Return whether a message belongs to this cluster, or to the search for one."""
        if isinstance(header.body, _WITHOUT_CLUSTER):
            return not (
                header.cluster_id and self.cluster_id and header.cluster_id != self.cluster_id
            )
        own = self.cluster_id or self.founders_id
        return own != "" and header.cluster_id == own  # guard Peer.cluster
