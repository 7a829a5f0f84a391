"""Pod template of the brokers: restricted profile, independent of the number of brokers."""

from typing import Final

from liftbridge_operator.cluster.rendering import addresses, nats, placement, volumes
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object, labels
from liftbridge_operator.model import names

SLEEP_SECONDS: Final = 2
"""Delay between the removal of a pod from Service endpoints and SIGTERM to its broker: proxies on
other nodes notice the removal later, and the broker still serves until then."""


def pod_template(cluster: Cluster, inputs: Inputs, config_name: str) -> Object:
    """Render the template without its revision."""
    template = cluster.spec.pod_template
    made: Object = {
        "metadata": {
            "labels": dict(template.metadata.labels) | labels(cluster, inputs),
            "annotations": dict(template.metadata.annotations) | _annotations(cluster),
        },
        "spec": _spec(cluster, inputs, config_name),
    }
    return made


def _annotations(cluster: Cluster) -> dict[str, str]:
    made = {"kubectl.kubernetes.io/default-container": names.BROKER_CONTAINER}
    return made | {names.RESTART: cluster.restart} if cluster.restart else made


def _spec(cluster: Cluster, inputs: Inputs, config_name: str) -> Object:
    template = cluster.spec.pod_template
    made: Object = {
        "serviceAccountName": names.brokers(cluster.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": template.security.run_as_user,
            "runAsGroup": template.security.run_as_group,
            "fsGroup": template.security.fs_group,
            # Otherwise each start would visit every file of a volume.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_broker(cluster, inputs, config_name)],
        "volumes": volumes.pod_volumes(cluster, config_name),
    }
    sidecar = nats.container(cluster, inputs, security_context())
    optional: Object = {
        "initContainers": [sidecar] if sidecar is not None else None,
        "affinity": placement.affinity(cluster),
        "topologySpreadConstraints": placement.spread_constraints(cluster),
        "tolerations": [toleration.manifest() for toleration in template.tolerations],
        "nodeSelector": dict(template.node_selector),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
    }
    return made | {key: value for key, value in optional.items() if value}


def security_context() -> Object:
    """Return the security context that the restricted profile requires of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _broker(cluster: Cluster, inputs: Inputs, config_name: str) -> Object:
    spec = cluster.spec
    ports = {
        names.listener_port(listener.name): listener.port for listener in spec.listeners
    } | names.PORTS
    return {
        "name": names.BROKER_CONTAINER,
        "image": inputs.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [f"--config={names.CONFIG_DIRECTORY}/{names.CONFIG_KEY}"],
        "env": _environment(cluster) + [variable.manifest() for variable in spec.pod_template.env],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        # Probes cover only this broker: a cluster without a quorum restarts no pod. The start has
        # no time limit: opening a large volume may take long, and /healthz answers from the start.
        "livenessProbe": _probe("/healthz", period=10, timeout=5, failures=6),
        "readinessProbe": _probe("/readyz", period=2, timeout=3, failures=2),
        "lifecycle": {"preStop": {"sleep": {"seconds": SLEEP_SECONDS}}},
        "resources": {
            "requests": spec.resources.requests.manifest(),
            "limits": spec.resources.limits.manifest(),
        },
        "securityContext": security_context(),
        "volumeMounts": [mount.mount for mount in volumes.mounted(cluster, config_name)],
    }


def _environment(cluster: Cluster) -> list[Object]:
    """Render environment variables for one broker, which override the configuration file."""
    host = names.host("$(POD_NAME)", cluster.name, cluster.namespace)
    made = [
        _field("POD_NAME", "metadata.name"),
        _field("LIFTBRIDGE_CLUSTERING_START_ID", "metadata.uid"),
        _field("LIFTBRIDGE_CLUSTERING_SERVER_ID", "metadata.name"),
        {"name": "LIFTBRIDGE_HOST", "value": host},
        # Copied from the node by the API server; empty where the node has none.
        _field(
            "LIFTBRIDGE_CLUSTERING_ZONE", f"metadata.labels['{cluster.spec.topology.zone_label}']"
        ),
    ]
    if addresses.further(cluster):
        path = f"{names.LISTENERS_DIRECTORY}/$(POD_NAME)"
        made.append({"name": "LIFTBRIDGE_LISTENERS_ADVERTISED_FILE", "value": path})
    if addresses.needs_node_address(cluster):
        made.append(_field("LIFTBRIDGE_LISTENERS_HOST", "status.hostIP"))
    auth = cluster.spec.nats.auth
    if auth is not None and auth.user is not None:
        reference = {"name": auth.user.name, "key": auth.user.user_key}
        made.append({"name": "LIFTBRIDGE_NATS_USER", "valueFrom": {"secretKeyRef": reference}})
    return made


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probe(path: str, *, period: int, timeout: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "metrics", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
