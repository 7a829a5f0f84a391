"""Which processes of other brokers are known to be there, and what they sent already.

A signature proves who made a frame, not when. So two processes exchange challenges first (`Hello`):
the answer proves that the other start is there now, and from then on its frames are signed for this
very pair of starts and numbered. A frame recorded earlier fits no later start, and within one it
falls out of the window. Delay is no attack: a frame that arrives late for the first time is taken,
as the protocols above must bear anyway.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.environment import Rng
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_frame import NO_START, SignedFrame, SigningKey, start_of
from liftbridge_broker.wire.peer_keys import Key, Keyring

WINDOW: Final = 1_024
"""Frames by which one may be overtaken."""

PEERS_MAX: Final = 1_024
"""Brokers that are remembered; a cluster has fewer."""

STARTS_MAX: Final = 4
"""Starts of one broker that are remembered: late frames of a former one may still come."""

GREET_NS: Final = 50 * MILLISECOND_NS
"""Shortest time between two challenges to one broker."""

PARKED_MAX: Final = 32
PARKED_BYTES_MAX: Final = 1024 * 1024
PARKED_NS: Final = 250 * MILLISECOND_NS
"""How long a message waits for the answer to a challenge."""

_CHALLENGE_STOP: Final = 1 << 64


class Refusal(StrEnum):
    """Why a frame is not believed; the label of a metric."""

    UNSIGNED = "unsigned"
    """It has no signature, and the secret does not list `open`."""
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    """It was changed, or made by somebody without the key."""
    CHANNEL = "channel"
    """It was signed for the other channel."""
    START = "start"
    """For a former start of this broker, or of one that answered no challenge yet."""
    REPLAYED = "replayed"
    KIND = "kind"
    """A greeting may only ask; only a signed frame may carry a challenge."""


class Standing(Enum):
    """What a signed frame is worth."""

    KNOWN = "known"
    """Of a start that answered a challenge, for this one, for the first time."""
    GREETING = "greeting"
    """For any start of this broker, perhaps repeated: it may ask."""
    UNKNOWN = "unknown"
    """For this start, of one that has not answered yet: it may answer."""
    FORMER = "former"
    """For another start of this broker: its sender does not know this one."""
    REFUSED = "refused"


class ReplayWindow:
    """Which sequences arrived: the highest and those of the `WINDOW` below it (RFC 4303, 3.4.3)."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0

    def admit(self, sequence: int) -> bool:
        """Whether a sequence comes for the first time and is not too old; it is noted."""
        ahead = sequence - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self._highest = sequence
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:  # guard Auth.window
            return False
        self._seen |= 1 << -ahead
        return True


@dataclass(slots=True)
class _Start:
    """One start of a broker that answered a challenge of this process."""

    windows: dict[Channel, ReplayWindow] = field(
        default_factory=lambda: {channel: ReplayWindow() for channel in Channel}
    )
    outgoing: dict[bytes, SigningKey] = field(default_factory=dict)
    incoming: dict[bytes, SigningKey] = field(default_factory=dict)


@dataclass(slots=True)
class _Peer:
    """A broker.

    Attributes:
        starts: Starts that answered, the present one last.
        challenge: Number that waits for its answer, 0 for none.
        greeted_at: When it was asked last.
        parked: Messages that wait until it has answered: when, and how to send it.
        parked_bytes: Their length.
    """

    starts: OrderedDict[bytes, _Start] = field(default_factory=OrderedDict)
    challenge: int = 0
    greeted_at: Instant | None = None
    parked: list[tuple[Instant, Callable[[], None]]] = field(default_factory=list)
    parked_bytes: int = 0


class PeerSessions:
    """See the module; one for each start of a broker.

    Args:
        broker: This broker.
        incarnation_id: This start of it.
        keys: Keys of the cluster; may be replaced at any time.
        rng: Chance for challenges; unpredictable in a real process.
        now: Reads the time.

    Attributes:
        keys: See above.
        start: Short form of this start.
        refused: Frames that were not believed, by reason.
    """

    def __init__(
        self,
        broker: BrokerId,
        incarnation_id: str,
        keys: Keyring,
        rng: Rng,
        now: Callable[[], Instant],
    ) -> None:
        self.broker = broker
        self.incarnation_id = incarnation_id
        self.keys = keys
        self.start = start_of(incarnation_id)
        self.refused = dict.fromkeys(Refusal, 0)
        self._rng = rng
        self._now = now
        self._sequence = 0
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._starts: dict[str, bytes] = {}
        self._peer(broker).starts[self.start] = _Start()

    def _peer(self, broker: str) -> _Peer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = _Peer()
            if len(self._peers) > PEERS_MAX:
                oldest = next(one for one in self._peers if one != self.broker)
                del self._peers[oldest]
        return peer

    @property
    def remembered_count(self) -> int:
        """Brokers and starts that are remembered."""
        return len(self._peers) + sum(len(peer.starts) for peer in self._peers.values())

    def refuse(self, reason: Refusal) -> None:
        """Count a frame that is not believed."""
        self.refused[reason] += 1

    def next_sequence(self) -> int:
        """Number of the next signed frame."""
        self._sequence += 1
        return self._sequence

    def start_named(self, incarnation_id: str) -> bytes:
        """Short form of a start that a header names, remembered."""
        start = self._starts.get(incarnation_id)
        if start is None:
            if len(self._starts) >= PEERS_MAX:
                self._starts.clear()
            start = self._starts[incarnation_id] = start_of(incarnation_id)
        return start

    # -- sending ------------------------------------------------------------------------------

    def present_start(self, broker: BrokerId) -> bytes:
        """Start of a broker that answered last; `NO_START` when none did."""
        peer = self._peers.get(broker)
        return next(reversed(peer.starts), NO_START) if peer is not None else NO_START

    def outgoing_key(self, broker: BrokerId, start: bytes, key: Key) -> SigningKey:
        """Key for frames to a start of a broker; `NO_START` for a greeting."""
        if start == NO_START:
            return SigningKey(key, self.broker, self.start, "", NO_START)
        known = self._peer(broker).starts.get(start)
        made = None if known is None else known.outgoing.get(key.key_id)
        if made is None:
            made = SigningKey(key, self.broker, self.start, broker, start)
            if known is not None:
                known.outgoing[key.key_id] = made
        return made

    def challenge_for(self, broker: BrokerId) -> int:
        """Number that a broker has to repeat; it stays the same until it did."""
        peer = self._peer(broker)
        if not peer.challenge:
            peer.challenge = 1 + self._rng.randrange(_CHALLENGE_STOP - 1)
        return peer.challenge

    def may_greet(self, broker: BrokerId) -> bool:
        """Whether a broker may be challenged now; it is noted."""
        peer, now = self._peer(broker), self._now()
        if peer.greeted_at is not None and now - peer.greeted_at < GREET_NS:
            return False
        peer.greeted_at = now
        return True

    def park(self, broker: BrokerId, length: int, send: Callable[[], None]) -> None:
        """Keep a message until a broker has answered; dropped when too much waits."""
        peer = self._peer(broker)
        if len(peer.parked) < PARKED_MAX and peer.parked_bytes + length <= PARKED_BYTES_MAX:
            peer.parked.append((self._now(), send))
            peer.parked_bytes += length

    def take_parked(self, broker: BrokerId) -> list[Callable[[], None]]:
        """Messages that waited for a broker, without those that are too old by now."""
        peer = self._peer(broker)
        parked, peer.parked, peer.parked_bytes = peer.parked, [], 0
        earliest = self._now() - PARKED_NS
        return [send for since, send in parked if since >= earliest]

    # -- receiving ----------------------------------------------------------------------------

    def judge(self, channel: Channel, frame: SignedFrame) -> Standing:
        """Say what a frame is worth that arrived on a channel; a refusal is counted."""
        refusal = self._refusal(channel, frame)
        if refusal is not None:
            self.refuse(refusal)
            return Standing.REFUSED
        if frame.target_start == NO_START:
            return Standing.GREETING
        if frame.target_start != self.start:  # guard Auth.start
            self.refuse(Refusal.START)
            return Standing.FORMER
        if not self._is_known(frame):  # guard Auth.unknown_start
            return Standing.UNKNOWN
        return Standing.KNOWN

    def _refusal(self, channel: Channel, frame: SignedFrame) -> Refusal | None:
        """Why a frame is not believed whatever it says; `None` when there is no reason."""
        key = self.keys.find(frame.key_id)
        if key is None:
            return Refusal.UNKNOWN_KEY
        if not frame.is_signed_by(self._verifier(frame, key)):  # guard Auth.signature
            return Refusal.SIGNATURE
        if frame.channel is not channel:  # guard Auth.channel
            return Refusal.CHANNEL
        if frame.target_start == self.start and self._is_known(frame):
            known = self._peers[frame.sender].starts[frame.sender_start]
            if not known.windows[channel].admit(frame.sequence):
                return Refusal.REPLAYED
        return None

    def _verifier(self, frame: SignedFrame, key: Key) -> SigningKey:
        """Key that must have signed a frame; kept for frames from a known start to this one."""
        if frame.target_start == NO_START:
            return SigningKey(key, frame.sender, frame.sender_start, "", NO_START)
        peer = self._peers.get(frame.sender)
        known = None if peer is None else peer.starts.get(frame.sender_start)
        if known is None or frame.target_start != self.start:
            return self._incoming_key(frame, key)
        made = known.incoming.get(key.key_id)
        if made is None:
            made = known.incoming[key.key_id] = self._incoming_key(frame, key)
        return made

    def _incoming_key(self, frame: SignedFrame, key: Key) -> SigningKey:
        return SigningKey(key, frame.sender, frame.sender_start, self.broker, frame.target_start)

    def _is_known(self, frame: SignedFrame) -> bool:
        """Whether the start that signed a frame has answered a challenge of this process."""
        peer = self._peers.get(frame.sender)
        return peer is not None and frame.sender_start in peer.starts

    def challenge_in_return(self, frame: SignedFrame) -> int:
        """Challenge for the start that signed a frame; 0 when it has answered one already."""
        return 0 if self._is_known(frame) else self.challenge_for(frame.sender)

    def on_answer(self, frame: SignedFrame, answer: int) -> bool:
        """Take an answer in a genuine frame; whether it was one to the present challenge.

        The start that gave it is the present one from now on.
        """
        peer = self._peer(frame.sender)
        if not peer.challenge or answer != peer.challenge:  # guard Auth.answer
            return False
        peer.challenge = 0
        known = peer.starts.pop(frame.sender_start, None) or _Start()
        peer.starts[frame.sender_start] = known
        if len(peer.starts) > STARTS_MAX:
            peer.starts.popitem(last=False)
        return True

    def names_itself(self, frame: SignedFrame, header: PeerHeader) -> bool:
        """Whether a header names the broker and the start that signed it."""
        return (
            header.sender == frame.sender
            and self.start_named(header.incarnation_id) == frame.sender_start
        )

    def set_keys(self, keys: Keyring) -> None:
        """Use other keys from now on; what was recognised stays so."""
        self.keys = keys
        for peer in self._peers.values():
            for start in peer.starts.values():
                start.outgoing.clear()
                start.incoming.clear()
