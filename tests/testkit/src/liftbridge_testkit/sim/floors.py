"""Minimum counts that a range of seeds must reach, or it proves less than it claims.

Floors are for 1,000 seeds of a kind of world and scale with the range. Below 500 seeds there are
none.
"""

from collections.abc import Mapping

from liftbridge_testkit.sim import rare
from liftbridge_testkit.sim.clients.askers import WAYS, Kind
from liftbridge_testkit.sim.clients.callers import REVOKED, STREAMING
from liftbridge_testkit.sim.clients.consumers import MEMBER_FAULTS
from liftbridge_testkit.sim.clients.granter import CHANGES
from liftbridge_testkit.sim.clients.key_keepers import CHOSEN, REWRAPPED, WITHDRAWN
from liftbridge_testkit.sim.clients.rearranger import REARRANGING
from liftbridge_testkit.sim.clients.resetters import LATE_RESET
from liftbridge_testkit.sim.cluster_life import COORDINATOR_FAULTS
from liftbridge_testkit.sim.cluster_life import FAULTS as CLUSTER_FAULTS
from liftbridge_testkit.sim.late_frames import LATE
from liftbridge_testkit.sim.lone_life import FAULTS as LONE_FAULTS
from liftbridge_testkit.sim.network import MESSAGE_FAULTS
from liftbridge_testkit.sim.voter_life import FAULTS as GROUP_FAULTS

SEEDS_MIN = 500
EVENTS_A_SEED = 2_000
"""Minimum number of events for each seed of a range."""

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

_DAMAGE = ("bit rot", "metadata rot", "misdirected write", "wiped disk")
"""Faults that are within the promise only while everything else is well."""

_GROUP = {
    **{("fault", kind): 50 for kind in (*GROUP_FAULTS, *MESSAGE_FAULTS)},
    **{("fault", kind): 10 for kind in _DAMAGE if kind in GROUP_FAULTS},
    **{("rare", name): 10 for name in (*rare.GROUP, "damaged disk replaced")},
    ("rare", "power cut within a turn"): 50,
    ("client", "proposal applied"): 20_000,
    ("client", "read"): 5_000,
    ("node", "metadata_leader_changed"): 5_000,
    ("node", "metadata_snapshot_installed"): 50,
    ("admin", "learner promoted"): 500,
    ("admin", "voter removed"): 100,
    ("world", "crash with loss"): 500,
}

_CLUSTER = {
    **{("fault", kind): 50 for kind in (*CLUSTER_FAULTS, *MESSAGE_FAULTS)},
    **{("fault", kind): 8 for kind in _DAMAGE},
    **{("rare", name): 3 for name in rare.CLUSTER},
    **{("admin", name): 5 for name in REARRANGING},
    **{("client", f"{kind.value} told by a {way}"): 20 for kind in Kind for way in WAYS},
    ("client", "end told with the metadata"): 20,
    ("client", "acked record"): 300_000,
    ("client", "delivered record"): 300_000,
    ("client", "unknown outcome"): 1_000,
    ("client", "cursor stored"): 200,
    ("client", "consumer joined"): 200,
    ("client", "seat taken"): 1_000,
    ("client", "position committed"): 500,
    ("client", "position reset"): 40,
    ("client", "reset refused"): 200,
    ("fault", LATE_RESET): 50,
    ("world", "position set back"): 40,
    ("client", "partition given up slowly"): 20,
    **{("fault", kind): 5 for kind in COORDINATOR_FAULTS},
    **{("fault", kind): 20 for kind in MEMBER_FAULTS},
    ("fault", REVOKED): 100,
    **{("access", f"{kind} revoked"): 5 for kind in STREAMING},
    **{("access", kind): 10 for kind in CHANGES},
    ("access", "allowed"): 10_000,
    ("access", "refused"): 500,
    ("world", "position in order"): 500,
    ("fault", WITHDRAWN): 20,
    ("node", "stream_locked"): 20,
    ("node", "stream_unlocked"): 10,
    ("world", CHOSEN): 5,
    ("world", REWRAPPED): 5,
    ("node", "self_fenced"): 200,
    ("node", "broker_ended"): 200,
    ("world", "log start below a cursor moved"): 100,
    ("world", "log start moved past a cursor"): 2,
    ("rare", "eligible leaders appear"): 300,
    ("rare", "eligible replica elected"): 100,
    ("rare", "partition without a leader"): 200,
    ("world", "activity event committed"): 300,
    ("world", "election"): 2_000,
    ("world", "in-sync set changed"): 6_000,
    ("world", "truncation"): 1_000,
    ("world", "crash with loss"): 150,
    ("world", "process stopped"): 300,
}

_SHAPES = {
    **{("fault", kind): 40 for kind in (*CLUSTER_FAULTS, *MESSAGE_FAULTS, "late frames")},
    **{("fault", kind): 3 for kind in _DAMAGE},
    **{("rare", name): 3 for name in LATE},
    ("client", "acked record"): 100_000,
    ("client", "delivered record"): 100_000,
    ("rare", "unclean election of a partition in use"): 100,
    ("world", "election"): 1_000,
    ("world", "in-sync set changed"): 3_000,
    ("world", "truncation"): 300,
    ("world", "crash with loss"): 50,
}

PER_THOUSAND: Mapping[str, Mapping[tuple[str, str], int]] = {
    "lone": _LONE,
    "group": _GROUP,
    "cluster": _CLUSTER,
    "shapes": _SHAPES,
}


def floors_for(by_kind: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Return the floors of a range with this number of seeds of each kind."""
    floors: dict[tuple[str, str], int] = {}
    seeds_all = sum(by_kind.values())
    if seeds_all >= SEEDS_MIN:
        floors["world", "event"] = EVENTS_A_SEED * seeds_all
    for kind, seeds in by_kind.items():
        if seeds >= SEEDS_MIN:
            for key, least in PER_THOUSAND.get(kind, {}).items():
                floors[key] = floors.get(key, 0) + max(1, least * seeds // 1_000)
    return floors
