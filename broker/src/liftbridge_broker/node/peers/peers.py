"""Dispatch of messages from other brokers."""

from collections.abc import Callable

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import Propose, ProposeRefused, RaftBody
from liftbridge_broker.wire.peer.membership import Discover, DiscoverReply
from liftbridge_broker.wire.peer.messages import PeerHeader

Take = Callable[[PeerHeader, bytes, Instant], None]
"""Handles a message: its header, its tail, and the current time."""

_OF_METADATA = (RaftBody, Propose, ProposeRefused)
_OF_SEARCH = (Discover, DiscoverReply)


class Peers:
    """Dispatcher of messages from other brokers.

    Args:
        link: Receives the messages; knows the cluster of this broker.
        to_metadata: Handles messages of the metadata group.
        to_search: Handles questions and answers of cluster discovery, also of other clusters.
        to_others: Handles all other messages.

    Attributes:
        foreign_count: Messages of another cluster.
    """

    def __init__(self, link: PeerLink, to_metadata: Take, to_search: Take, to_others: Take) -> None:
        """Start without partial messages."""
        self._link = link
        self._to_metadata = to_metadata
        self._to_search = to_search
        self._to_others = to_others
        self.foreign_count = 0

    def on_payload(self, channel: Channel, payload: bytes, now: Instant) -> bool:
        """Handle a payload from a channel; return whether it completed an authentic message."""
        message = self._link.receive(channel, payload)
        if message is None:
            return False
        header, tail = message
        if isinstance(header.body, _OF_SEARCH):
            self._to_search(header, tail, now)
        elif not self._link.is_ours(header):
            self.foreign_count += 1
            return False
        elif isinstance(header.body, _OF_METADATA):
            self._to_metadata(header, tail, now)
        else:
            self._to_others(header, tail, now)
        return True
