"""How this broker speaks to the others: one head for everything it says, cut to what NATS takes."""

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.ports.transport import Channel, Transport
from liftbridge_broker.wire.peer import PeerHeader, pack
from liftbridge_broker.wire.peer_bodies import Body


class NoPeers:
    """The transport of a broker that is alone: nobody hears it."""

    is_connected = False
    payload_bytes_max = 1024 * 1024

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Say it to nobody."""


class PeerLink:
    """Sends messages in the name of this broker.

    Attributes:
        cluster_id: Cluster it belongs to; empty before it has one.
        broker: Its name.
        incarnation_id: This start of it.
        broker_epoch: Its registration; 0 before it has one.
        lost_count: Messages that were too long to be sent.
    """

    def __init__(
        self,
        transport: Transport,
        broker: BrokerId,
        incarnation_id: str,
        cluster_id: str = "",
    ) -> None:
        """Begin unregistered."""
        self._transport = transport
        self._message_id = 0
        self.cluster_id = cluster_id
        self.broker = broker
        self.incarnation_id = incarnation_id
        self.broker_epoch = 0
        self.lost_count = 0

    @property
    def is_connected(self) -> bool:
        """Whether messages can leave at present."""
        return self._transport.is_connected

    def send(
        self,
        broker: BrokerId,
        channel: Channel,
        body: Body,
        tail: bytes = b"",
        *,
        correlation_id: int = 0,
    ) -> None:
        """Send at most once; what is too long is lost as any message may be."""
        header = PeerHeader(
            self.cluster_id,
            self.broker,
            self.incarnation_id,
            self.broker_epoch,
            correlation_id,
            body,
        )
        self._message_id += 1
        try:
            payloads = pack(
                header,
                tail,
                payload_bytes_max=self._transport.payload_bytes_max,
                message_id=self._message_id,
            )
        except WireError:
            self.lost_count += 1
            return
        for payload in payloads:
            self._transport.send(broker, channel, payload)

    def is_ours(self, header: PeerHeader) -> bool:
        """Whether a message is of this cluster, or of a broker that has none yet."""
        return not (header.cluster_id and self.cluster_id and header.cluster_id != self.cluster_id)
