"""The StatefulSet: its pods are created in parallel, and only the operator replaces them.

New pods of a set with `OnDelete` use its present template. So the template is written when the
first pod is about to be replaced, and never together with anything else; it comes from
`Rendered.template`, or from the ConfigMap of its revision.
"""

import json
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    Recorded,
    Rendered,
    metadata,
    pod_labels,
)
from liftbridge_operator.cluster.rendering.volumes import claim_templates
from liftbridge_operator.model import names
from liftbridge_operator.model.values import size_bytes

READY_SECONDS: Final = 0
HISTORY: Final = 2
"""Number of former templates that Kubernetes keeps; the operator stores its own."""

TEMPLATE_KEY: Final = "template.json"
CONFIGURATION_KEY: Final = "configuration.json"
RECORD_KEYS: Final = (names.REVISION, names.ASKED, names.RENDERER, names.IMAGE)


@dataclass(frozen=True, slots=True)
class Marks:
    """Annotations of the set besides those of its template.

    Attributes:
        good_revision: Latest revision with which a pod became ready; empty for none.
        bad_revision: Reverted revision; empty for none.
    """

    good_revision: str = ""
    bad_revision: str = ""


def record_of(rendered: Rendered) -> Recorded:
    """Return the record of the rendered template."""
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
    """Render the set with a template.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering.
        record: The template and its record.
        marks: Further annotations.
        replicas: Number of pods; None for an apply, which never carries it.
        claim_bytes: Immutable size in the claim template for data, of the present or a new set.
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
        # The operator deletes volumes, by owner references.
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
    """Return the desired size of the data volume; 0 for ephemeral storage."""
    storage = cluster.spec.storage
    return 0 if storage.ephemeral else size_bytes(storage.data.size)


def read_record(live: Object) -> Recorded | None:
    """Read the record of an existing set; None when it is missing or malformed."""
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
    """Render the immutable ConfigMap by which a template can be written again later.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering.
        record: The template and its record.
        configuration: Files of the ConfigMap that the template names, so that an operator that
            renders it differently can restore it; None when unknown.
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
    """Read the files stored beside a template; None when missing or malformed."""
    text = ((live or {}).get("data") or {}).get(CONFIGURATION_KEY) or "null"
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_kept(live: Object | None) -> Recorded | None:
    """Read a stored template; None when missing or malformed."""
    try:
        return read_revision(live) if live is not None else None
    except (KeyError, ValueError):
        return None


def read_revision(live: Object) -> Recorded:
    """Read a template that `kept_revision` wrote.

    Raises:
        KeyError: `kept_revision` did not write it.
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
