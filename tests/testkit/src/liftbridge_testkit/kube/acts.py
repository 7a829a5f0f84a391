"""Actions of a story: on the resource, on pods, on nodes, on the control plane."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.kstatus import is_waited_for
from liftbridge_testkit.kube.nodes import Machines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftbridge_testkit.kube.cluster import Kubernetes

CLUSTER: Final = "c"
READY_SECONDS_MAX: Final = 600
WAIT_SECONDS: Final = 120
"""Limit of one call of `kubectl wait`; longer waits take several calls."""

POLL_SECONDS: Final = 0.5
BROKER: Final = "liftbridge-broker"
NATS: Final = "nats-server"


class Acts:
    """Actions within one namespace, on the cluster `c`.

    Attributes:
        kubernetes: Cluster on which it runs.
        namespace: Namespace of the story.
        api_server_starts: Periods in which an API server was not ready.
    """

    def __init__(
        self, kubernetes: Kubernetes, namespace: str, rest: Callable[[float], object]
    ) -> None:
        """Configure the actions; `rest` waits a number of seconds."""
        self.kubernetes = kubernetes
        self.namespace = namespace
        self.rest = rest
        self.api_server_starts: list[tuple[datetime, datetime]] = []

    @property
    def machines(self) -> Machines:
        """Nodes and control plane of the project's own cluster."""
        return Machines(self.kubernetes)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl in the namespace; see `Kubernetes.kubectl`."""
        return self.kubernetes.kubectl("--namespace", self.namespace, *arguments, text=text)

    def get(self, kind: str, name: str = "") -> Any:
        """Return an object, or the objects of a kind in a list."""
        found = json.loads(self.kubectl("get", kind, *filter(None, [name]), "--output=json"))
        return found if name else found["items"]

    # The resource.

    @property
    def cluster(self) -> Any:
        """Return the LiftbridgeCluster; its status is empty until the first report."""
        found = self.get("lbc", CLUSTER)
        found.setdefault("status", {})
        return found

    def change(self, **spec: Any) -> int:
        """Merge changes into the spec; return the new generation."""
        patch = json.dumps({"spec": spec})
        path = ("patch", "lbc", CLUSTER, "--type=merge", "--patch", patch, "--output=json")
        generation: int = json.loads(self.kubectl(*path))["metadata"]["generation"]
        return generation

    def annotate(self, name: str, value: str) -> None:
        """Set an annotation of the resource."""
        self.kubectl("annotate", "lbc", CLUSTER, f"{name}={value}", "--overwrite")

    def await_ready(self, seconds_max: float = READY_SECONDS_MAX) -> Any:
        """Wait by `kubectl wait` until the cluster is ready; return the cluster.

        Raises:
            AssertionError: It was not ready in time; the text has its status. Or `kubectl wait`
                returned for the status of an older generation.
        """
        asked = self.cluster["metadata"]["generation"]
        self._await("lbc", CLUSTER, "Ready", seconds_max)
        body = self.cluster
        observed = body["status"]["observedGeneration"]
        assert observed >= asked, f"kubectl wait returned at {observed}, {asked} was asked for"
        return body

    def await_streams(self, *names: str, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Wait until Stream resources are ready."""
        for name in names:
            self._await("lbs", name, "Ready", seconds_max)

    def await_condition(
        self, condition: str, reason: str, seconds_max: float = READY_SECONDS_MAX
    ) -> Any:
        """Wait until a condition of the cluster is True with a reason; return the condition."""

        def is_told() -> Any:
            for one in self.cluster["status"].get("conditions", ()):
                if (one["type"], one["status"], one["reason"]) == (condition, "True", reason):
                    return one
            return None

        return self.until(is_told, f"{condition} for {reason}", seconds_max)

    def until(
        self, condition: Callable[[], Any], what: str, seconds_max: float = READY_SECONDS_MAX
    ) -> Any:
        """Wait until a condition holds, and return its value; a missing object counts as false.

        Raises:
            AssertionError: It did not hold in time; the text has the status of the cluster.
        """
        deadline = monotonic() + seconds_max
        while True:
            try:
                found = condition()
            except (CommandError, LookupError):
                found = None
            if found:
                return found
            assert monotonic() < deadline, f"not {what} in {seconds_max:.0f} s: {self.told()}"
            self.rest(POLL_SECONDS)

    def told(self) -> str:
        """Return the status of the cluster in one line."""
        try:
            status = self.cluster.get("status", {})
        except CommandError as error:
            return str(error)
        lines = [
            f"{one['type']}={one['status']} {one['reason']}: {one['message']}"
            for one in status.get("conditions", ())
        ]
        return "; ".join([*lines, f"waits: {status.get('waits')}"])

    def _await(self, kind: str, name: str, condition: str, seconds_max: float) -> None:
        """Wait by `kubectl wait`; repeat it after its timeout, or if the API server is away."""
        target = (f"--for=condition={condition}", f"{kind}/{name}")

        def is_told() -> bool:
            self.kubectl("wait", *target, f"--timeout={WAIT_SECONDS}s")
            return True

        self.until(is_told, f"{kind}/{name} {condition}", seconds_max)

    def is_ready(self) -> bool:
        """Return whether the cluster is ready for its current generation."""
        return is_waited_for(self.cluster)

    # Pods.

    def pod(self, number: int) -> Any:
        """Return the pod of a broker."""
        return self.get("pod", f"{CLUSTER}-{number}")

    def node_of(self, number: int) -> str:
        """Return the node of a broker's pod."""
        node: str = self.pod(number)["spec"]["nodeName"]
        return node

    def delete_pod(self, number: int) -> None:
        """Delete the pod of a broker, as any user may."""
        self.kubectl("delete", "pod", f"{CLUSTER}-{number}", "--wait=false")

    def signal(self, number: int, kind: signal.Signals, program: str = BROKER) -> None:
        """Send a signal to the processes of a program in the pod of a broker."""
        pod = self.pod(number)
        self.machines.signal_pod(pod["spec"]["nodeName"], pod["metadata"]["uid"], program, kind)

    def kill_pod(self, number: int, program: str = BROKER) -> None:
        """Send `kill -9` to a program in the pod of a broker."""
        self.signal(number, signal.SIGKILL, program)

    # Nodes and control plane.

    @contextmanager
    def crashed(self, node: str) -> Iterator[None]:
        """Keep a node without power while the context is open."""
        self.machines.node("crash", node)
        try:
            yield
        finally:
            self.machines.node("start", node)

    @contextmanager
    def cut_off(self, node: str) -> Iterator[None]:
        """Keep a node without a network while the context is open."""
        self.machines.node("cut", node)
        try:
            yield
        finally:
            self.machines.node("heal", node)

    @contextmanager
    def drained(self, node: str, seconds_max: int = 240) -> Iterator[None]:
        """Drain a node; uncordon it at the end of the context."""
        command = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
        try:
            self.kubernetes.kubectl(*command, f"--timeout={seconds_max}s")
            yield
        finally:
            self.kubernetes.kubectl("uncordon", node)

    def await_nodes(self, seconds_max: float = 120) -> None:
        """Wait until all nodes are ready."""
        wait = ("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={seconds_max:.0f}s")
        self.kubernetes.kubectl(*wait)

    def restart_api_server(self) -> None:
        """Kill the API server, and wait until it answers again."""
        began = datetime.now(UTC)
        self.machines.kill_daemon("kube-apiserver")
        self.until(
            lambda: self.kubernetes.kubectl("get", "--raw", "/readyz") == "ok",
            "an API server",
            60,
        )
        self.api_server_starts.append((began, datetime.now(UTC)))
