"""Check that age retention removes only old records (I26), whatever wall clocks show.

The age of a record counts from the true time at which a broker first held its offset. The promise
ends for a run in which the clocks of half of the brokers were wrong for so long that brokers had to
accept their time.
"""

from bisect import bisect_right

from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import CLOCK_LIMITS, ClusterBroker
from liftbridge_testkit.sim.clock import WALL_START_NS
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

WRONG_NS = CLOCK_LIMITS.stamp_ns
"""Maximum error of a clock that counts as right."""

SLACK_NS = 2 * CLOCK_LIMITS.tolerance_ns
"""Tolerance for early removals: clocks that differ, and slow answers."""

BELIEVED_NS = CLOCK_LIMITS.settle_ns // 2
"""Maximum time for which the clocks of half of the brokers may be wrong."""


class Aging(Watcher):
    """Checks every leader whose log start moved in a turn.

    Attributes:
        is_void: Whether too many clocks were wrong for too long.
    """

    def __init__(self, world: World, rules: ReplicationRules) -> None:
        """Observe the changes that `rules` reports."""
        self.is_void = False
        self._world = world
        self._wrong_since: int | None = None
        self._ends: dict[int, list[int]] = {}
        self._times: dict[int, list[int]] = {}
        rules.listeners.append(self._on_changed)

    def on_turn(self, machine: Machine) -> None:
        """Check the clocks, including those of machines without a process."""
        del machine
        if self.is_void:
            return
        now = self._world.now
        machines = self._world.machines.values()
        right = WALL_START_NS + now
        wrong = sum(abs(one.clock.wall(now) - right) > WRONG_NS for one in machines)
        if 2 * wrong < len(machines):
            self._wrong_since = None
        elif self._wrong_since is None:
            self._wrong_since = now
        elif now - self._wrong_since > BELIEVED_NS:
            self.is_void = True

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        del broker
        now, partition_id = self._world.now, partition.partition_id
        ends = self._ends.setdefault(partition_id, [])
        times = self._times.setdefault(partition_id, [])
        if not ends or look.log_end > ends[-1]:
            ends.append(look.log_end)
            times.append(now)
        if before is None or look.log_start <= before.log_start or not partition.is_led:
            return
        limit_ns = _only_age(partition.options)
        if not limit_ns:
            return
        self._world.coverage.count("world", "records went by age")
        stored_at = times[bisect_right(ends, look.log_start - 1)]
        if not self.is_void and now - stored_at < limit_ns - SLACK_NS:
            raise BrokenInvariantError(
                "I26",
                f"{machine.name}, {partition.stream}/{partition.number}: begins at "
                f"{look.log_start}, though the record before was stored "
                f"{(now - stored_at) // MILLISECOND_NS} ms ago and may stay for "
                f"{limit_ns // MILLISECOND_NS}",
            )


def _only_age(options: StreamOptions) -> int:
    """Return the retention age in ns if nothing else removes records; 0 for other streams."""
    if options.retention_messages_max or options.retention_bytes_max:
        return 0
    return options.retention_age_ms_max * MILLISECOND_NS
