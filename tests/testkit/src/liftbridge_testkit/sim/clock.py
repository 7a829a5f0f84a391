"""The clocks of one machine: a monotonic clock that drifts, and a wall clock that can be set.

The program sees only these; only the simulator knows the true time.
"""

from liftbridge_broker.model.ids import Instant

WALL_START_NS = 1_700_000_000_000_000_000
"""Wall clock at the beginning of the world."""

MILLION = 1_000_000


class MachineClock:
    """Both clocks of a machine.

    Attributes:
        drift_ppm: Rate by which they are faster than true time, in millionths; negative for slower.
        wall_skew_ns: Time by which the wall clock is ahead, drift apart.
    """

    __slots__ = ("_base_local", "_base_true", "drift_ppm", "wall_skew_ns")

    def __init__(
        self, base_local: int = 0, base_true: int = 0, *, drift_ppm: int = 0, wall_skew_ns: int = 0
    ) -> None:
        self.drift_ppm = drift_ppm
        self.wall_skew_ns = wall_skew_ns
        self._base_local = base_local
        self._base_true = base_true

    def local(self, true_ns: int) -> Instant:
        """Return the monotonic time at a true time."""
        passed = true_ns - self._base_true
        return Instant(self._base_local + passed + passed * self.drift_ppm // MILLION)

    def wall(self, true_ns: int) -> int:
        """Return Unix nanoseconds at a true time."""
        passed = true_ns - self._base_true
        return WALL_START_NS + true_ns + passed * self.drift_ppm // MILLION + self.wall_skew_ns

    def true(self, local_ns: int) -> int:
        """Return the first true time at which the monotonic clock shows at least `local_ns`."""
        wanted = local_ns - self._base_local
        passed = wanted * MILLION // (MILLION + self.drift_ppm)
        true_ns = self._base_true + passed
        while self.local(true_ns) < local_ns:
            true_ns += 1
        return true_ns

    def set_drift(self, drift_ppm: int, true_ns: int) -> None:
        """Change the rate of the clocks from now on, without a jump."""
        local, wall = self.local(true_ns), self.wall(true_ns)
        self._base_local, self._base_true, self.drift_ppm = local, true_ns, drift_ppm
        self.wall_skew_ns = wall - WALL_START_NS - true_ns

    def reboot(self, base_local: int, true_ns: int) -> None:
        """Restart the monotonic clock at another value, as a reboot does."""
        wall = self.wall(true_ns)
        self._base_local, self._base_true = base_local, true_ns
        self.wall_skew_ns = wall - WALL_START_NS - true_ns
