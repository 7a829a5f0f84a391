"""Assignment of partitions to the members of a group: sticky, balanced, deterministic.

A member keeps what it has as long as that is balanced: no member could take a partition from
another that has at least two more. Partitions that nobody has go to the member with the fewest
partitions of all streams; among equals to one in the zone of the partition's leader, then by name.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import PartitionId

PASSES_MAX: Final = 8
"""Passes to balance. Members with different streams may need several, because a partition that one
of them gives away changes what is balanced among others."""


class Place(NamedTuple):
    """A partition to assign, and the zone of its leader; empty when unknown."""

    partition: PartitionId
    zone: str


@dataclass(slots=True, eq=False)
class Reader:
    """A member, as far as the assignment depends on it.

    Attributes:
        member_id: Its name.
        streams: Names of existing streams that it subscribes to.
        zone: Its zone; empty when unknown.
        load: Number of its partitions.
    """

    member_id: str
    streams: frozenset[str]
    zone: str = ""
    load: int = field(default=0, init=False)


def assign(
    readers: Sequence[Reader],
    streams: Mapping[str, Sequence[Place]],
    before: Mapping[PartitionId, Reader],
) -> dict[PartitionId, Reader]:
    """Return the reader of each partition that has a subscriber.

    Args:
        readers: Members in the order of their names.
        streams: Partitions of all streams that a member subscribes to, by name of the stream.
        before: Reader that each partition had.
    """
    subscribers: dict[str, list[Reader]] = {name: [] for name in streams}
    for reader in readers:
        for name in reader.streams & streams.keys():
            subscribers[name].append(reader)
    owners: dict[PartitionId, Reader] = {}
    for name, places in streams.items():
        for partition, _ in places:
            owner = before.get(partition)
            if owner is not None and name in owner.streams:
                owners[partition] = owner
                owner.load += 1
    pools = _pools(streams, subscribers)
    for places, members in pools:
        _give(places, members, owners)
    for _ in range(PASSES_MAX):
        moved = [_balance(places, members, owners) for places, members in pools]
        if not any(moved):
            break
    return owners


def _pools(
    streams: Mapping[str, Sequence[Place]], subscribers: Mapping[str, list[Reader]]
) -> list[tuple[list[Place], list[Reader]]]:
    """Return the partitions that the same members subscribe to, with these members.

    Those with the fewest members come first: the others can even out what these leave.
    """
    pools: dict[tuple[Reader, ...], list[Place]] = {}
    for name in sorted(name for name in streams if subscribers[name]):
        pools.setdefault(tuple(subscribers[name]), []).extend(streams[name])
    ordered = sorted(pools.items(), key=lambda pool: len(pool[0]))
    return [(places, list(members)) for members, places in ordered]


class _Least:
    """The least loaded of some readers; while it is in use, only those it returned gain load."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._heap = [(reader.load, place, reader) for place, reader in enumerate(readers)]
        heapify(self._heap)

    def get(self) -> Reader:
        """Return the first reader with the lowest load."""
        while True:
            load, place, reader = self._heap[0]
            if load >= reader.load:
                return reader
            heapreplace(self._heap, (reader.load, place, reader))


def _give(
    places: Sequence[Place], readers: Sequence[Reader], owners: dict[PartitionId, Reader]
) -> None:
    """Give partitions that nobody has to their subscribers."""
    free = [place for place in places if place.partition not in owners]
    if not free:
        return
    by_zone: dict[str, list[Reader]] = defaultdict(list)
    for reader in readers:
        by_zone[reader.zone].append(reader)
    least = _Least(readers)
    near = {zone: _Least(members) for zone, members in by_zone.items() if zone}
    for place in free:
        reader = least.get()
        if place.zone in near:
            nearest = near[place.zone].get()
            reader = nearest if nearest.load == reader.load else reader
        owners[place.partition] = reader
        reader.load += 1


def _balance(
    places: Sequence[Place], readers: Sequence[Reader], owners: dict[PartitionId, Reader]
) -> bool:
    """Move partitions among their subscribers until no move helps; return whether any moved.

    Each move goes from the most loaded reader of any of them to the least loaded subscriber. A
    reader that gained never gives in the same call, nor does one that gave gain: it still has more.
    """
    own: dict[Reader, list[Place]] = {}
    for place in places:
        own.setdefault(owners[place.partition], []).append(place)
    rich = [(-giver.load, at, giver) for at, giver in enumerate(readers) if giver in own]
    heapify(rich)
    poor = _Least(readers)
    moved = False
    while rich:
        _, at, giver = heappop(rich)
        taker = poor.get()
        if giver.load - taker.load < 2:
            break
        owners[_farthest(own[giver], giver, taker).partition] = taker
        giver.load -= 1
        taker.load += 1
        moved = True
        if own[giver]:
            heappush(rich, (-giver.load, at, giver))
    return moved


def _farthest(own: list[Place], giver: Reader, taker: Reader) -> Place:
    """Take one of a giver's partitions: if possible one near to the taker, else the last."""
    if giver.zone != taker.zone and taker.zone:
        for at in range(len(own) - 1, -1, -1):
            if own[at].zone == taker.zone:
                return own.pop(at)
    return own.pop()
