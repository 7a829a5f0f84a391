"""Stage of a schedule: the models, their clock, the trace, and coverage so far."""

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Final

from liftbridge_operator.cluster.planning.decision import Decision, Plan
from liftbridge_operator.cluster.planning.observation import DesiredState, Node, Observation
from liftbridge_testkit.operator_sim.api import Api, Resource, Snapshot
from liftbridge_testkit.operator_sim.brokers import Brokers
from liftbridge_testkit.operator_sim.kube import Kube

NODES: Final = 6


@dataclass(slots=True)
class Seen:
    """An observation, the time of its metadata, and readings of the gate of its pod."""

    observation: Observation
    metadata_ms: int
    readings: tuple[int, ...] = ()


class Stage:
    """State of a schedule without its actors.

    Attributes:
        counts: Counts of events, by group and name.
        unproven: Brokers that the operator restarted and that are not verified yet.
        is_wild: Whether calls may fail and reads may lag.
    """

    def __init__(self, seed: int, out: list[str] | None = None) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.now = 1_000_000
        self.api = Api()
        self.brokers = Brokers(Random(seed + 1))
        self.kube = Kube(self.api, self.brokers, Random(seed + 2))
        self.counts: Counter[tuple[str, str]] = Counter()
        self.unproven: set[str] = set()
        self.without_nats: set[str] = set()
        self.full: set[str] = set()
        self.hidden: set[str] = set()
        self.is_wild = True
        self.fail_rate = self.rng.choice((0.0, 0.02, 0.08))
        self.stale_rate = self.rng.choice((0.0, 0.0, 0.1, 0.3))
        self.approved: set[str] = set()
        self.published_plans: set[str] = set()
        self.bad_seen: set[str] = set()
        self._hash = sha256()
        self._out = out
        self.revisions = 1
        for one in range(NODES):
            self.api.nodes[f"node-{one}"] = Node(f"node-{one}")

    # -- queries of operators -------------------------------------------------------------------

    def fails(self) -> bool:
        """Return whether this call fails."""
        return self.is_wild and self.rng.random() < self.fail_rate

    def is_deaf(self) -> bool:
        """Return whether no broker answers this time."""
        return self.fails()

    def hides(self, broker: str) -> bool:
        """Return whether a broker does not answer for itself."""
        return broker in self.hidden

    def read(self) -> Snapshot | Api:
        """Return the result of a list: the current state, or during faults a former state."""
        if self.is_wild and self.stale_rate and self.rng.random() < self.stale_rate:
            self.count("fault", "stale read")
            return self.api.former(self.rng.randrange(3))
        return self.api

    def published(self, operator: str, decision: Decision) -> None:
        """Record the decision of a pass."""
        for wait in decision.status.waits:
            self.count("wait", wait.what)
        if self._out is not None:
            self._out.append(f"{operator} {[one.what for one in decision.status.waits]}")

    def publish_plan(self, plan: Plan) -> None:
        """Write the plan to the status."""
        self.published_plans.add(plan.hash)
        if self.api.resource is not None:
            self.api.put_resource(risks=plan.risks, plan_hash=plan.hash)

    def is_approved(self, desired: DesiredState) -> bool:
        """Return whether a user approved the action."""
        return desired.approved_hash in self.approved

    def written(self, revision: str) -> None:
        """Record the write of a template."""
        self.trace(f"template {revision}")

    def count(self, group: str, name: str) -> None:
        """Count an event."""
        self.counts[group, name] += 1

    def reached(self, name: str) -> None:
        """Count a point that is worth reaching."""
        self.counts["reached", name] += 1

    def trace(self, line: str) -> None:
        """Record an event; the same seed records the same events."""
        text = f"{self.now} {line}"
        self._hash.update(text.encode())
        if self._out is not None:
            self._out.append(text)

    @property
    def trace_hash(self) -> str:
        """Hash of all recorded events."""
        return self._hash.hexdigest()[:16]

    def tick(self, ms: int) -> None:
        """Advance the time."""
        self.now += ms
        self.api.keep()
        self.kube.tick(self.now)
        self.brokers.tick(self.now)
        self.brokers.check_acked()

    def put_desired(self, **changes: object) -> None:
        """Change the specification as the user."""
        resource = self.api.resource
        if resource is None:
            return
        desired = replace(
            resource.desired,
            generation=resource.desired.generation + 1,
            **changes,  # type: ignore[arg-type]  # names are those of `DesiredState`
        )
        self.trace(f"wanted {changes}")
        self.api.put_resource(desired=desired)

    def create_resource(self, desired: DesiredState) -> None:
        """Create the resource as the user."""
        uid = self.api.next_uid("cr")
        self.api.resource = Resource(uid, self.api.next_version(), desired)
