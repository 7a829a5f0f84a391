"""The ConfigMap that identifies the cluster; it outlives the `LiftbridgeCluster`."""

import json

from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object, kept_metadata
from liftbridge_operator.model import names

ID_KEY = "cluster-id"
STATE_KEY = "state"
FOUNDERS_KEY = "founders"
STARTED = "started"
CREATED = "created"

Founders = tuple[tuple[str, str], ...]
"""Brokers with the ids of their data directories."""


def identity(cluster: Cluster, inputs: Inputs, founders: Founders, *, is_started: bool) -> Object:
    """Render the ConfigMap, without owner reference.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id.
        founders: Founders of the cluster; empty before they are decided.
        is_started: Whether founding has started, after which the list is final.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": kept_metadata(cluster, inputs, names.identity(cluster.name)),
        # The founders of a cluster never change.
        **({"immutable": True} if is_started else {}),
        "data": {
            ID_KEY: inputs.cluster_id,
            STATE_KEY: STARTED if is_started else CREATED,
            FOUNDERS_KEY: json.dumps(
                [{"broker": broker, "dataDirId": directory} for broker, directory in founders]
            ),
        },
    }


def read_identity(live: Object) -> tuple[str, Founders, bool]:
    """Read id, founders, and whether founding has started.

    Raises:
        ValueError: The ConfigMap is malformed; the text says how.
    """
    data = live.get("data") or {}
    try:
        founders = tuple(
            (str(one["broker"]), str(one["dataDirId"]))
            for one in json.loads(data.get(FOUNDERS_KEY, "[]"))
        )
        cluster_id, state = str(data[ID_KEY]), data[STATE_KEY]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"the identity of the cluster cannot be read: {error!r}") from error
    if not cluster_id or state not in {STARTED, CREATED}:
        raise ValueError(f"the identity of the cluster has id {cluster_id!r} and state {state!r}")
    return cluster_id, founders, state == STARTED
