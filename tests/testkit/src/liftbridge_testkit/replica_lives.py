"""Runs of a partition and its brokers, by seed; each run has some families of steps."""

from random import Random
from typing import Final

from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps
from liftbridge_testkit.replica_estate import Estate
from liftbridge_testkit.replica_moves import Moves
from liftbridge_testkit.replica_sessions import Sessions

FAMILIES: Final[tuple[type[Steps], ...]] = (Moves, Sessions, Estate)
"""Families of steps; each run has some. Append new ones, so that other runs stay the same."""

SHARE: Final = 0.5
"""Share of the runs that have a family."""


def life(seed: int) -> ReplicaCluster:
    """Return the run of a seed."""
    chance = Random(f"families of {seed}")  # a separate generator
    return ReplicaCluster(seed, families=[family for family in FAMILIES if chance.random() < SHARE])
