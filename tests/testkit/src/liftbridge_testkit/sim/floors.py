"""The least that a range of seeds must meet, else it proves less than it says.

Floors are given for a thousand seeds of a kind of world and scale with the range; below a hundred
seeds nothing is asked.
"""

from collections.abc import Mapping

from liftbridge_testkit.sim.cluster_life import FAULTS as CLUSTER_FAULTS
from liftbridge_testkit.sim.lone_life import FAULTS as LONE_FAULTS
from liftbridge_testkit.sim.voter_life import FAULTS as GROUP_FAULTS

SEEDS_MIN = 100
EVENTS_A_SEED = 2_000
"""Events that a range has at least for each of its seeds."""

_LONE = {
    **{("fault", kind): 200 for kind in LONE_FAULTS},
    ("client", "acked record"): 100_000,
    ("client", "delivered record"): 100_000,
    ("client", "unknown outcome"): 1_000,
    ("client", "repeated run"): 500,
    ("world", "crash with loss"): 200,
    ("world", "process killed"): 500,
    ("world", "process stopped"): 200,
    ("world", "process failed"): 100,
    ("rare", "power cut within a turn"): 100,
    ("rare", "duplicate answered with its first offset"): 20,
}

_MESSAGES = ("message lost", "message doubled", "message overtaken")
_RARE_STATES = (
    "eligible leaders appear",
    "eligible replica elected",
    "last known eligible leaders appear",
    "partition without a leader",
    "power cut within a turn",
)

_GROUP = {
    **{("fault", kind): 100 for kind in (*GROUP_FAULTS, *_MESSAGES)},
    **{("rare", name): 100 for name in (*_RARE_STATES, "damaged disk replaced")},
    ("client", "proposal applied"): 20_000,
    ("client", "read"): 5_000,
    ("node", "metadata_leader_changed"): 5_000,
    ("node", "metadata_snapshot_installed"): 100,
    ("admin", "learner promoted"): 500,
    ("admin", "voter removed"): 100,
    ("world", "crash with loss"): 1_000,
}

_CLUSTER = {
    **{("fault", kind): 50 for kind in (*CLUSTER_FAULTS, *_MESSAGES)},
    **{("rare", name): 50 for name in _RARE_STATES},
    ("client", "acked record"): 500_000,
    ("client", "delivered record"): 500_000,
    ("client", "unknown outcome"): 1_000,
    ("node", "self_fenced"): 200,
    ("world", "election"): 1_000,
    ("world", "in-sync set changed"): 5_000,
    ("world", "truncation"): 500,
    ("world", "crash with loss"): 300,
    ("world", "process stopped"): 100,
}

PER_THOUSAND: Mapping[str, Mapping[tuple[str, str], int]] = {
    "lone": _LONE,
    "group": _GROUP,
    "cluster": _CLUSTER,
}


def floors_for(by_kind: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Floors of a range that ran so many seeds of each kind."""
    floors: dict[tuple[str, str], int] = {}
    seeds_all = sum(by_kind.values())
    if seeds_all >= SEEDS_MIN:
        floors["world", "event"] = EVENTS_A_SEED * seeds_all
    for kind, seeds in by_kind.items():
        if seeds >= SEEDS_MIN:
            for key, least in PER_THOUSAND.get(kind, {}).items():
                floors[key] = floors.get(key, 0) + max(1, least * seeds // 1_000)
    return floors
