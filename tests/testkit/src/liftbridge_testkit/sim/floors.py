"""The least that a range of seeds must meet, else it proves less than it says.

Floors are given for a thousand seeds of a kind of world and scale with the range; below a hundred
seeds nothing is asked.
"""

from collections.abc import Mapping

from liftbridge_testkit.sim.lone_life import FAULTS as LONE_FAULTS

SEEDS_MIN = 100

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

PER_THOUSAND: Mapping[str, Mapping[tuple[str, str], int]] = {"lone": _LONE}


def floors_for(by_kind: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Floors of a range that ran so many seeds of each kind."""
    floors: dict[tuple[str, str], int] = {}
    for kind, seeds in by_kind.items():
        if seeds >= SEEDS_MIN:
            for key, least in PER_THOUSAND.get(kind, {}).items():
                floors[key] = floors.get(key, 0) + max(1, least * seeds // 1_000)
    return floors
