"""Members of the metadata group, and the state of their brokers in the metadata."""

from collections.abc import Sequence
from typing import Protocol

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.metadata_log import Peer


class Group(Protocol):
    """The metadata group (`ports.metadata.MetadataConsensus`)."""

    @property
    def voters(self) -> Sequence[Peer]:
        """Members with a vote."""
        ...

    def match(self, peer: Peer) -> MetadataIndex | None:
        """Return the match index of a member, known to the leader."""
        ...


def is_alive(state: ClusterState, peer: Peer) -> bool:
    """Return whether a member's broker is registered from that directory and not fenced."""
    known = state.brokers.get(peer.broker)
    return known is not None and not known.fenced and known.data_dir_id == peer.data_dir_id


def furthest_voter(state: ClusterState, group: Group, *, besides: Peer) -> BrokerId | None:
    """Return the eligible voter with the highest match index, except `besides`, or `None`."""
    others: list[tuple[int, str]] = []
    for peer in group.voters:
        known = state.brokers.get(BrokerId(peer.broker))
        if peer != besides and known is not None and known.can_lead and is_alive(state, peer):
            others.append((group.match(peer) or 0, peer.broker))
    return BrokerId(max(others)[1]) if others else None
