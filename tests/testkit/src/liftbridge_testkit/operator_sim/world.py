"""A schedule: a cluster, its user, its faults and two operators, from one seed.

First all faults and changes happen together. Then faults stop, the specification becomes one that
can be fulfilled, and the cluster must become ready within a bounded number of passes, and stay
quiet afterwards.
"""

from random import Random
from typing import Final

from liftbridge_testkit.operator_sim import workload
from liftbridge_testkit.operator_sim.errors import InvariantError
from liftbridge_testkit.operator_sim.operator import Operator
from liftbridge_testkit.operator_sim.stage import Stage

PASSES_MAX: Final = 500
QUIET_PASSES: Final = 4


class World:
    """One schedule.

    Attributes:
        stage: Models of the schedule.
        operators: Two processes; one holds the lease at a time.
        step_count: Steps so far.
    """

    def __init__(self, seed: int, out: list[str] | None = None) -> None:
        self.stage = stage = Stage(seed, out)
        self.operators = [Operator(f"op-{one}", stage, Random(seed + 3 + one)) for one in range(2)]
        self.paused_until = [0, 0]
        self.step_count = 0

    def run(self) -> None:
        """Run the whole schedule.

        Raises:
            InvariantError: Something happened that must never happen.
        """
        workload.begin(self.stage)
        for _ in range(self.stage.rng.randrange(40, 120)):
            self._wild_step()
        workload.heal(self.stage)
        self.stage.is_wild = False
        self._settle()

    def _wild_step(self) -> None:
        self.step_count += 1
        self.stage.tick(self.stage.rng.choice((300, 1_000, 2_500, 6_000)))
        if self.stage.rng.random() < 0.12:
            workload.change(self.stage)
        if self.stage.rng.random() < 0.15:
            workload.fault(self.stage)
        for index, operator in enumerate(self.operators):
            if self.stage.now < self.paused_until[index]:
                continue
            chance = self.stage.rng.random()
            if chance < 0.6:
                operator.run()
            else:
                for _ in range(self.stage.rng.randrange(1, 5)):
                    if operator.step():
                        break
            if self.stage.rng.random() < 0.02:
                operator.kill()
                self.stage.count("fault", "operator killed")
            elif self.stage.rng.random() < 0.02:
                self.paused_until[index] = self.stage.now + self.stage.rng.choice(
                    (2_000, 8_000, 30_000)
                )
                self.stage.count("fault", "operator paused")

    def _settle(self) -> None:
        """Wait after the faults until the cluster is ready within the bound, then quiet."""
        passes = quiet = 0
        self.paused_until = [0, 0]
        while passes < PASSES_MAX:
            self.stage.tick(self.stage.rng.choice((1_000, 2_000, 3_000)))
            workload.approve(self.stage)
            self.step_count += 1
            for operator in self.operators:
                before = operator.passes
                operator.run()
                if operator.passes == before:
                    continue
                passes += 1
                last = operator.last
                is_ready = last is not None and last.status.is_ready and last.action is None
                quiet = quiet + 1 if is_ready else 0
            if quiet >= QUIET_PASSES:
                self._check_ready()
                self.stage.counts["passes", "until ready"] += passes
                self.stage.counts["passes", f"at most {-(-passes // 50) * 50}"] += 1
                return
        raise InvariantError(f"not ready after {passes} passes: {self._why()}")

    def _why(self) -> str:
        found = [op.last for op in self.operators if op.last is not None]
        return "; ".join(
            f"{one.action} {[(w.what, w.object, w.ends_when) for w in one.status.waits]}"
            for one in found
        )[:900]

    def _check_ready(self) -> None:
        resource, brokers = self.stage.api.resource, self.stage.api.brokers
        assert resource is not None
        assert brokers is not None
        if brokers.replicas != resource.desired.replicas:
            raise InvariantError("ready with another number of brokers")
        for pod in self.stage.api.pods.values():
            if pod.revision != resource.desired.revision or not self.stage.brokers.is_up(pod.name):
                raise InvariantError(f"ready with {pod}")
        for partition in self.stage.brokers.partitions.values():
            if set(partition.replicas) != set(partition.isr) or not partition.leader:
                raise InvariantError(f"ready with {partition}")
