"""Outcome of a range of seeds, summed over seeds and processes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.floors import floors_for
from liftbridge_testkit.sim.seeds import SeedResult, replay_command


@dataclass(slots=True)
class Sum:
    """Outcome of a range of seeds.

    Attributes:
        seeds: Seeds run.
        first: Lowest seed; -1 before the first.
        last: Highest seed.
        events: Turns of processes in all seeds.
        virtual_ns: Simulated time.
        busy_seconds: Time of all workers.
        coverage: Counters of all seeds.
        failures: Failures in seeds of this process, in order.
        failed: Failed seeds of all processes, with their kinds.
        by_kind: Seeds by kind of world.
    """

    seeds: int = 0
    first: int = -1
    last: int = -1
    events: int = 0
    virtual_ns: int = 0
    busy_seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    failures: list[SeedResult] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    by_kind: dict[str, int] = field(default_factory=dict)

    def add(self, result: SeedResult) -> None:
        """Add one seed."""
        self._add_seeds(1, result.seed, result.seed)
        self.events += result.events
        self.virtual_ns += result.virtual_ns
        self.busy_seconds += result.seconds
        self.by_kind[result.kind] = self.by_kind.get(result.kind, 0) + 1
        self.coverage.add(result.counts)
        self.coverage.count("world", "event", result.events)
        if result.failure:
            self.failures.append(result)
            self.failed.append((result.seed, result.kind))

    def _add_seeds(self, seeds: int, first: int, last: int) -> None:
        self.first = first if not self.seeds else min(self.first, first)
        self.last = max(self.last, last)
        self.seeds += seeds

    def line(self, seconds: float) -> str:
        """Return one line for people."""
        rate = self.events / max(self.busy_seconds, 1e-9)
        return (
            f"{self.seeds:,} seeds from {self.first} to {self.last}, {self.events:,} events, "
            f"{self.virtual_ns / SECOND_NS / 3_600:.2f} h simulated in {seconds:.1f} s, "
            f"{rate:,.0f} events/s a core, {len(self.failed)} failed"
        )

    def lines(self, seconds: float, floors: Mapping[tuple[str, str], int]) -> list[str]:
        """Return the whole report for people: counts, rate, missed floors, failures."""
        lines = self.coverage.table(floors)
        lines.append(self.line(seconds))
        lines += [f"below its floor: {line}" for line in self.coverage.below(floors)]
        for seed, kind in self.failed:
            lines.append(f"seed {seed} failed; {replay_command(seed, kind)}")
        return lines

    def missing(self) -> list[str]:
        """Return the floors for this number of seeds that were not reached."""
        return self.coverage.below(floors_for(self.by_kind))

    # Between processes.

    def as_text(self) -> str:
        """Return everything except the failure texts."""
        return json.dumps(
            {
                "seeds": (self.seeds, self.first, self.last),
                "events": self.events,
                "virtual_ns": self.virtual_ns,
                "busy_seconds": self.busy_seconds,
                "by_kind": self.by_kind,
                "failed": self.failed,
                "counts": [[*key, times] for key, times in self.coverage.counts.items()],
            }
        )

    def add_text(self, text: str) -> None:
        """Add the result of another process from `as_text`."""
        told = json.loads(text)
        self._add_seeds(*told["seeds"])
        self.events += told["events"]
        self.virtual_ns += told["virtual_ns"]
        self.busy_seconds += told["busy_seconds"]
        self.failed += [(seed, kind) for seed, kind in told["failed"]]
        for kind, seeds in told["by_kind"].items():
            self.by_kind[kind] = self.by_kind.get(kind, 0) + seeds
        self.coverage.add({(group, name): times for group, name, times in told["counts"]})
