"""Work in steps: a generator that yields where other work may run.

The data may change between two steps, so loops iterate over a copy taken at their start, and check
again where it matters that an item still exists.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.model.partitions import PartitionState

STEP: Final = 100
"""Streams, partitions or names in a step."""

Item = TypeVar("Item")


def in_steps(items: Iterable[Item], handle: Callable[[Item], None]) -> Iterator[None]:
    """Handle items, `STEP` of them in a step."""
    for number, item in enumerate(items, 1):
        handle(item)
        if number % STEP == 0:
            yield


def all_partitions(state: ClusterState) -> Iterator[tuple[StreamState, PartitionState]]:
    """Yield all partitions with their streams, while the state may change between two steps.

    A stream that is deleted before its step is returned as it was.
    """
    for stream in list(state.streams.values()):
        for partition in tuple(stream.partitions):
            yield stream, partition
