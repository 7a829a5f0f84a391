"""Families of further steps for a `ReplicaCluster`: what happens to some partitions only."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftbridge_testkit.replica_cluster import ReplicaCluster

Weighted = tuple[Callable[[], None], int]
"""A step and how often it is taken, in parts of all weights together."""


class Steps:
    """A family: steps of their own beside those of every run, in about every other run.

    A subclass overrides what it needs.

    Attributes:
        cluster: The run.
    """

    def __init__(self, cluster: "ReplicaCluster") -> None:
        self.cluster = cluster

    def faults(self) -> Sequence[Weighted]:
        """Steps that are taken until the faults stop."""
        return ()

    def always(self) -> Sequence[Weighted]:
        """Steps that go on afterwards, so that all comes into order."""
        return ()

    def check(self) -> None:
        """Invariants of its own, after every step; raises `BrokenError`."""

    @property
    def is_well(self) -> bool:
        """Whether everything of its own is in order."""
        return True
