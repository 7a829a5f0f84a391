"""Names made of contents: of a pod template, of a configuration, of what a specification asks for.

A revision is our own hash, not that of the StatefulSet controller, which changes with defaults that
a newer Kubernetes adds.
"""

import hashlib
import json
from typing import Any, Final

from liftbridge_operator.rendering import names
from liftbridge_operator.rendering.subject import Cluster, Object

RENDERER: Final = 1
"""Raised with every change by which the same specification gives another template."""

_DIGITS: Final = 12

# Sections of the specification that the pod template does not follow from.
_APART: Final = (
    "replicas",
    "suspend",
    "paused",
    "networkPolicy",
    "disruption",
    "scaling",
    "replaceBrokers",
    "monitoring",
    "streams",
    "featureLevel",
)


def digest(value: Any) -> str:
    """Hash of a value of JSON, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def spec_hash(cluster: Cluster) -> str:
    """Hash of what in the specification the pod template follows from.

    Values that equal their defaults are left out, so that a field that a newer operator knows does
    not change it.
    """
    given = cluster.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    asked = {key: value for key, value in given.items() if key not in _APART}
    storage = asked.get("storage", {})
    asked["storage"] = {
        "ephemeral": cluster.spec.storage.ephemeral,
        "raft": cluster.spec.storage.raft is not None,
        # Of claims only the templates know the size, and those never change.
        "size": storage.get("data", {}).get("size") if cluster.spec.storage.ephemeral else None,
    }
    # The one thing in that section that brokers are told.
    drain = given.get("disruption", {}).get("drainTimeout")
    return digest([asked, drain, cluster.restart])


def with_revision(template: Object, revision: str) -> Object:
    """The template with its revision in an annotation."""
    metadata = template["metadata"]
    annotations = metadata["annotations"] | {names.REVISION: revision}
    return template | {"metadata": metadata | {"annotations": annotations}}
