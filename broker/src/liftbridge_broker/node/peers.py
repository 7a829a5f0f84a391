"""What other brokers send to this one: put together, read, and handed to whom it is for."""

from collections.abc import Callable

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.peer_link import PeerLink
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer import PeerHeader, Reassembler
from liftbridge_broker.wire.peer_bodies import Propose, ProposeRefused, RaftBody

Take = Callable[[PeerHeader, bytes, Instant], None]
"""Takes a message: its head, its tail, and the time now."""

_OF_METADATA = (RaftBody, Propose, ProposeRefused)


class Peers:
    """The way in for messages of other brokers.

    Args:
        link: How this broker speaks to them; knows which cluster it belongs to.
        to_metadata: Takes messages of the metadata group.
        to_others: Takes all others.

    Attributes:
        malformed_count: Messages that could not be read.
        foreign_count: Messages of another cluster.
    """

    def __init__(self, link: PeerLink, to_metadata: Take, to_others: Take) -> None:
        """Begin with no message half there."""
        self._link = link
        self._to_metadata = to_metadata
        self._to_others = to_others
        # Chunks come in order on one connection, and each channel has its own.
        self._chunks = {channel: Reassembler() for channel in Channel}
        self.malformed_count = 0
        self.foreign_count = 0

    def on_payload(self, channel: Channel, payload: bytes, now: Instant) -> None:
        """Take what arrived on a channel."""
        try:
            message = self._chunks[channel].take(payload)
        except WireError:
            self.malformed_count += 1
            return
        if message is None:
            return
        header, tail = message
        if not self._link.is_ours(header):
            self.foreign_count += 1
        elif isinstance(header.body, _OF_METADATA):
            self._to_metadata(header, tail, now)
        else:
            self._to_others(header, tail, now)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages of which only a part arrived."""
        return sum(chunks.held_bytes for chunks in self._chunks.values())
