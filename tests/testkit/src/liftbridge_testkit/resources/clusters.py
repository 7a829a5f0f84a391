"""Clusters that tests render: one of every kind, each with all of its objects.

Each file in `tests/unit/operator/cluster/rendering/clusters` holds a specification.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from liftbridge_operator.cluster.certificates.subject_names import subject_names
from liftbridge_operator.cluster.rendering import (
    cert_manager,
    guards,
    identity,
    nats,
    secrets,
    workload,
)
from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Reached, Rendered
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.network import TlsMode
from liftbridge_testkit.repository import ROOT

FOLDER: Final = ROOT / "tests" / "unit" / "operator" / "cluster" / "rendering"
PATHS: Final = sorted((FOLDER / "clusters").glob("*.yaml"))
NAMESPACE: Final = "shop"
CLUSTER_ID: Final = "4f2c7a9e"
UID: Final = "11111111-2222-3333-4444-555555555555"
PASSWORDS: Final = {key: f"secret-{number}" for number, key in enumerate(nats.PASSWORDS)}
FILES: Final = {names.CERT_KEY: b"cert", names.KEY_KEY: b"key", names.CA_KEY: b"ca"}


def load_spec(path: Path, **changes: Any) -> ClusterSpec:
    """Return the specification in a file, with top-level fields changed."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    return ClusterSpec.model_validate(given | changes)


def cluster_of(spec: ClusterSpec, name: str = "orders", restart: str = "") -> Cluster:
    """Return a cluster in the namespace of the tests."""
    return Cluster(name, NAMESPACE, UID, spec, restart)


def inputs_for(spec: ClusterSpec, **changes: Any) -> Inputs:
    """Return the inputs of the renderer other than the specification."""
    given: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "image": spec.image or f"liftbridge-broker:{spec.version}",
        "operator_namespace": "operators",
        "operator_labels": {"app.kubernetes.io/name": "liftbridge-operator"},
        "brokers": spec.replicas,
        "reached": {"orders-nodes-1": Reached(node_port=31_001)},
        "hosts": {},
    }
    return Inputs(**given | changes)


def everything(cluster: Cluster, inputs: Inputs) -> list[dict[str, Any]]:
    """Return all objects of a cluster, in the order in which they are written."""
    rendered = render(cluster, inputs)
    founders = tuple(
        (names.broker(cluster.name, ordinal), f"directory-{ordinal}") for ordinal in range(3)
    )
    found = [
        identity.identity(cluster, inputs, founders, is_started=True),
        secrets.authority(cluster, inputs, names.internal_authority(cluster.name), FILES),
        secrets.leaf(cluster, inputs, names.internal_leaf(cluster.name), FILES),
        secrets.leaf(cluster, inputs, names.operator_leaf(cluster.name), FILES),
        secrets.peer_keys(cluster, inputs, "key\n"),
    ]
    if cluster.spec.nats.embedded is not None:
        found.append(secrets.nats_credentials(cluster, inputs, PASSWORDS))
        found.append(secrets.nats_client(cluster, inputs, PASSWORDS["client-password"], b"ca"))
    if cluster.spec.tls.mode is TlsMode.GENERATED:
        found += [
            secrets.authority(cluster, inputs, names.authority(cluster.name), FILES),
            secrets.leaf(cluster, inputs, names.leaf(cluster.name), FILES),
            secrets.published_bundle(cluster, inputs, b"ca"),
        ]
    if cluster.spec.tls.mode is TlsMode.CERT_MANAGER:
        alternatives = subject_names(cluster, addresses=("198.51.100.4",))
        found.append(cert_manager.certificate(cluster, inputs, alternatives))
    found += [*rendered.configs, *rendered.objects, stateful_set(cluster, inputs, rendered)]
    if cluster.spec.replicas > 1:
        found.append(guards.disruption_budget(cluster, inputs, 1))
    return found


def stateful_set(cluster: Cluster, inputs: Inputs, rendered: Rendered) -> dict[str, Any]:
    """Return the set as it is created."""
    return workload.stateful_set(
        cluster,
        inputs,
        workload.record_of(rendered),
        workload.Marks(),
        replicas=cluster.spec.replicas,
        claim_bytes=workload.claim_bytes(cluster),
    )
