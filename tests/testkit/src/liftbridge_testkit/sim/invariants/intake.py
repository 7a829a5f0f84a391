"""Check independently that a broker may accept records (I24; L2), each time it receives some."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.metadata.broker_sessions import SESSION_NS
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.runs import POLICY_ALL, PublishRun
from liftbridge_broker.node.publishing.remote_partition import RemotePartition
from liftbridge_testkit.sim.broken import BrokenInvariantError


def publish(
    node: Node, partition: Partition | RemotePartition, run: PublishRun, now: Instant, wall_ns: int
) -> None:
    """Publish a run at a broker.

    Raises:
        BrokenInvariantError: It accepted the run although it must not.
    """
    if isinstance(partition, RemotePartition):
        node.publish(partition, run, now, wall_ns)
        return
    why = _why_not(node, partition, run.policy, now)
    before = partition.log.log_end_offset
    node.publish(partition, run, now, wall_ns)
    if why and partition.log.log_end_offset > before:
        raise BrokenInvariantError(
            "I24", f"{partition.stream}/{partition.number} took records, but {why}"
        )


def _why_not(node: Node, partition: Partition, policy: int, now: Instant) -> str:
    """Return the reason not to accept records; empty for none."""
    if partition.role is not Role.LEADER:
        return f"it is {partition.role.name}"
    if partition.offline_reason:
        return f"it is offline: {partition.offline_reason}"
    if node.cluster is None or partition.replication is None or policy == POLICY_ALL:
        return ""
    answered = node.cluster.session.answered_at
    if answered is None or now - answered >= SESSION_NS:
        return f"its broker was not heard since {answered}, now is {now}"
    return ""
