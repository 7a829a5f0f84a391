"""NATS as the world runs it: endpoints, links, subjects, and faults.

Delivery is that of core NATS: at most once, in order per connection, no report of a loss. A queue
group gives a message to one member, and a quiet connection does not receive its own messages. A
broken link loses its messages in flight. Messages between brokers also meet faults, as swarm
options: they are lost, duplicated, reordered or changed. Brokers must tolerate all of it
(docs/spec/replication.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple, Protocol
from zlib import crc32

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.model.units import MICROSECOND_NS, MILLISECOND_NS
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.scheduler import Scheduler
from liftbridge_testkit.sim.trace import Trace

PPM = 1_000_000
MESSAGE_FAULTS = (
    "message lost",
    "message doubled",
    "message overtaken",
    "message delayed",
    "message corrupted",
)
"""Faults of single messages between brokers, by the options of a run."""


class Intruder(Protocol):
    """Attacker who receives all messages between brokers, and can send some."""

    def overhear(self, target: str, channel: Channel, payload: bytes) -> None:
        """Record a message that a broker sent to another one, or to all."""
        ...

    def frame(self, brokers: list[str]) -> tuple[str, Channel, bytes] | None:
        """Return a frame for one of `brokers`, with receiver and channel; `None` for none."""
        ...


class Receiver(Protocol):
    """Owner of an endpoint; called in a separate event."""

    def on_delivery(self, subscription: SubscriptionId, arrival: Arrival, payload: bytes) -> None:
        """Handle a message for one subscription."""
        ...

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Handle a message that another broker sent to this one, or to all."""
        ...

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Handle the answer of NATS to a probe: nobody listens for a broker."""
        ...

    def on_link(self, *, connected: bool) -> None:
        """Handle the loss or return of the link to NATS."""
        ...


@dataclass(slots=True, eq=False)
class Endpoint:
    """One client of NATS: a broker process, or one that publishes and subscribes.

    Attributes:
        name: Unique in the world.
        receiver: Receives its messages.
        takes_peers: Whether it is a broker and receives messages between brokers.
        is_up: Whether its link is up.
        generation: Increases when the link breaks; messages in flight before are lost.
        down_at: Time at which the link last broke.
    """

    name: str
    receiver: Receiver
    takes_peers: bool = False
    is_up: bool = False
    generation: int = 0
    down_at: int = -1


@dataclass(slots=True)
class Conditions:
    """Properties of links; times in nanoseconds, chances in millionths.

    Attributes:
        delay_ns_min: Minimum time from one endpoint to another.
        delay_ns_jitter: Maximum random addition.
        spike_ppm: Messages that take `spike_ns` longer.
        spike_ns: Additional delay.
        loss_ppm: Messages between brokers that are lost.
        duplicate_ppm: Messages that arrive twice.
        reorder_ppm: Messages that may overtake earlier ones.
        corrupt_ppm: Messages with a flipped bit.
    """

    delay_ns_min: int = 100 * MICROSECOND_NS
    delay_ns_jitter: int = 200 * MICROSECOND_NS
    spike_ppm: int = 0
    spike_ns: int = 50 * MILLISECOND_NS
    loss_ppm: int = 0
    duplicate_ppm: int = 0
    reorder_ppm: int = 0
    corrupt_ppm: int = 0


class Verdict(Enum):
    """Result of a filter for a message between brokers."""

    PASS = "pass"
    HOLD = "hold"
    DROP = "drop"


class Held(NamedTuple):
    """A message between brokers that waits until a script releases it."""

    source: Endpoint
    target: Endpoint
    channel: Channel
    payload: bytes


Filter = Callable[[str, str, Channel, bytes], Verdict]
Named = tuple[str, SubscriptionId]


@dataclass(slots=True)
class Network:
    """All links of a world.

    Attributes:
        conditions: Present properties of links.
        filter: Called for each message between brokers by scripts; `None` lets all pass.
        intruders: Intruders by kind of fault.
        held: Messages that the filter held back, in order.
        endpoints: Clients of NATS by name.
        denied: Channels of brokers for which NATS wrongly says that nobody listens.
        arrived: The last message of one broker that reached another one intact and in order, and
            its time.
        came: Time at which the last message of one endpoint reached another one, intact or not.
        intruded: Time at which the last frame of an intruder reached a broker.
    """

    scheduler: Scheduler
    random: Random
    trace: Trace
    coverage: Coverage
    conditions: Conditions = field(default_factory=Conditions)
    filter: Filter | None = None
    intruders: dict[str, Intruder] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    denied: dict[str, frozenset[Channel]] = field(default_factory=dict)
    arrived: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    came: dict[tuple[str, str], int] = field(default_factory=dict)
    intruded: dict[str, int] = field(default_factory=dict)
    _cuts: dict[tuple[str, str], int] = field(default_factory=dict)
    _slow: dict[tuple[str, str], int] = field(default_factory=dict)
    _slow_channels: dict[tuple[str, Channel], int] = field(default_factory=dict)
    _outages: int = 0
    _unlinked: dict[str, int] = field(default_factory=dict)
    _last: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _table: SubjectTable[Named] = field(default_factory=SubjectTable)
    _subscribed: dict[Named, tuple[str, str]] = field(default_factory=dict)

    # -- endpoints ----------------------------------------------------------------------------

    def add(self, name: str, receiver: Receiver, *, takes_peers: bool = False) -> Endpoint:
        """Create an endpoint; its link is up when NATS is.

        A link that is broken at the creation reports as soon as it is repaired.
        """
        assert name not in self.endpoints
        endpoint = Endpoint(name, receiver, takes_peers)
        endpoint.is_up = self._may_be_up(name)
        self.endpoints[name] = endpoint
        return endpoint

    def remove(self, endpoint: Endpoint) -> None:
        """Remove the endpoint of an ended process, with its subscriptions."""
        del self.endpoints[endpoint.name]
        for named in [named for named in self._subscribed if named[0] == endpoint.name]:
            self.unsubscribe(endpoint, named[1])
        endpoint.is_up = False
        endpoint.generation += 1
        endpoint.down_at = self.scheduler.now

    def _may_be_up(self, name: str) -> bool:
        return not self._outages and not self._unlinked.get(name)

    # -- what faults do -----------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose all messages from `source` to `target`; cuts add up."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Take back one `cut`; no-op when all was repaired meanwhile."""
        left = self._cuts.pop((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether all messages from `source` to `target` are lost."""
        return (source, target) in self._cuts

    def is_clear(self, source: str, target: str) -> bool:
        """Return whether faults neither cut nor delay messages from `source` to `target`."""
        is_slow = (source, target) in self._slow or any(
            (target, channel) in self._slow_channels for channel in Channel
        )
        return not is_slow and not self.is_cut(source, target)

    def slow(self, source: str, target: str, extra_ns: int) -> None:
        """Delay all messages from `source` to `target`; 0 ends the delay."""
        if extra_ns:
            self._slow[source, target] = extra_ns
        else:
            self._slow.pop((source, target), None)

    def slow_channel(self, target: str, channel: Channel, extra_ns: int) -> None:
        """Delay the messages to a broker on one channel; 0 ends the delay."""
        if extra_ns:
            self._slow_channels[target, channel] = extra_ns
        else:
            self._slow_channels.pop((target, channel), None)

    def unlink(self, name: str) -> None:
        """Break the link of an endpoint, or keep it down."""
        self._unlinked[name] = self._unlinked.get(name, 0) + 1
        self._review(name)

    def relink(self, name: str) -> None:
        """Take back one `unlink`; no-op when all was repaired meanwhile."""
        self._unlinked[name] = max(0, self._unlinked.get(name, 0) - 1)
        self._review(name)

    def begin_outage(self) -> None:
        """Stop NATS for all endpoints."""
        self._outages += 1
        for name in list(self.endpoints):
            self._review(name)

    def end_outage(self) -> None:
        """Restart NATS; each endpoint connects when it notices."""
        self._outages = max(0, self._outages - 1)
        for name in list(self.endpoints):
            self.scheduler.after(self.random.randrange(100 * MILLISECOND_NS), self._review, name)

    def heal(self) -> None:
        """Repair everything between endpoints."""
        self._cuts.clear()
        self._slow.clear()
        self._slow_channels.clear()
        self.denied.clear()
        self._unlinked.clear()
        self._outages = 0
        self.conditions.loss_ppm = self.conditions.duplicate_ppm = 0
        self.conditions.reorder_ppm = self.conditions.corrupt_ppm = 0
        self.conditions.spike_ppm = 0
        self.filter = None
        self.release()
        for name in list(self.endpoints):
            self._review(name)

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is cut, unlinked or stopped."""
        return not self._cuts and not self._outages and not any(self._unlinked.values())

    def _review(self, name: str) -> None:
        """Update the state of an endpoint's link, and notify its owner of a change."""
        endpoint = self.endpoints.get(name)
        if endpoint is None or endpoint.is_up == self._may_be_up(name):
            return
        endpoint.is_up = not endpoint.is_up
        if not endpoint.is_up:
            endpoint.generation += 1
            endpoint.down_at = self.scheduler.now
        self.trace.note(self.scheduler.now, name, "link", endpoint.is_up)
        endpoint.receiver.on_link(connected=endpoint.is_up)

    # -- subjects -----------------------------------------------------------------------------

    def subscribe(
        self, endpoint: Endpoint, subscription: SubscriptionId, subject: str, queue: str
    ) -> None:
        """Add a subscription at the server."""
        named = (endpoint.name, subscription)
        assert named not in self._subscribed
        self._subscribed[named] = (subject, queue)
        self._table.add(subject, named)

    def unsubscribe(self, endpoint: Endpoint, subscription: SubscriptionId) -> None:
        """Remove a subscription at the server, if it exists."""
        named = (endpoint.name, subscription)
        found = self._subscribed.pop(named, None)
        if found is not None:
            self._table.remove(found[0], named)

    def publish(
        self,
        source: Endpoint,
        lane: str,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: bytes = b"",
        hears_itself: bool = True,
    ) -> None:
        """Carry a message to all subscribers of its subject.

        Args:
            source: Publisher; the message is dropped when its link is down.
            lane: Connection of the publisher: messages of one lane stay in order.
            subject: Concrete subject.
            payload: Bytes of the message.
            reply: Reply subject, empty for none.
            headers: Header block, empty for none.
            hears_itself: False for a quiet connection.
        """
        if not source.is_up:
            return
        arrival = Arrival(subject, reply, headers)
        for name, subscription in self._listeners(source, subject, hears_itself=hears_itself):
            target = self.endpoints[name]
            deliver = target.receiver.on_delivery
            self._post(source, target, lane, deliver, subscription, arrival, payload)

    def _listeners(self, source: Endpoint, subject: str, *, hears_itself: bool) -> list[Named]:
        """Return all subscriptions without a queue group, and one of each group with a link."""
        found: list[Named] = []
        groups: dict[tuple[str, str], list[Named]] = {}
        for named in self._table.lookup(subject):
            pattern, queue = self._subscribed[named]
            if not self.endpoints[named[0]].is_up:
                continue
            if queue:
                groups.setdefault((pattern, queue), []).append(named)
            elif hears_itself or named[0] != source.name:
                found.append(named)
        found += [self.random.choice(members) for members in groups.values()]
        return found

    # -- between brokers ----------------------------------------------------------------------

    def send(self, source: Endpoint, broker: str, channel: Channel, payload: bytes) -> None:
        """Carry a message from one broker to another one, or to all."""
        if not source.is_up:
            return
        for intruder in self.intruders.values():
            intruder.overhear(broker, channel, payload)
        if broker == EVERYONE:
            for target in [
                endpoint for endpoint in self.endpoints.values() if endpoint.takes_peers
            ]:
                deliver = target.receiver.on_peer
                self._post(source, target, "call", deliver, Channel.METADATA, payload)
            return
        one = self.endpoints.get(broker)
        if one is not None and one.takes_peers:
            self._pass_filter(source, one, channel, payload)

    def probe(self, source: Endpoint, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Answer a broker if nobody listens for another one; the answer may be late or lost."""
        target, conditions, random = self.endpoints.get(broker), self.conditions, self.random
        is_there = target is not None and target.takes_peers and target.is_up
        if not source.is_up or (is_there and channel not in self.denied.get(broker, ())):
            return
        if conditions.loss_ppm and random.randrange(PPM) < conditions.loss_ppm:
            self.coverage.count("fault", "message lost")
            return
        delay = conditions.delay_ns_min + random.randrange(conditions.delay_ns_jitter + 1)
        if conditions.spike_ppm and random.randrange(PPM) < conditions.spike_ppm:
            delay += conditions.spike_ns
            self.coverage.count("fault", "message delayed")
        tell, generation = source.receiver.on_no_responders, source.generation

        def arrive() -> None:
            if source.generation == generation:
                self.trace.note(self.scheduler.now, source.name, "nobody listens for", broker)
                tell(broker, channel, sent_at)

        self.scheduler.after(delay, arrive)

    def deny(self, name: str, channels: frozenset[Channel]) -> None:
        """Answer probes to a broker as if nobody listened for it; no channels end that."""
        self.denied[name] = channels

    def intrude(self, kind: str) -> None:
        """Deliver a frame of an intruder to a broker now, if it has one."""
        brokers = [
            endpoint.name
            for endpoint in self.endpoints.values()
            if endpoint.takes_peers and endpoint.is_up
        ]
        found = self.intruders[kind].frame(brokers) if brokers else None
        if found is None:
            return
        name, channel, payload = found
        self.coverage.count("fault", f"one of {kind}")
        self.trace.note(self.scheduler.now, name, kind, len(payload), crc32(payload))
        self.intruded[name] = self.scheduler.now
        self.endpoints[name].receiver.on_peer(channel, payload)

    def _pass_filter(
        self, source: Endpoint, target: Endpoint, channel: Channel, payload: bytes
    ) -> None:
        if self.filter is not None:
            verdict = self.filter(source.name, target.name, channel, payload)
            if verdict is Verdict.HOLD:
                self.held.append(Held(source, target, channel, payload))
            if verdict is not Verdict.PASS:
                return
        self._send(source, target, channel, payload)

    def _send(self, source: Endpoint, target: Endpoint, channel: Channel, payload: bytes) -> None:
        conditions, random = self.conditions, self.random
        deliver, is_intact = target.receiver.on_peer, True
        if conditions.loss_ppm and random.randrange(PPM) < conditions.loss_ppm:
            self.coverage.count("fault", "message lost")
            return
        if conditions.corrupt_ppm and random.randrange(PPM) < conditions.corrupt_ppm and payload:
            self.coverage.count("fault", "message corrupted")
            changed = bytearray(payload)
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            payload, is_intact = bytes(changed), False
        late_ns = self._slow_channels.get((target.name, channel), 0) if self._slow_channels else 0
        self._post(
            source,
            target,
            channel,
            deliver,
            channel,
            payload,
            extra_ns=late_ns,
            is_intact=is_intact,
        )
        if conditions.duplicate_ppm and random.randrange(PPM) < conditions.duplicate_ppm:
            self.coverage.count("fault", "message doubled")
            # The copy takes another path, perhaps much slower.
            lane = f"copy{random.randrange(PPM)}"
            self._post(source, target, lane, deliver, channel, payload, extra_ns=self._late())

    def _late(self) -> int:
        """Return the delay of a reordered message: mostly short, sometimes seconds."""
        scale = self.random.choice((1, 1, 1, 10, 100, 3_000))
        return self.random.randrange(scale * MILLISECOND_NS)

    def release(self) -> int:
        """Release all held messages. Return their number."""
        held, self.held = self.held, []
        for message in held:
            self._send(*message)
        return len(held)

    # -- on the way ---------------------------------------------------------------------------

    def _post(
        self,
        source: Endpoint,
        target: Endpoint,
        lane: str,
        deliver: Callable[..., None],
        *arguments: object,
        extra_ns: int = 0,
        is_intact: bool = False,
    ) -> None:
        key = (source.name, target.name)
        if key in self._cuts or not target.is_up:
            return
        conditions, random, now = self.conditions, self.random, self.scheduler.now
        # Twice as fast as `randrange`, and this is the most frequent draw of all.
        delay = conditions.delay_ns_min + int(random.random() * conditions.delay_ns_jitter)
        if conditions.spike_ppm and random.randrange(PPM) < conditions.spike_ppm:
            delay += conditions.spike_ns
            self.coverage.count("fault", "message delayed")
        delay += self._slow.get(key, 0) if self._slow else 0
        arrives = now + delay + extra_ns
        if (
            conditions.reorder_ppm
            and source.takes_peers
            and target.takes_peers
            and random.randrange(PPM) < conditions.reorder_ppm
        ):
            self.coverage.count("fault", "message overtaken")
            arrives += self._late()
            is_intact = False
        else:
            way = (source.name, target.name, lane)
            arrives = max(arrives, self._last.get(way, 0))
            self._last[way] = arrives
        self.scheduler.at(
            arrives,
            self._arrive,
            source,
            source.generation,
            now + delay // 2,
            target,
            target.generation,
            deliver,
            arguments,
            is_intact,
        )

    def _arrive(
        self,
        source: Endpoint,
        source_generation: int,
        at_server: int,
        target: Endpoint,
        target_generation: int,
        deliver: Callable[..., None],
        arguments: tuple[object, ...],
        is_intact: bool,
    ) -> None:
        """Deliver a message, unless a link broke or was cut while it was in flight."""
        if target.generation != target_generation or (source.name, target.name) in self._cuts:
            return
        if source.generation != source_generation and source.down_at < at_server:
            return
        payload = arguments[-1]
        assert isinstance(payload, bytes)
        self.trace.note(
            self.scheduler.now, target.name, "from", source.name, len(payload), crc32(payload)
        )
        self.came[source.name, target.name] = self.scheduler.now
        if is_intact:
            self.arrived[source.name, target.name] = self.scheduler.now, payload
        deliver(*arguments)
