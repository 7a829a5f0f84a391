"""One operator process: lease, reads, decision, one action, status; it may end at any call.

A pass is a generator that yields before each call, so that anything can happen there.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from random import Random

from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Decision, Memory, TokenAnswer
from liftbridge_operator.cluster.planning.observation import (
    Disruption,
    Observation,
    Recorded,
    Verification,
)
from liftbridge_operator.cluster.planning.roll import remember
from liftbridge_operator.cluster.planning.suspension import size_after
from liftbridge_testkit.operator_sim import judge
from liftbridge_testkit.operator_sim.apply import apply
from liftbridge_testkit.operator_sim.errors import ApiError
from liftbridge_testkit.operator_sim.stage import Seen, Stage
from liftbridge_testkit.operator_sim.told import metadata_of, reports_of

LEASE_MS = 15_000
LEASE_USED_MS = 10_000
"""Age of the lease up to which its holder acts; the rest is for clocks and calls in flight."""


class Operator:
    """A process.

    Attributes:
        last: Decision of its last pass, None before the first.
        passes: Number of completed passes.
    """

    def __init__(self, name: str, world: Stage, rng: Random) -> None:
        self.name = name
        self.world = world
        self.rng = rng
        self.memory = Memory()
        self.last: Decision | None = None
        self.passes = 0
        self.renewed_ms = -1_000_000
        self.readings: dict[str, list[int]] = {}
        self._pass: Iterator[None] | None = None
        self._resource_uid = ""

    def kill(self) -> None:
        """Kill the process and start a new one without memory."""
        self.memory = Memory()
        self._pass = None
        self.renewed_ms = -1_000_000

    def step(self) -> bool:
        """Continue to the next call; return whether the pass has ended."""
        if self._pass is None:
            self._pass = self._run()
        try:
            next(self._pass)
        except StopIteration:
            self._pass = None
            return True
        except ApiError as error:
            self.world.count("error", str(error.code))
            self.world.trace(f"{self.name} {error}")
            self._pass = None
            return True
        return False

    def run(self) -> None:
        """Run a whole pass."""
        while not self.step():
            pass

    def _run(self) -> Iterator[None]:
        world = self.world
        self._renew()
        yield
        if world.api.resource is None:
            return
        seen = yield from self._observe()
        observation = seen.observation
        decision = decide(observation, self.memory)
        self.memory = decision.memory
        self.last = decision
        self.passes += 1
        self._note_readings(decision)
        world.published(self.name, decision)
        action = decision.action
        if action is not None:
            yield
            if not self._may_act(decision):
                world.count("dropped", type(action).__name__)
                return
            self._record_size(observation, decision)
            name = getattr(action, "name", "")
            seen.readings = tuple(self.readings.get(name, ()))
            answer = yield from self._act(seen, decision)
            self.memory = remember(self.memory, action, answer)
        if self._publishes(decision):
            yield
            world.publish_plan(decision.status.plan)

    def _record_size(self, seen: Observation, decision: Decision) -> None:
        """Write the planned number of pods to the status before an action."""
        resource = self.world.api.resource
        if resource is not None and resource.uid == self._resource_uid:
            size = size_after(seen, decision.action)
            self.world.api.resource = replace(resource, size=size)

    def _note_readings(self, decision: Decision) -> None:
        """Record the times at which this process found a gate open, consecutively and unchanged."""
        gate = decision.memory.gate
        if gate is None:
            self.readings = {}
        elif gate.first_ms == gate.last_ms or gate.broker not in self.readings:
            self.readings = {gate.broker: [gate.last_ms]}
        else:
            self.readings[gate.broker].append(gate.last_ms)

    def _renew(self) -> None:
        """Acquire or renew the lease.

        Raises:
            ApiError: Another process has it.
        """
        holder, renewed = self.world.api.lease
        now = self.world.now
        if holder not in ("", self.name) and now - renewed < LEASE_MS:
            self.memory = Memory()
            raise ApiError(409, f"{holder} has the lease")
        self.world.api.lease = (self.name, now)
        self.renewed_ms = now

    def _may_act(self, decision: Decision) -> bool:
        world = self.world
        is_holder = world.now - self.renewed_ms < LEASE_USED_MS  # by its own clock
        return is_holder and world.now <= decision.deadline_ms

    def _publishes(self, decision: Decision) -> bool:
        resource = self.world.api.resource
        plan = decision.status.plan
        return resource is not None and (resource.plan_hash, resource.risks) != (
            plan.hash,
            plan.risks,
        )

    def _act(self, seen: Seen, decision: Decision) -> Generator[None, None, TokenAnswer | None]:
        world = self.world
        assert decision.action is not None
        world.count("action", type(decision.action).__name__)
        world.trace(f"{self.name} {decision.action}")
        judge.planned(decision.status.plan, decision.action, seen)
        if world.fails():
            raise ApiError(429, "later")
        answer = yield from apply(world, decision.action, seen)
        if world.fails():
            raise ApiError(504, "no answer, and it was done")
        return answer

    # -- reads --------------------------------------------------------------------------------

    def _observe(self) -> Generator[None, None, Seen]:
        world = self.world
        if world.fails():
            raise ApiError(410, "the list is too old")
        state = world.read()
        resource, identity, nodes = state.resource, state.identity, state.nodes
        if resource is None:
            raise ApiError(404, "no resource")
        self._resource_uid = resource.uid
        yield
        state = world.read()
        brokers, claims, budget = state.brokers, state.claims, state.budget
        yield
        pods = world.read().pods
        yield
        metadata_ms = world.now
        metadata = metadata_of(world)
        if metadata is not None and world.is_deaf():
            metadata = None
        reports = reports_of(world)
        observation = Observation(
            now_ms=world.now,
            resource_version=resource.resource_version,
            fresh_cluster_id=f"cluster-{self.rng.randrange(10**9)}",
            desired=resource.desired,
            recorded=Recorded(resource.disruption, resource.shape, resource.risks, resource.size),
            identity=identity,
            brokers=brokers,
            pods=tuple(pods.values()),
            claims=tuple(claims.values()),
            budget=budget,
            nodes=tuple(nodes.values()),
            reports=reports,
            metadata=metadata,
            verification=self._verification(resource.disruption),
        )
        return Seen(observation, metadata_ms)

    def _verification(self, disruption: Disruption | None) -> Verification | None:
        if disruption is None or disruption.token not in self.world.brokers.tokens:
            return None
        try:
            missing = self.world.brokers.missing(disruption.token)
        except ApiError:
            return None
        if missing is None:
            return Verification(disruption.token, is_complete=False, is_other_directory=True)
        return Verification(disruption.token, not missing, blockers=missing)
