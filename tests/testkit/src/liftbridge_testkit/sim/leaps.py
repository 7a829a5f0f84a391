"""Wall clocks that leap for a moment: of one broker, or of all but one at once.

It belongs to one world and uses a separate random generator, so that all else stays unchanged.
"""

from random import Random

from liftbridge_broker.model.units import DAY_NS, SECOND_NS
from liftbridge_testkit.sim.broker import CLOCK_LIMITS
from liftbridge_testkit.sim.world import World

BIRTH_NS = 2 * SECOND_NS
LEAPS = (3_600 * SECOND_NS, 9 * DAY_NS, 3_650 * DAY_NS)


class Leaps:
    """Makes clocks leap sometimes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"leaps {world.seed}")
        # A cluster accepts the first date that it learns.
        world.scheduler.after(BIRTH_NS, self._wait)

    def _wait(self) -> None:
        self._world.scheduler.after(self._random.randrange(4 * SECOND_NS), self._leap)

    def _leap(self) -> None:
        """Leap all clocks but one, too shortly for brokers to accept it, or one for longer."""
        random, machines = self._random, list(self._world.machines.values())
        leap_ns = random.choice(LEAPS) * random.choice((-1, 1))
        one = random.choice(machines)
        if random.random() < 0.5:
            chosen, longest = [one], 3 * CLOCK_LIMITS.settle_ns
        else:
            chosen, longest = [other for other in machines if other is not one], SECOND_NS
        self._world.coverage.count("fault", "clock leap" if len(chosen) == 1 else "clocks leap")
        for machine in chosen:
            machine.clock.wall_skew_ns += leap_ns

        def end() -> None:
            for machine in chosen:
                machine.clock.wall_skew_ns -= leap_ns
            self._wait()

        self._world.scheduler.after(random.randrange(longest), end)
