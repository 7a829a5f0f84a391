"""Reasons why a broker takes no requests, for `/readyz` from the process start on."""

from liftbridge_broker.node.assembly.core import Core


def awaited(core: Core, *, is_connected: bool) -> str:
    """Return the step that the start of a broker waits for.

    Args:
        core: The broker, whose store is open.
        is_connected: Whether the links to NATS are up.
    """
    if not is_connected:
        return "nats: disconnected"
    if not core.is_open:
        return "cluster: waiting for a cluster"
    if core.registration is None:
        return "cluster: waiting for the metadata leader"
    return "cluster: catching up"


def hindrances(core: Core, *, is_nats_connected: bool, is_transport_connected: bool) -> list[str]:
    """Return the reasons why a started broker cannot serve; empty if it can.

    A missing metadata leader is no reason: without a quorum no broker has one, and in-sync replicas
    continue to acknowledge.
    """
    reasons: list[str] = []
    if not is_nats_connected:
        reasons.append("nats: disconnected")
    if not is_transport_connected:
        reasons.append("nats: disconnected from other brokers")
    cluster = core.node.cluster
    if cluster is not None and cluster.session.is_fenced:
        reasons.append("cluster: fenced")
    if core.store.failure:
        reasons.append(f"storage: {core.store.failure}")
    return reasons
