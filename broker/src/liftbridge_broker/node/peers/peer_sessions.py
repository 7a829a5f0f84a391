"""Known processes of other brokers, with replay protection for their frames.

A signature proves the sender of a frame, not the time. So two processes first exchange challenges
(`Hello`): the answer proves that the other process is alive, and from then on its frames are
numbered and signed for this pair of processes. A replayed frame is invalid for any later process,
and the window rejects it within one process. A frame that arrives late for the first time is
accepted: the protocols above must tolerate delays anyway.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import MIB, MILLISECOND_NS
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.frame import (
    NO_START,
    Origin,
    SignedFrame,
    SigningKey,
    read_front,
    start_of,
)
from liftbridge_broker.wire.peer.keys import Key, Keyring
from liftbridge_broker.wire.peer.messages import PeerHeader

WINDOW: Final = 1_024
"""Number of frames by which a frame may be overtaken."""

PEERS_MAX: Final = 1_024
"""Maximum number of remembered brokers; a cluster has fewer."""

STARTS_MAX: Final = 4
"""Remembered processes per broker: late frames of an earlier one may still arrive."""

ROUTES_MAX: Final = 4_096
"""Maximum number of cached routes; deriving the keys of one costs more than refusing a frame."""

GREET_NS: Final = 50 * MILLISECOND_NS
"""Shortest time between two challenges to one broker."""

PARKED_MAX: Final = 32
PARKED_BYTES_MAX: Final = MIB
PARKED_NS: Final = 250 * MILLISECOND_NS
"""Time for which a message waits for the answer to a challenge."""

_CHALLENGE_STOP: Final = 1 << 64


class Refusal(StrEnum):
    """Reason for the rejection of a frame; the label of a metric."""

    UNSIGNED = "unsigned"
    """The frame has no signature, and the secret does not list `open`."""
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    """The frame was modified, or signed without the key."""
    CHANNEL = "channel"
    """The frame was signed for the other channel."""
    START = "start"
    """Frame for an earlier process of this broker, or from one that answered no challenge yet."""
    REPLAYED = "replayed"
    KIND = "kind"
    """A greeting may only ask; only a signed frame may carry a challenge."""


class Standing(Enum):
    """Trust in the frames between two processes."""

    KNOWN = "known"
    """Frame from a process that answered a challenge, for this process, not seen before."""
    GREETING = "greeting"
    """Frame for any process of this broker, possibly replayed: it may ask."""
    UNKNOWN = "unknown"
    """Frame for this process, from one that has not answered yet: it may answer."""
    FORMER = "former"
    """Frame for another process of this broker: its sender does not know this one."""


class ReplayWindow:
    """Sequences seen: the highest and those of the `WINDOW` below it (RFC 4303, 3.4.3)."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0

    def admit(self, sequence: int) -> bool:
        """Record a sequence; return whether it is new and not too old."""
        ahead = sequence - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self._highest = sequence
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:  # guard Auth.window
            return False
        self._seen |= 1 << -ahead
        return True


def _windows() -> dict[Channel, ReplayWindow]:
    return {channel: ReplayWindow() for channel in Channel}


class Route(NamedTuple):
    """Signer and trust of all frames with one front.

    Attributes:
        origin: The origin in the front.
        standing: Trust in the frames.
        key: Key that must have signed them.
        windows: Sequences seen; `None` where replays cannot be detected.
    """

    origin: Origin
    standing: Standing
    key: SigningKey
    windows: Mapping[Channel, ReplayWindow] | None


@dataclass(slots=True)
class _Peer:
    """Another broker.

    Attributes:
        starts: Processes that answered, the current one last, with the sequences seen of each.
        outgoing: Key for frames to the current process, derived on demand.
        challenge: Challenge awaiting its answer, 0 for none.
        greeted_at: Time of the last challenge.
        parked: Messages that wait for its answer: time of arrival, and the call that sends it.
        parked_bytes: Total length of those messages.
    """

    starts: OrderedDict[bytes, dict[Channel, ReplayWindow]] = field(default_factory=OrderedDict)
    outgoing: SigningKey | None = None
    challenge: int = 0
    greeted_at: Instant | None = None
    parked: list[tuple[Instant, Callable[[], None]]] = field(default_factory=list)
    parked_bytes: int = 0


class PeerSessions:
    """Known processes of other brokers, with keys and replay windows; one per process of a broker.

    Args:
        broker: This broker.
        incarnation_id: This process of the broker.
        keys: Keys of the cluster; may be replaced at any time.
        rng: Random source for challenges; unpredictable in production.
        now: Reads the time.

    Attributes:
        keys: See above.
        start: Short form of this process's `incarnation_id`.
        refused: Rejected frames, by reason.
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
        self._routes: dict[bytes, Route] = {}
        self._peer(broker).starts[self.start] = _windows()

    def _peer(self, broker: str) -> _Peer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = _Peer()
            if len(self._peers) > PEERS_MAX:
                oldest = next(name for name in self._peers if name != self.broker)
                del self._peers[oldest]
                self._routes.clear()
        return peer

    @property
    def remembered_count(self) -> int:
        """Number of remembered brokers and processes."""
        return len(self._peers) + sum(len(peer.starts) for peer in self._peers.values())

    def refuse(self, reason: Refusal) -> None:
        """Count a rejected frame."""
        self.refused[reason] += 1

    def next_sequence(self) -> int:
        """Return the number of the next signed frame."""
        self._sequence += 1
        return self._sequence

    def start_named(self, incarnation_id: str) -> bytes:
        """Return the short form of a header's `incarnation_id`, cached."""
        start = self._starts.get(incarnation_id)
        if start is None:
            if len(self._starts) >= PEERS_MAX:
                self._starts.clear()
            start = self._starts[incarnation_id] = start_of(incarnation_id)
        return start

    # -- sending ------------------------------------------------------------------------------

    def outgoing(self, broker: BrokerId) -> SigningKey | None:
        """Return the key for frames to the current process of a broker.

        `None` when no process of it has answered, or nothing is signed.
        """
        peer, key = self._peers.get(broker), self.keys.signer
        if peer is None or key is None:
            return None
        if peer.outgoing is None and peer.starts:
            peer.outgoing = self.outgoing_key(broker, next(reversed(peer.starts)), key)
        return peer.outgoing

    def outgoing_key(self, broker: BrokerId, start: bytes, key: Key) -> SigningKey:
        """Return the key for frames to a process of a broker; `NO_START` for a greeting."""
        target = "" if start == NO_START else broker
        return SigningKey(key, self.broker, self.start, target, start)

    def challenge_for(self, broker: BrokerId) -> int:
        """Return the challenge for a broker, the same until it has answered."""
        peer = self._peer(broker)
        if not peer.challenge:
            peer.challenge = 1 + self._rng.randrange(_CHALLENGE_STOP - 1)
        return peer.challenge

    def may_greet(self, broker: BrokerId) -> bool:
        """Return whether a broker may be challenged now; records the time."""
        peer, now = self._peer(broker), self._now()
        if peer.greeted_at is not None and now - peer.greeted_at < GREET_NS:
            return False
        peer.greeted_at = now
        return True

    def park(self, broker: BrokerId, length: int, send: Callable[[], None]) -> None:
        """Hold a message until a broker has answered; drop it when too many bytes wait."""
        peer = self._peer(broker)
        if len(peer.parked) < PARKED_MAX and peer.parked_bytes + length <= PARKED_BYTES_MAX:
            peer.parked.append((self._now(), send))
            peer.parked_bytes += length

    def take_parked(self, broker: BrokerId) -> list[Callable[[], None]]:
        """Remove and return the messages that waited for a broker; drop those too old."""
        peer = self._peer(broker)
        parked, peer.parked, peer.parked_bytes = peer.parked, [], 0
        earliest = self._now() - PARKED_NS
        return [send for since, send in parked if since >= earliest]

    # -- receiving ----------------------------------------------------------------------------

    def judge(self, channel: Channel, frame: SignedFrame) -> Route | None:
        """Return the route of a frame from a channel, or count a refusal and return `None`.

        Raises:
            WireError: The frame names no sender.
        """
        route = self._routes.get(frame.front) or self._route(frame.front)
        if route is None:
            self.refuse(Refusal.UNKNOWN_KEY)
        elif not route.key.has_signed(frame.sequence, frame.data):  # guard Auth.signature
            self.refuse(Refusal.SIGNATURE)
        elif frame.channel is not channel:  # guard Auth.channel
            self.refuse(Refusal.CHANNEL)
        elif route.windows is not None and not route.windows[channel].admit(frame.sequence):
            self.refuse(Refusal.REPLAYED)
        else:
            return route
        return None

    def _route(self, front: bytes) -> Route | None:
        """Return the route for a front, cached; `None` when no key is listed.

        Raises:
            WireError: The front names no sender.
        """
        origin = read_front(front)
        key = self.keys.find(origin.key_id)
        if key is None:
            return None
        peer = self._peers.get(origin.sender)
        windows = None if peer is None else peer.starts.get(origin.sender_start)
        standing = Standing.KNOWN
        if origin.target_start == NO_START:
            standing = Standing.GREETING
        elif origin.target_start != self.start:  # guard Auth.start
            standing = Standing.FORMER
        elif windows is None:  # guard Auth.unknown_start
            standing = Standing.UNKNOWN
        target = "" if standing is Standing.GREETING else self.broker
        verifier = SigningKey(key, origin.sender, origin.sender_start, target, origin.target_start)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()  # a client can forge any number of fronts
        is_known = standing is Standing.KNOWN
        route = Route(origin, standing, verifier, windows if is_known else None)
        self._routes[front] = route
        return route

    def challenge_in_return(self, origin: Origin) -> int:
        """Return the challenge for a frame's signer; 0 when it has answered one already."""
        peer = self._peer(origin.sender)
        return 0 if origin.sender_start in peer.starts else self.challenge_for(origin.sender)

    def on_answer(self, origin: Origin, answer: int) -> bool:
        """Handle an answer in an authentic frame; return whether it fits the current challenge.

        The process that answered becomes the current process of its broker.
        """
        peer = self._peer(origin.sender)
        if not peer.challenge or answer != peer.challenge:  # guard Auth.answer
            return False
        peer.challenge, peer.outgoing = 0, None
        known = peer.starts.pop(origin.sender_start, None) or _windows()
        peer.starts[origin.sender_start] = known
        if len(peer.starts) > STARTS_MAX:
            peer.starts.popitem(last=False)
        self._routes.clear()
        return True

    def names_itself(self, origin: Origin, header: PeerHeader) -> bool:
        """Return whether a header names the broker and the process that signed it."""
        return (
            header.sender == origin.sender
            and self.start_named(header.incarnation_id) == origin.sender_start
        )

    def set_keys(self, keys: Keyring) -> None:
        """Replace the keys; recognised processes stay recognised."""
        self.keys = keys
        self._routes.clear()
        for peer in self._peers.values():
            peer.outgoing = None
