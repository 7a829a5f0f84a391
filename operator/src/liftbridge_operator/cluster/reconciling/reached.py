"""External addresses of brokers: read them, report them in the status, wait for them.

Services are created before pods, so that a broker knows its node port when it starts. Running
brokers receive addresses that are assigned later, such as that of a load balancer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from liftbridge_operator.cluster.observing.objects import metadata_of
from liftbridge_operator.cluster.observing.reads import Reads, broker_pods
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import Decision, Memory, Wait
from liftbridge_operator.cluster.planning.observation import SelfReport
from liftbridge_operator.cluster.planning.refusals import KEEPING
from liftbridge_operator.cluster.planning.status import with_wait
from liftbridge_operator.cluster.rendering import addresses
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Reached
from liftbridge_operator.kube.kinds import SERVICES
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.cluster_status import ListenerStatus
from liftbridge_operator.model.network import ListenerType


class Subject(Protocol):
    """A cluster as it is rendered in a pass."""

    @property
    def cluster(self) -> Cluster:
        """The resource."""
        ...

    @property
    def inputs(self) -> Inputs:
        """The other inputs of rendering."""
        ...


CERTIFICATE: Final = "tls.cert"
"""Setting of brokers that names the certificate for clients."""


def reached_of(services: Sequence[Object]) -> dict[str, Reached]:
    """Map Service names to the assigned node port and host; skip Services without either."""
    found = {}
    for service in services:
        ports = (service.get("spec") or {}).get("ports") or ()
        balancer = (service.get("status") or {}).get("loadBalancer") or {}
        node_port = next((int(port["nodePort"]) for port in ports if port.get("nodePort")), 0)
        given = (
            str(entry.get("hostname") or entry.get("ip") or "")
            for entry in balancer.get("ingress") or ()
        )
        host = next((text for text in given if text), "")
        if node_port or host:
            found[str(metadata_of(service)["name"])] = Reached(node_port, host)
    return found


def hosts_of(reads: Reads, spec: ClusterSpec) -> dict[int, str]:
    """Return the node addresses of brokers, by ordinal.

    A broker without a pod keeps the address last reported in the status: it is down only
    briefly, and neither status nor certificate should change back and forth.
    """
    found = _last_hosts(reads, spec)
    stem = len(reads.name) + 1
    for pod in broker_pods(reads.pods, reads.name):
        host = (pod.get("status") or {}).get("hostIP")
        if host:
            found[int(str(metadata_of(pod)["name"])[stem:])] = str(host)
    return found


def node_addresses(reads: Reads) -> tuple[str, ...]:
    """List the internal IPs of nodes; empty when nodes may not be read."""
    return tuple(
        str(address["address"])
        for node in reads.nodes or ()
        for address in (node.get("status") or {}).get("addresses") or ()
        if address.get("type") == "InternalIP" and address.get("address")
    )


def _last_hosts(reads: Reads, spec: ClusterSpec) -> dict[int, str]:
    """Read hosts from the status of a `NodePort` listener that advertises no other host."""
    plain = {
        listener.name
        for listener in spec.listeners
        if listener.type is ListenerType.NODE_PORT
        and not any(given.advertised_host for given in listener.brokers)
    }
    shown: Sequence[Mapping[str, Any]] = (reads.resource.get("status") or {}).get("listeners") or ()
    texts = next((one.get("brokers") or () for one in shown if one.get("name") in plain), ())
    hosts = (str(text).rpartition(":")[0].strip("[]") for text in texts)
    return {ordinal: host for ordinal, host in enumerate(hosts) if host}


def listeners_of(
    cluster: Cluster, inputs: Inputs, reports: Sequence[SelfReport]
) -> tuple[ListenerStatus, ...]:
    """Return listeners for the status; addresses of brokers are indexed by ordinal.

    The certificate is set once all brokers that answer have loaded the same one.
    """
    shown = {dict(report.certificates).get(CERTIFICATE) for report in reports}
    certificate = shown.pop() if len(shown) == 1 else None
    return tuple(
        ListenerStatus(
            name=listener.name,
            certificate=certificate if listener.tls else None,
            address=addresses.entrance_address(cluster, inputs, listener),
            brokers=()
            if listener.type is ListenerType.INTERNAL
            else _in_order(
                {
                    ordinal: addresses.written(host, port)
                    for ordinal, host, port in addresses.known(cluster, inputs, listener)
                }
            ),
        )
        for listener in cluster.spec.listeners
    )


def _in_order(texts: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(texts.get(ordinal, "") for ordinal in range(max(texts, default=-1) + 1))


def until_reached(
    decision: Decision, subject: Subject | None, former: Memory, now_ms: int
) -> Decision:
    """Postpone the start of pods while their node ports are unknown.

    The start waits neither for load balancers nor for refused ports: they may never be assigned,
    and brokers can serve other clients without them.

    Args:
        decision: The planner's decision.
        subject: The cluster; None when its specification cannot be read.
        former: Memory of the pass before, with the start of each wait.
        now_ms: Time of day.
    """
    if subject is None:
        return decision
    cluster, inputs = subject.cluster, subject.inputs
    starts = isinstance(decision.action, act.CreateSet | act.SetReplicas)
    refused = {refusal.object for refusal in former.refused if refusal.action == KEEPING}
    due = addresses.unreached(cluster, inputs, ListenerType.NODE_PORT)
    if starts and any(f"{SERVICES.kind}/{name}" not in refused for name in due):
        decision = replace(decision, action=None)
    pending = addresses.unreached(cluster, inputs, ListenerType.LOAD_BALANCER)
    if not pending:
        return decision
    wait = Wait("LoadBalancerPending", f"Service {pending[0]}", "it has an address")
    return with_wait(decision, wait, former, now_ms)
