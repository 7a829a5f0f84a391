"""Render a pipeline as objects of Kubernetes; the same arguments give the same objects.

Controllers of Kubernetes restart pods: a Job for a single run, a CronJob for a schedule, a
Deployment of one pod for a continuous pipeline. Two pods at the same time do no harm, because an
archive accepts each offset once.
"""

import json
from hashlib import sha256
from typing import Any, Final

from liftbridge_operator.model.base import GROUP, VERSION
from liftbridge_operator.model.pipeline import PIPELINE_KIND, PipelineMode, Runtime
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.commands import conf, conf_text
from liftbridge_operator.pipelines.pod import driver_template, executor_pod, tls_files
from liftbridge_operator.pipelines.subject import Means, Object, Pipeline, Reach, UnreachableError

API_VERSION: Final = f"{GROUP}/{VERSION}"
PROFILE: Final = "cluster"
NOT_RETRIED: Final = (1, 2, 5)
"""Exit codes that a retry does not change: a finding, a wrong command, missing records."""

HISTORY: Final = 3
"""Number of runs of a schedule that are kept, both of failed and of successful ones."""

LATEST_SECONDS: Final = 600
"""Maximum delay of a scheduled run; after it the run is skipped."""


def digest(value: Any) -> str:
    """Return a digest of a JSON value, eight hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:8]


def render(pipeline: Pipeline, reach: Reach, means: Means) -> tuple[Object, ...]:
    """Render all objects, in the order of their application; the last one runs the job.

    Raises:
        UnreachableError: The operator lacks a setting that the runtime needs.
    """
    image = pipeline.spec.image or means.image
    config = _config(pipeline, reach, image)
    template = driver_template(pipeline, reach, image)
    # A change of its files replaces the pod.
    template["metadata"]["annotations"][names.REVISION] = digest([config["data"], template])
    beside = [_account(pipeline), config]
    if pipeline.spec.runtime is Runtime.EXECUTORS:
        if not means.executor_role:
            raise UnreachableError(
                "runtime Executors needs the operator's setting executor-role, as its chart sets "
                "with rbac.executors"
            )
        beside += [_binding(pipeline, means.executor_role), _service(pipeline)]
    return (*beside, _workload(pipeline, template))


def _metadata(pipeline: Pipeline, name: str, **more: Any) -> Object:
    owner = {
        "apiVersion": API_VERSION,
        "kind": PIPELINE_KIND,
        "name": pipeline.name,
        "uid": pipeline.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "name": name,
        "namespace": pipeline.namespace,
        "labels": names.labels(pipeline.name),
        "ownerReferences": [owner],
        **more,
    }


def _object(pipeline: Pipeline, version: str, kind: str, **more: Any) -> Object:
    metadata = _metadata(pipeline, names.owned(pipeline.name))
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def _account(pipeline: Pipeline) -> Object:
    made = _object(pipeline, "v1", "ServiceAccount", automountServiceAccountToken=False)
    annotations = dict(pipeline.spec.credentials.service_account_annotations)
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made


def _config(pipeline: Pipeline, reach: Reach, image: str) -> Object:
    """Render the ConfigMap with the connection profile, Spark settings and executor template."""
    profile = {"servers": reach.servers, **tls_files(reach)}
    lines = [f'current = "{PROFILE}"', "", f"[profiles.{PROFILE}]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in profile.items()]
    data = {
        names.PROFILES_KEY: "\n".join(lines) + "\n",
        names.CONF_KEY: conf_text(conf(pipeline, image)),
    }
    if pipeline.spec.runtime is Runtime.EXECUTORS:
        pod = json.dumps(executor_pod(pipeline, reach), indent=1, sort_keys=True)
        data[names.EXECUTOR_KEY] = pod + "\n"
    return _object(pipeline, "v1", "ConfigMap", data=data)


def _binding(pipeline: Pipeline, role: str) -> Object:
    """Render the RoleBinding by which the driver may create and delete executors."""
    group = "rbac.authorization.k8s.io"
    account = {
        "kind": "ServiceAccount",
        "name": names.owned(pipeline.name),
        "namespace": pipeline.namespace,
    }
    made = _object(pipeline, f"{group}/v1", "RoleBinding", subjects=[account])
    return made | {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role}}


def _service(pipeline: Pipeline) -> Object:
    """Render the headless Service that names the driver from its start on."""
    ports = {"driver": names.DRIVER_PORT, "blocks": names.BLOCKS_PORT}
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.PIPELINE: pipeline.name},
        "ports": [
            {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
            for name, port in ports.items()
        ],
    }
    return _object(pipeline, "v1", "Service", spec=spec)


def _workload(pipeline: Pipeline, template: Object) -> Object:
    match pipeline.spec.mode:
        case PipelineMode.CONTINUOUS:
            return _deployment(pipeline, template)
        case PipelineMode.SCHEDULED:
            return _cron_job(pipeline, template)
        case PipelineMode.ONCE:
            return _job(pipeline, template)


def _deployment(pipeline: Pipeline, template: Object) -> Object:
    spec = {
        "replicas": 0 if pipeline.spec.suspend else 1,
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": {names.PIPELINE: pipeline.name}},
        "strategy": {"type": "Recreate"},
        "template": template,
    }
    return _object(pipeline, "apps/v1", "Deployment", spec=spec)


def _run(pipeline: Pipeline, template: Object) -> Object:
    """Render the specification of a Job."""
    rule = {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": names.CONTAINER,
            "operator": "In",
            "values": list(NOT_RETRIED),
        },
    }
    return {
        "backoffLimit": pipeline.spec.failure_policy.retries,
        "podFailurePolicy": {"rules": [rule]},
        "template": template,
    }


def _cron_job(pipeline: Pipeline, template: Object) -> Object:
    schedule = pipeline.spec.schedule
    assert schedule is not None, "one without is refused as it is read"
    spec: Object = {
        "concurrencyPolicy": "Forbid",
        "failedJobsHistoryLimit": HISTORY,
        "jobTemplate": {"spec": _run(pipeline, template)},
        "schedule": schedule.cron,
        "startingDeadlineSeconds": LATEST_SECONDS,
        "successfulJobsHistoryLimit": HISTORY,
        "suspend": pipeline.spec.suspend,
    }
    if schedule.time_zone is not None:
        spec["timeZone"] = schedule.time_zone
    return _object(pipeline, "batch/v1", "CronJob", spec=spec)


def _job(pipeline: Pipeline, template: Object) -> Object:
    """Render a single run, named by its specification, so that no other operator repeats it."""
    spec = {**_run(pipeline, template), "suspend": pipeline.spec.suspend}
    made = _object(pipeline, "batch/v1", "Job", spec=spec)
    made["metadata"]["name"] = names.run(pipeline.name, pipeline.asked)
    return made
