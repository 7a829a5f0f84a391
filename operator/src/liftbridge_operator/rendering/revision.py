"""Names made of contents, of a pod template and a configuration; and what a specification asks for.

A revision is our own hash, not that of the StatefulSet controller, which changes with defaults that
a newer Kubernetes adds.
"""

import hashlib
import json
from typing import Any, Final

from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.rendering import names
from liftbridge_operator.rendering.subject import Cluster, Object

RENDERER: Final = 2
"""Raised with every change by which the same specification gives another template."""

_DIGITS: Final = 12


def digest(value: Any) -> str:
    """Hash of a value of JSON, independent of the order of its keys."""
    return hashlib.sha256(_text(value).encode()).hexdigest()[:_DIGITS]


def asked_text(cluster: Cluster) -> str:
    """What a cluster asks for, as a text that every operator that comes later can read.

    Values that equal their defaults are left out: they never change, and fields that a newer
    operator knows are not missing. So is the number of brokers, which no template depends on.
    """
    spec = cluster.spec.model_dump(mode="json", exclude_defaults=True, exclude={"replicas"})
    return _text({"spec": spec, "restart": cluster.restart})


def asked_before(cluster: Cluster, text: str) -> Cluster:
    """The same cluster as it was when `asked_text` gave this text.

    Raises:
        ValueError: It is not such a text, or of fields that there are no more.
    """
    match json.loads(text):
        case {"spec": given, "restart": str(restart)}:
            spec = ClusterSpec.model_validate(given)
            return Cluster(cluster.name, cluster.namespace, cluster.uid, spec, restart)
        case _:
            raise ValueError(f"not what a cluster asked for: {text}")


def with_revision(template: Object, revision: str) -> Object:
    """The template with its revision in an annotation."""
    metadata = template["metadata"]
    annotations = metadata["annotations"] | {names.REVISION: revision}
    return template | {"metadata": metadata | {"annotations": annotations}}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
