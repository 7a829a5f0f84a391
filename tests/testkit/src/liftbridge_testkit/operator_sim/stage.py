"""Stage of a schedule: the models, their clock, the trace, and coverage so far."""

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Final

from liftbridge_operator.cluster.planning.decision import Decision, Plan
from liftbridge_operator.cluster.planning.observation import Node, Observation, Wanted
from liftbridge_testkit.operator_sim.api import Api, Resource, Snapshot
from liftbridge_testkit.operator_sim.brokers import Brokers
from liftbridge_testkit.operator_sim.kube import Kube

NODES: Final = 6


@dataclass(slots=True)
class Seen:
    """An observation, when its metadata was read, and readings of the gate of the pod meant."""

    observation: Observation
    metadata_ms: int
    readings: tuple[int, ...] = ()


class Stage:
    """Everything of one schedule but its actors.

    Attributes:
        counts: Counts of events, by group and name.
        unproven: Brokers restarted by the operator and not proven to be back.
        is_wild: Whether calls may go wrong and reads may lag.
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

    # -- what operators ask -------------------------------------------------------------------

    def fails(self) -> bool:
        """Return whether this call goes wrong."""
        return self.is_wild and self.rng.random() < self.fail_rate

    def is_deaf(self) -> bool:
        """Return whether no broker answers this time."""
        return self.fails()

    def hides(self, broker: str) -> bool:
        """Return whether a broker does not answer for itself."""
        return broker in self.hidden

    def read(self) -> Snapshot | Api:
        """Return the result of a list: the present state, or during faults a former one."""
        if self.is_wild and self.stale_rate and self.rng.random() < self.stale_rate:
            self.count("fault", "stale read")
            return self.api.former(self.rng.randrange(3))
        return self.api

    def published(self, operator: str, decision: Decision) -> None:
        """A pass has decided."""
        for wait in decision.status.waits:
            self.count("wait", wait.what)
        if self._out is not None:
            self._out.append(f"{operator} {[one.what for one in decision.status.waits]}")

    def publish_plan(self, plan: Plan) -> None:
        """The status gets the plan."""
        self.published_plans.add(plan.hash)
        if self.api.resource is not None:
            self.api.put_resource(risks=plan.risks, plan_hash=plan.hash)

    def is_approved(self, wanted: Wanted) -> bool:
        """Return whether a person approved what is done."""
        return wanted.approved_hash in self.approved

    def written(self, revision: str) -> None:
        """A template was written."""
        self.trace(f"template {revision}")

    def count(self, group: str, name: str) -> None:
        """Count something that was met."""
        self.counts[group, name] += 1

    def reached(self, name: str) -> None:
        """Count a point that is worth reaching."""
        self.counts["reached", name] += 1

    def trace(self, line: str) -> None:
        """Note what happens; the same seed notes the same."""
        text = f"{self.now} {line}"
        self._hash.update(text.encode())
        if self._out is not None:
            self._out.append(text)

    @property
    def trace_hash(self) -> str:
        """Hash of everything noted."""
        return self._hash.hexdigest()[:16]

    def tick(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms
        self.api.keep()
        self.kube.tick(self.now)
        self.brokers.tick(self.now)
        self.brokers.check_acked()

    def put_wanted(self, **changes: object) -> None:
        """The user changes the specification."""
        resource = self.api.resource
        if resource is None:
            return
        wanted = replace(
            resource.wanted,
            generation=resource.wanted.generation + 1,
            **changes,  # type: ignore[arg-type]  # names are those of `Wanted`
        )
        self.trace(f"wanted {changes}")
        self.api.put_resource(wanted=wanted)

    def create_resource(self, wanted: Wanted) -> None:
        """The user creates the resource."""
        uid = self.api.next_uid("cr")
        self.api.resource = Resource(uid, self.api.next_version(), wanted)
