"""A schedule by its seed, and totals of ranges of schedules."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from liftbridge_testkit.operator_sim.world import World


@dataclass(slots=True)
class SeedResult:
    """Outcome of a schedule; `failure` is empty for success."""

    seed: int
    failure: str
    steps: int
    trace_hash: str
    counts: Mapping[tuple[str, str], int]
    trace: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Total:
    """Results of a range."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        """Add the result of a schedule."""
        self.seeds += 1
        self.steps += result.steps
        self.counts.update(result.counts)
        if result.failure:
            self.failures.append(result)


def run_seed(seed: int, *, keeps_trace: bool = False) -> SeedResult:
    """Run a schedule; any exception is its failure."""
    trace: list[str] = []
    world = World(seed, trace if keeps_trace else None)
    failure = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - a planner that raises has failed as well
        failure = f"seed {seed}: {type(error).__name__}: {error}"
    return SeedResult(
        seed, failure, world.step_count, world.stage.trace_hash, world.stage.counts, trace
    )


def run_some(seeds: Iterable[int]) -> Total:
    """Run schedules in sequence."""
    total = Total()
    for seed in seeds:
        total.add(run_seed(seed))
    return total
