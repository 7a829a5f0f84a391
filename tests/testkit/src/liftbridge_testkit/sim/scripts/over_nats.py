"""The verb of clients that know only NATS and the envelope."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.acks import AckError, AckPolicy
from liftbridge_broker.wire.envelope import decode_ack, encode_publish
from liftbridge_proto import api_pb2
from liftbridge_testkit.sim.clients.nats_publishers import INBOX
from liftbridge_testkit.sim.history import Write
from liftbridge_testkit.sim.network import Endpoint
from liftbridge_testkit.sim.scripts.publishing import outcome_of
from liftbridge_testkit.sim.scripts.stage import Stage, split_options

POLICIES = {"all": AckPolicy.ALL, "leader": AckPolicy.LEADER}


@dataclass(slots=True, eq=False)
class _Message:
    """One message and its ack; an endpoint by itself."""

    stage: Stage
    name: str
    write: Write
    policy: AckPolicy
    endpoint: Endpoint = field(init=False)

    def __post_init__(self) -> None:
        network = self.stage.world.network
        self.endpoint = network.add(f"nats-{self.name}", self)
        network.subscribe(self.endpoint, INBOX, f"_INBOX.{self.name}", "")

    def publish(self, subject: str) -> None:
        """Send the message."""
        message = api_pb2.Message(
            value=self.write.value,
            ackPolicy=int(self.policy),  # type: ignore[arg-type]  # by number
            ackInbox=f"_INBOX.{self.name}",
            correlationId=self.name,
        )
        network = self.stage.world.network
        network.publish(self.endpoint, "pub", subject, encode_publish(message))

    def on_delivery(self, subscription: SubscriptionId, arrival: Arrival, payload: bytes) -> None:
        """Handle the ack; the first of several counts."""
        del subscription, arrival
        ack = decode_ack(payload)
        assert ack is not None
        if self.name in self.stage.outcomes:
            return
        history, now, error = self.stage.life.history, self.stage.world.now, int(ack.ackError)
        if error == AckError.OK:
            is_committed = self.policy is AckPolicy.ALL
            history.acked(
                self.write, now, offset=ack.offset, leader_epoch=0, is_committed=is_committed
            )
            self.stage.outcomes[self.name] = f"acked {ack.offset}"
        elif error == AckError.UNKNOWN:
            history.unknown(self.write)
            self.stage.outcomes[self.name] = "unknown"
        else:
            history.refused(self.write, now)
            self.stage.outcomes[self.name] = f"refused: {AckError(error).name}"

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Ignore the message: this is not a broker."""

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Ignore it: this is not a broker."""

    def on_link(self, *, connected: bool) -> None:
        """No-op: the state of the link does not matter."""


def _nats(stage: Stage, words: Sequence[str]) -> list[str]:
    """`nats s v1 [all|leader] [size=] [later]`: one message over NATS, and its ack."""
    (place, name, *rest), options = split_options(words)
    assert name not in stage.writes, f"{name} was published before"
    policy = next((POLICIES[word] for word in rest if word in POLICIES), AckPolicy.ALL)
    history, world = stage.life.history, stage.world
    write = history.invoke(
        history.new_publisher(),
        stage.newest(place).partition_id,
        world.now,
        policy=int(policy),
        size=int(options.get("size", "64")),
    )
    stage.writes[name] = write
    stream = place.partition("/")[0]
    _Message(stage, name, write, policy).publish(f"sub.{stream}")
    return [] if "later" in rest else outcome_of(stage, (name,))


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {"nats": _nats}
