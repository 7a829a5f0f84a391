"""Differences between two metadata responses."""

from liftbridge_client.core.addresses import written
from liftbridge_client.events import BrokersChanged, Event, LeaderChanged, StreamsChanged
from liftbridge_client.model import Metadata


def changes(before: Metadata, after: Metadata) -> list[Event]:
    """List the events between two states of the metadata; none if `before` is empty."""
    if not before.brokers:
        return []
    events: list[Event] = []
    addresses = [
        tuple(sorted(written(b.host, b.port) for b in m.brokers.values())) for m in (before, after)
    ]
    if addresses[0] != addresses[1]:
        events.append(BrokersChanged(addresses[0], addresses[1]))
    appeared = tuple(sorted(after.streams.keys() - before.streams.keys()))
    vanished = tuple(sorted(before.streams.keys() - after.streams.keys()))
    if appeared or vanished:
        events.append(StreamsChanged(appeared, vanished))
    for name in sorted(after.streams.keys() & before.streams.keys()):
        old, new = before.streams[name].partitions, after.streams[name].partitions
        events += [
            LeaderChanged(name, number, old[number].leader, new[number].leader)
            for number in sorted(old.keys() & new.keys())
            if old[number].leader != new[number].leader
        ]
    return events
