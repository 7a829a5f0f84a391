"""Digests of pod templates and configurations, and the recorded form of a desired state.

A revision is a hash that the operator computes. That of the StatefulSet controller changes with
defaults that a newer Kubernetes adds.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from liftbridge_operator.cluster.rendering.subject import Cluster, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec

RENDERER: Final = 3
"""Version of the renderer; raised when the same specification gives another template."""

_DIGITS: Final = 12


def digest(value: Any) -> str:
    """Hash a JSON value, independent of the order of its keys."""
    return hashlib.sha256(_text(value).encode()).hexdigest()[:_DIGITS]


def asked_text(cluster: Cluster) -> str:
    """Serialise the desired state of a cluster, so that every later operator can read it.

    Values that equal their defaults are omitted: defaults never change, and the text stays valid
    when a newer operator adds fields. The number of brokers is omitted too, since no template
    depends on it.
    """
    spec = cluster.spec.model_dump(mode="json", exclude_defaults=True, exclude={"replicas"})
    return _text({"spec": spec, "restart": cluster.restart})


def asked_before(cluster: Cluster, text: str) -> Cluster:
    """Return the cluster with the desired state of a text from `asked_text`.

    Raises:
        ValueError: The text is malformed, or has fields that no longer exist.
    """
    match json.loads(text):
        case {"spec": given, "restart": str(restart)}:
            spec = ClusterSpec.model_validate(given)
            return Cluster(cluster.name, cluster.namespace, cluster.uid, spec, restart)
        case _:
            raise ValueError(f"not what a cluster asked for: {text}")


def steps_between(former: Cluster, now: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Yield differing fields, each with the former cluster after only this field changes.

    A list, or a newly given value, counts as one field. A step that gives no valid specification is
    skipped.
    """
    if former.restart != now.restart:
        yield f"annotation {names.RESTART}", replace(former, restart=now.restart)
    there = former.spec.model_dump(mode="json", exclude={"replicas"})
    here = now.spec.model_dump(mode="json", exclude={"replicas"})
    for path in _differing(there, here, ()):
        given = json.loads(_text(there))
        _put(given, path, here)
        try:
            spec = ClusterSpec.model_validate(given)
        except ValidationError:
            continue
        yield ".".join(("spec", *path)), replace(former, spec=spec)


def _differing(there: Any, here: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*there, *here)):
            yield from _differing(there.get(key), here.get(key), (*at, key))
    elif there != here:
        yield at


def _put(given: Any, path: tuple[str, ...], source: Any) -> None:
    """Copy the value at a path of the source to the same path."""
    *outer, last = path
    for key in outer:
        given, source = given[key], source[key]
    if last in source:
        given[last] = source[last]
    else:
        given.pop(last)


def with_revision(template: Object, revision: str) -> Object:
    """Add the revision to a template, as an annotation."""
    metadata = template["metadata"]
    annotations = metadata["annotations"] | {names.REVISION: revision}
    return template | {"metadata": metadata | {"annotations": annotations}}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
