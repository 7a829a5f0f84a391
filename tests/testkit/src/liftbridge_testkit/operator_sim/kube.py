"""Model of the StatefulSet controller (Parallel, OnDelete), the kubelets and the volumes.

A volume lives on one node. A pod of a lost node stays unchanged until the node is back or the pod
is deleted by force. A container that fails is started again in the same pod, with the same uid.
"""

from dataclasses import dataclass, replace
from random import Random

from liftbridge_operator.cluster.planning.observation import Claim, Node, Pod, StuckCause
from liftbridge_testkit.operator_sim.api import Api
from liftbridge_testkit.operator_sim.brokers import Brokers

LOST_AFTER_MS = 4_000
"""Time after which the API server notes a silent node; shorter than in reality."""


def level_of(revision: str) -> int:
    """Return the latest feature level of a template's brokers: a newer one since the second."""
    return 1 if revision == "r1" else 2


@dataclass(slots=True)
class Container:
    """State of a pod's main container, known to a kubelet."""

    starts_ms: int
    stops_ms: int = 0


class Kube:
    """Controllers and kubelets: all actors other than the operator.

    Attributes:
        bad_revisions: Templates with which no container runs, with the reason.
        down: Silent nodes, with the time since when.
        size_max: Largest volume that the driver can make.
        binds: Whether the storage classes of claims exist.
        is_ordered: Whether the set creates each pod only after the earlier pods are ready.
        against: Reason to refuse new pods; empty for none.
    """

    def __init__(self, api: Api, brokers: Brokers, rng: Random) -> None:
        self.api = api
        self.brokers = brokers
        self.rng = rng
        self.now = 0
        self.bad_revisions: dict[str, StuckCause] = {}
        self.down: dict[str, int] = {}
        self.volume_nodes: dict[str, str] = {}
        self.containers: dict[str, Container] = {}
        self.size_max = 1 << 60
        self.binds = True
        self.is_ordered = False
        self.against = ""

    def tick(self, now: int) -> None:
        """Run one round of all controllers."""
        self.now = now
        if self.rng.random() < 0.8:
            self._control_set()
        self._volumes()
        for pod in list(self.api.pods.values()):
            self._kubelet(pod)
        for name in self.down:
            node = self.api.nodes.get(name)
            if node is not None and node.is_ready and now - self.down[name] >= LOST_AFTER_MS:
                self.api.nodes[name] = replace(node, is_ready=False)

    def _control_set(self) -> None:
        brokers = self.api.brokers
        if brokers is None or self.api.identity is None:
            return
        if brokers.is_terminating:
            self._collect_set()
            return
        name_of = self._cluster_name()
        for ordinal in range(brokers.replicas):
            name = f"{name_of}-{ordinal}"
            claim = self.api.claims.get(name)
            pod = self.api.pods.get(name)
            if self.is_ordered and pod is not None and not pod.is_ready:
                break
            if pod is not None or (claim is not None and claim.is_terminating):
                continue
            if claim is None:
                self._make_claim(name, ordinal, brokers.claim_bytes)
            if self.against:
                continue
            self.api.put_pod(
                Pod(
                    name=name,
                    ordinal=ordinal,
                    uid=self.api.next_uid("pod"),
                    resource_version=0,
                    revision=brokers.revision,
                    node="",
                    zone="",
                    created_ms=self.now,
                    changed_ms=self.now,
                    is_ready=False,
                    is_running=False,
                    is_terminating=False,
                )
            )
        for pod in list(self.api.pods.values()):
            if pod.ordinal >= brokers.replicas and not pod.is_terminating:
                self.api.put_pod(pod, is_terminating=True)

    def _collect_set(self) -> None:
        """Release the pods of a set that was deleted without them, as the garbage collector."""
        self.api.brokers = None
        self.api.next_version()

    def _cluster_name(self) -> str:
        return "c" if self.api.resource is None else self.api.resource.desired.name

    def _make_claim(self, name: str, ordinal: int, size: int) -> None:
        assert self.api.identity is not None
        uid = self.api.next_uid("claim")
        self.brokers.new_disk(uid)
        is_bound = self.binds and size <= self.size_max
        cluster_id, has = self.api.identity.cluster_id, size if is_bound else 0
        self.api.put_claim(Claim(name, ordinal, uid, 0, cluster_id, size, has, is_bound=is_bound))

    def _volumes(self) -> None:
        for claim in list(self.api.claims.values()):
            if claim.is_terminating and claim.name not in self.api.pods:
                del self.api.claims[claim.name]
                self.brokers.disks.pop(claim.uid, None)
            elif claim.is_bound and claim.requested_bytes > self.size_max:
                if not claim.infeasible:
                    self.api.put_claim(claim, infeasible="no such size")
            elif claim.capacity_bytes < claim.requested_bytes and self._is_resized(claim):
                size = claim.requested_bytes
                self.api.put_claim(claim, capacity_bytes=size, infeasible="")

    def _is_resized(self, claim: Claim) -> bool:
        """Return whether a volume grows now."""
        return claim.is_bound and self.rng.random() < 0.3

    # -- kubelets -----------------------------------------------------------------------------

    def _kubelet(self, pod: Pod) -> None:
        if not pod.node:
            self._schedule(pod)
        elif pod.node in self.down or pod.node not in self.api.nodes:
            self._on_lost_node(pod)
        elif pod.is_terminating:
            self._terminate(pod)
        else:
            self._run(pod)

    def _schedule(self, pod: Pod) -> None:
        if pod.is_terminating:
            self._remove(pod)
            return
        claim = self.api.claims.get(pod.name)
        if claim is None:
            return
        if not claim.is_bound:
            self._stick(pod, StuckCause.UNSCHEDULABLE)
            return
        pinned = self.volume_nodes.get(claim.uid, "")
        fit = [
            node.name
            for node in self.api.nodes.values()
            if node.is_ready
            and not node.is_unschedulable
            and node.name not in self.down
            and pinned in ("", node.name)
        ]
        if not fit:
            home = self.api.nodes.get(pinned)
            is_lost = pinned != "" and (home is None or not home.is_ready)
            self._stick(pod, StuckCause.NODE_LOST if is_lost else StuckCause.UNSCHEDULABLE)
            return
        used = [one.node for one in self.api.pods.values()]
        node = min(fit, key=lambda name: (used.count(name), name))
        self.volume_nodes[claim.uid] = node
        zone = f"zone-{int(node.rpartition('-')[2]) % 3}"
        self.api.put_pod(pod, node=node, zone=zone, stuck=None)
        self.containers[pod.uid] = Container(self.now + self.rng.randrange(500, 4_000))

    def _stick(self, pod: Pod, cause: StuckCause) -> None:
        if pod.stuck is not cause:
            self.api.put_pod(pod, stuck=cause, stuck_since_ms=self.now)

    def _on_lost_node(self, pod: Pod) -> None:
        if pod.node not in self.api.nodes and self.rng.random() < 0.05:
            self._remove(pod)  # the collector of pods whose node was deleted
            return
        process = self.brokers.processes.get(pod.name)
        if process is not None and process.start_id == pod.uid:
            self.brokers.kill(pod.name)
        node = self.api.nodes.get(pod.node)
        if node is None or not node.is_ready:
            if pod.is_ready:
                self.api.put_pod(pod, is_ready=False, changed_ms=self.now)
            elif pod.stuck is not StuckCause.NODE_LOST:
                self._stick(pod, StuckCause.NODE_LOST)

    def _terminate(self, pod: Pod) -> None:
        container = self.containers.get(pod.uid)
        process = self.brokers.processes.get(pod.name)
        if container is None or process is None or process.start_id != pod.uid:
            self._remove(pod)
            return
        if not container.stops_ms:
            container.stops_ms = self.now + self.rng.randrange(200, 3_000)
            known = self.brokers.registered.get(pod.name)
            if known is not None and known.start_id == pod.uid:
                known.is_stopping = True
        elif self.now >= container.stops_ms:
            self.brokers.stop(pod.name)
            self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        self.api.remove_pod(pod.name)
        self.containers.pop(pod.uid, None)

    def force_delete(self, pod: Pod) -> None:
        """Remove a pod from the API; its process on the node continues."""
        self._remove(pod)

    def _run(self, pod: Pod) -> None:
        container = self.containers.get(pod.uid)
        claim = self.api.claims.get(pod.name)
        if container is None or claim is None or self.now < container.starts_ms:
            return
        bad = self.bad_revisions.get(pod.revision)
        if bad is not None:
            self._stick(pod, bad)
            return
        process = self.brokers.processes.get(pod.name)
        if process is None:
            if claim.uid not in self.brokers.disks:
                return
            self.brokers.start(pod.name, pod.uid, claim.uid, level_of(pod.revision))
        is_ready = self.brokers.is_up(pod.name)
        if not pod.is_running or pod.stuck is not None:
            pod = self.api.put_pod(pod, is_running=True, stuck=None)
        if is_ready != pod.is_ready:
            self.api.put_pod(pod, is_ready=is_ready, changed_ms=self.now)

    # -- faults -------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """Kill a container; the kubelet restarts it."""
        pod = self.api.pods.get(name)
        if pod is None or name not in self.brokers.processes:
            return
        self.brokers.kill(name)
        container = self.containers.get(pod.uid)
        if container is not None:
            container.starts_ms = self.now + self.rng.randrange(500, 5_000)

    def lose_node(self, name: str) -> None:
        """Let a machine fall silent, with everything on it."""
        self.down.setdefault(name, self.now)

    def return_node(self, name: str) -> None:
        """Bring a silent machine back; containers restart in the remaining pods."""
        if self.down.pop(name, None) is None or name not in self.api.nodes:
            return
        self.api.nodes[name] = replace(self.api.nodes[name], is_ready=True)
        for pod in list(self.api.pods.values()):
            if pod.node == name:
                self.brokers_gone(pod)
                container = self.containers.get(pod.uid)
                if container is not None:
                    container.starts_ms = self.now + self.rng.randrange(500, 4_000)

    def brokers_gone(self, pod: Pod) -> None:
        """Remove the containers of a pod on a machine that was off."""
        process = self.brokers.processes.get(pod.name)
        if process is not None and process.start_id == pod.uid:
            self.brokers.kill(pod.name)

    def destroy_node(self, name: str) -> None:
        """Destroy a machine permanently, with its volumes; another machine replaces it."""
        self.down.setdefault(name, self.now)
        for pod in self.api.pods.values():
            if pod.node == name:
                self.brokers_gone(pod)
        self.api.nodes.pop(name, None)
        self.down.pop(name, None)
        for claim in self.api.claims.values():
            if self.volume_nodes.get(claim.uid) == name:
                self.brokers.disks.pop(claim.uid, None)
        fresh = f"node-{len(self.volume_nodes) + 100 + self.now % 1000}"
        self.api.nodes[fresh] = Node(fresh)

    def evict(self, name: str) -> bool:
        """Evict a pod as a drain of its node does; return whether the budget allowed it."""
        pod, brokers = self.api.pods.get(name), self.api.brokers
        if pod is None or brokers is None or pod.is_terminating:
            return False
        if self.api.budget is not None:
            healthy = sum(
                1 for one in self.api.pods.values() if one.is_ready and not one.is_terminating
            )
            # As in the disruption controller: desired pods minus those that may be missing.
            if healthy - 1 < brokers.replicas - self.api.budget:
                return False
        self.api.put_pod(pod, is_terminating=True)
        return True
