"""The StatefulSet: its pods are made all at once, and replaced by nobody but the operator.

Pods of a set with `OnDelete` are made of the template as it is at that moment. So the template is
written when the first pod is about to be replaced, and never together with anything else; who
writes it takes it from `Rendered.template`, or from the ConfigMap of the revision he means.
"""

import json
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.model.values import size_bytes
from liftbridge_operator.rendering import names
from liftbridge_operator.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    Recorded,
    Rendered,
    metadata,
    pod_labels,
)
from liftbridge_operator.rendering.volumes import claim_templates

READY_SECONDS: Final = 0
HISTORY: Final = 2
"""Former templates that Kubernetes keeps; the operator keeps its own."""

TEMPLATE_KEY: Final = "template.json"
CONFIGURATION_KEY: Final = "configuration.json"
RECORD_KEYS: Final = (names.REVISION, names.ASKED, names.RENDERER, names.IMAGE)


@dataclass(frozen=True, slots=True)
class Marks:
    """What is noted on the set beside its template.

    Attributes:
        good_revision: Latest one with which a pod became ready; empty for none.
        bad_revision: One that was taken back; empty for none.
    """

    good_revision: str = ""
    bad_revision: str = ""


def record_of(rendered: Rendered) -> Recorded:
    """What the set is to say of the template that was rendered."""
    return Recorded(
        rendered.revision,
        rendered.asked,
        rendered.renderer,
        rendered.image,
        rendered.template,
    )


def stateful_set(
    cluster: Cluster,
    inputs: Inputs,
    record: Recorded,
    marks: Marks,
    *,
    replicas: int | None,
    claim_bytes: int,
) -> Object:
    """The set with a template.

    Args:
        cluster: Whose.
        inputs: What rendering takes.
        record: The template, and how it was made.
        marks: What is noted beside it.
        replicas: Number of pods; None for an apply, which never carries it.
        claim_bytes: Size in the template of claims for data, as it is on the set, or is to be on
            a new one: it cannot be changed.
    """
    noted = {
        names.REVISION: record.revision,
        names.ASKED: record.asked,
        names.RENDERER: str(record.renderer),
        names.IMAGE: record.image,
        names.GOOD_REVISION: marks.good_revision,
        names.BAD_REVISION: marks.bad_revision,
    }
    spec: Object = {
        "serviceName": names.headless(cluster.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": HISTORY,
        "minReadySeconds": READY_SECONDS,
        # Deletion of volumes is the operator's, by owner references.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "selector": {"matchLabels": pod_labels(cluster)},
        "template": record.template,
        "volumeClaimTemplates": claim_templates(cluster, inputs, claim_bytes),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(cluster, inputs, names.brokers(cluster.name), annotations=noted),
        "spec": spec,
    }


def claim_bytes(cluster: Cluster) -> int:
    """Size of the volume for data that is asked for; 0 for ephemeral storage."""
    storage = cluster.spec.storage
    return 0 if storage.ephemeral else size_bytes(storage.data.size)


def read_record(live: Object) -> Recorded | None:
    """How a set that exists was made; None when it does not say, or not in this form."""
    noted = live.get("metadata", {}).get("annotations", {})
    if not all(noted.get(key) for key in RECORD_KEYS) or not noted[names.RENDERER].isdigit():
        return None
    return Recorded(
        noted[names.REVISION],
        noted[names.ASKED],
        int(noted[names.RENDERER]),
        noted[names.IMAGE],
        live["spec"]["template"],
    )


def kept_revision(
    cluster: Cluster, inputs: Inputs, record: Recorded, configuration: dict[str, str] | None = None
) -> Object:
    """The immutable ConfigMap by which a template can be written again later.

    Args:
        cluster: Whose.
        inputs: What rendering takes.
        record: The template.
        configuration: Files of the ConfigMap that the template names, so that an operator which
            would make others can write it again as well; None where they are not known.
    """
    text = json.dumps(configuration, sort_keys=True) if configuration is not None else ""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, names.revision(cluster.name, record.revision)),
        "immutable": True,
        "data": {
            TEMPLATE_KEY: json.dumps(record.template, sort_keys=True),
            "revision": record.revision,
            "asked": record.asked,
            "renderer": str(record.renderer),
            "image": record.image,
            **({CONFIGURATION_KEY: text} if text else {}),
        },
    }


def kept_configuration(live: Object | None) -> dict[str, str] | None:
    """Files that are kept beside a template; None for none, or not in this form."""
    text = ((live or {}).get("data") or {}).get(CONFIGURATION_KEY) or "null"
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_kept(live: Object | None) -> Recorded | None:
    """A template that may be kept; None when it is not, or not in this form."""
    try:
        return read_revision(live) if live is not None else None
    except (KeyError, ValueError):
        return None


def read_revision(live: Object) -> Recorded:
    """A template as `kept_revision` wrote it.

    Raises:
        KeyError: It was not written by `kept_revision`.
        ValueError: Likewise.
    """
    data = live["data"]
    return Recorded(
        data["revision"],
        data["asked"],
        int(data["renderer"]),
        data["image"],
        json.loads(data[TEMPLATE_KEY]),
    )
