"""Publishers that know only NATS and the envelope: they publish, and wait for an ack.

A message without a receiver is lost; the ack is the only guarantee. The streams are never deleted,
so a subject means one partition.
"""

from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.acks import AckError, AckPolicy
from liftbridge_broker.wire.envelope import decode_ack, encode_publish
from liftbridge_proto import api_pb2
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.history import History, Outcome, Write
from liftbridge_testkit.sim.network import Endpoint
from liftbridge_testkit.sim.world import World

INBOX = SubscriptionId(1)
ACK_TIMEOUT_NS = 3 * SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsPublisherPlan:
    """Behaviour of one publisher.

    Attributes:
        stream: Stream to publish to; its partition 0 has the stream's subject.
        policy: Ack policy.
        think_ns: Longest pause between messages.
        size_max: Longest value.
    """

    stream: str
    policy: AckPolicy = AckPolicy.ALL
    think_ns: int = 20 * MILLISECOND_NS
    size_max: int = 200


@dataclass(slots=True, eq=False)
class NatsPublisher:
    """One publisher from `start` until `stop`; an endpoint of its own.

    Attributes:
        waiting: Writes that wait for an ack, by correlation id.
        single: Those of them that were sent to a partition with one replica, as all brokers knew.
        late_count: Acks that arrived after the publisher gave up.
    """

    world: World
    directory: Directory
    history: History
    plan: NatsPublisherPlan
    number: int = field(init=False)
    name: str = field(init=False)
    waiting: dict[str, Write] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    late_count: int = 0
    is_stopped: bool = False
    _random: Random = field(init=False)
    _endpoint: Endpoint = field(init=False)

    def __post_init__(self) -> None:
        self.number = self.history.new_publisher()
        self.name = f"nats-{self.number}"
        self._random = self.world.new_random()
        self._endpoint = self.world.network.add(self.name, self)
        self.world.network.subscribe(self._endpoint, INBOX, f"_INBOX.{self.name}", "")

    @property
    def in_flight(self) -> int:
        """Return the number of writes that wait for an ack."""
        return len(self.waiting)

    def start(self) -> None:
        """Begin to publish."""
        self._later()

    def stop(self) -> None:
        """Stop publishing."""
        self.is_stopped = True

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(self.plan.think_ns + 1), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        place = self.directory.find(self.plan.stream, 0)
        if place is not None and self._endpoint.is_up:
            self._publish(place.partition, place.subject)
        self._later()

    def _publish(self, partition: PartitionId, subject: str) -> None:
        plan = self.plan
        write = self.history.invoke(
            self.number,
            partition,
            self.world.now,
            policy=plan.policy,
            size=self._random.randrange(24, plan.size_max),
        )
        token = str(write.identity.sequence)
        message = api_pb2.Message(value=write.value, ackPolicy=int(plan.policy))  # type: ignore[arg-type]  # by number
        if plan.policy is AckPolicy.NONE:
            self.history.unknown(write)
        else:
            message.ackInbox = f"_INBOX.{self.name}"
            message.correlationId = token
            self.waiting[token] = write
            if self._is_single(partition):
                self.single.add(token)
            self.world.scheduler.after(ACK_TIMEOUT_NS, self._give_up, token)
        payload = encode_publish(message)
        self.world.network.publish(self._endpoint, "pub", subject, payload)

    def _give_up(self, token: str) -> None:
        write = self.waiting.pop(token, None)
        self.single.discard(token)
        if write is not None:
            self.history.unknown(write)

    def on_delivery(self, subscription: SubscriptionId, arrival: Arrival, payload: bytes) -> None:
        """Handle an ack. The first one for a message counts; a definite error counts as one."""
        del subscription, arrival
        ack = decode_ack(payload)
        assert ack is not None
        write = self.waiting.pop(ack.correlationId, None)
        if write is None:
            self.late_count += 1
            return
        assert write.outcome is Outcome.UNKNOWN
        if int(ack.ackError) == AckError.OK:
            was_single = ack.correlationId in self.single and self._is_single(write.partition)
            is_committed = self.plan.policy is AckPolicy.ALL or was_single
            self.history.acked(
                write,
                self.world.now,
                offset=ack.offset,
                leader_epoch=0,
                is_committed=is_committed,
            )
        elif int(ack.ackError) in (AckError.UNKNOWN, AckError.ENCRYPTION):
            # A broker without the key hands the partition over: its successor may hear it too.
            self.history.unknown(write)
        else:
            self.history.refused(write, self.world.now)

    def _is_single(self, partition: PartitionId) -> bool:
        """Return whether all brokers know one replica.

        An ack does not name the replica that stored.
        """
        found = [state.partition(partition) for state in self.directory.states()]
        return bool(found) and all(one is not None and len(one.replicas) == 1 for one in found)

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Ignore the message: this is not a broker."""

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Ignore it: this is not a broker."""

    def on_link(self, *, connected: bool) -> None:
        """Publish again when the link is up."""
