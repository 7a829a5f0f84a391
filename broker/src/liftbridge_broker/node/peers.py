"""Messages of other brokers, handed to whom they are for."""

from collections.abc import Callable

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.peer_link import PeerLink
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_bodies import Propose, ProposeRefused, RaftBody
from liftbridge_broker.wire.peer_membership import Discover, DiscoverReply

Take = Callable[[PeerHeader, bytes, Instant], None]
"""Takes a message: its head, its tail, and the time now."""

_OF_METADATA = (RaftBody, Propose, ProposeRefused)
_OF_SEARCH = (Discover, DiscoverReply)


class Peers:
    """The way in for messages of other brokers.

    Args:
        link: How this broker speaks to them; knows which cluster it belongs to.
        to_metadata: Takes messages of the metadata group.
        to_search: Takes questions for a cluster and their answers, of other clusters too.
        to_others: Takes all others.

    Attributes:
        foreign_count: Messages of another cluster.
    """

    def __init__(self, link: PeerLink, to_metadata: Take, to_search: Take, to_others: Take) -> None:
        """Begin with no message half there."""
        self._link = link
        self._to_metadata = to_metadata
        self._to_search = to_search
        self._to_others = to_others
        self.foreign_count = 0

    def on_payload(self, channel: Channel, payload: bytes, now: Instant) -> bool:
        """Take what arrived on a channel; whether it was a whole message that is believed."""
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
