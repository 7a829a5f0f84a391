"""The lives of a partition and its brokers, by seed: which families of steps they take."""

from random import Random
from typing import Final

from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps
from liftbridge_testkit.replica_estate import Estate
from liftbridge_testkit.replica_moves import Moves
from liftbridge_testkit.replica_sessions import Sessions

FAMILIES: Final[tuple[type[Steps], ...]] = (Moves, Sessions, Estate)
"""Families of steps; each life has some. Append new ones, to keep other lives unchanged."""

SHARE: Final = 0.5
"""Share of the lives that have a family."""


def life(seed: int) -> ReplicaCluster:
    """Return the run of a seed."""
    chance = Random(f"families of {seed}")  # not that of the run: without a family it stays alike
    return ReplicaCluster(seed, families=[one for one in FAMILIES if chance.random() < SHARE])
