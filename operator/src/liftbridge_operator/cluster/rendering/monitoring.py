"""Objects for the Prometheus operator: scrape configuration and alerts."""

from dataclasses import dataclass
from typing import Final

from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    metadata,
    pod_labels,
)
from liftbridge_operator.model import names

GROUP_VERSION: Final = "monitoring.coreos.com/v1"


@dataclass(frozen=True, slots=True)
class BrokerAlert:
    """An alert about the brokers of one cluster.

    Attributes:
        expression: PromQL, with `{own}` for the labels of the cluster.
        duration: Time for which the expression must hold.
        summary: The problem.
        runbook: Remedy for the administrator.
    """

    name: str
    expression: str
    duration: str
    severity: str
    summary: str
    runbook: str


BROKER_ALERTS: Final = (
    BrokerAlert(
        "LiftbridgeMetadataWithoutLeader",
        "max(liftbridge_raft_leader_known{own}) == 0",
        "1m",
        "critical",
        "No broker knows a leader of the metadata group: nothing fails over.",
        "Bring back brokers until a majority of the voters runs; it elects a leader on its own.",
    ),
    BrokerAlert(
        "LiftbridgePartitionsLeaderless",
        "max(liftbridge_partitions_leaderless{own}) > 0",
        "1m",
        "critical",
        "Partitions have no leader: nothing can be published there.",
        "Bring back a broker that has an in-sync replica; see `status.partitions.worst`.",
    ),
    BrokerAlert(
        "LiftbridgePartitionsBelowMinISR",
        "max(liftbridge_partitions_under_min_isr{own}) > 0",
        "5m",
        "critical",
        "Partitions have fewer in-sync replicas than a commit needs: nothing is committed there.",
        "Bring back the brokers that `status.partitions.worst` says are missing.",
    ),
    BrokerAlert(
        "LiftbridgePartitionsUnderReplicated",
        "max(liftbridge_partitions_under_replicated{own}) > 0",
        "30m",
        "warning",
        "Replicas have not caught up for half an hour.",
        "Check which brokers are missing, and whether their disks and networks keep up.",
    ),
    BrokerAlert(
        "LiftbridgeBrokerFenced",
        "liftbridge_broker_fenced{own} == 1",
        "5m",
        "warning",
        "A broker cannot lead because the metadata leader does not hear from it.",
        "Check the log of the broker, and whether its NATS server answers.",
    ),
)


def monitors(cluster: Cluster, inputs: Inputs) -> list[Object]:
    """Render the requested objects."""
    asked = cluster.spec.monitoring
    bodies = []
    if asked.service_monitor.enabled:
        bodies.append(_service_monitor(cluster, inputs))
    if asked.prometheus_rule.enabled:
        bodies.append(_prometheus_rule(cluster, inputs))
    return bodies


def _service_monitor(cluster: Cluster, inputs: Inputs) -> Object:
    asked = cluster.spec.monitoring.service_monitor
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "ServiceMonitor",
        "metadata": metadata(
            cluster, inputs, names.brokers(cluster.name), extra_labels=dict(asked.labels)
        ),
        "spec": {
            "selector": {"matchLabels": pod_labels(cluster) | {names.SERVICE_ROLE: "brokers"}},
            "endpoints": [{"port": "metrics", "path": "/metrics", "interval": asked.interval}],
            "targetLabels": [names.CLUSTER],
        },
    }


def _prometheus_rule(cluster: Cluster, inputs: Inputs) -> Object:
    asked = cluster.spec.monitoring.prometheus_rule
    own = f'{{namespace="{cluster.namespace}", service="{names.headless(cluster.name)}"}}'
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression.replace("{own}", own),
            "for": alert.duration,
            "labels": {"severity": alert.severity, "liftbridge_cluster": cluster.name},
            "annotations": {"summary": alert.summary, "runbook": alert.runbook},
        }
        for alert in BROKER_ALERTS
    ]
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "PrometheusRule",
        "metadata": metadata(
            cluster, inputs, names.brokers(cluster.name), extra_labels=dict(asked.labels)
        ),
        "spec": {"groups": [{"name": f"liftbridge-{cluster.name}", "rules": rules}]},
    }
