"""Pods of a pipeline: they satisfy the restricted profile, and may end at any moment."""

from typing import Final

from liftbridge_operator.cluster.rendering.pod import security_context
from liftbridge_operator.model import names as cluster_names
from liftbridge_operator.model.pipeline import PipelineMode, PipelineType, Runtime
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.commands import arguments
from liftbridge_operator.pipelines.subject import Authority, Object, Pipeline, Reach

USER: Final = 10_001
GRACE_SECONDS: Final = 30


def driver_template(pipeline: Pipeline, reach: Reach, image: str) -> Object:
    """Render the template of the driver pod, which runs the command."""
    spec = pipeline.spec
    is_continuous = spec.mode is PipelineMode.CONTINUOUS
    container: Object = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **_secrets(pipeline),
        "env": _environment(pipeline, reach),
        "resources": {
            "requests": spec.resources.requests.manifest(),
            "limits": spec.resources.limits.manifest(),
        },
        "securityContext": security_context(),
        # The end of the log is the message of a run that failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(pipeline, reach),
    }
    if spec.script is not None:
        container["command"] = ["python3", f"{names.SCRIPT_DIRECTORY}/{spec.script.key}"]
    else:
        container["args"] = arguments(pipeline)
    return {
        "metadata": {
            "labels": names.labels(pipeline.name),
            "annotations": {"kubectl.kubernetes.io/default-container": names.CONTAINER},
        },
        "spec": {
            **_common(pipeline),
            "serviceAccountName": names.owned(pipeline.name),
            "automountServiceAccountToken": spec.runtime is Runtime.EXECUTORS,
            "restartPolicy": "Always" if is_continuous else "Never",
            # Process 1 of a container ignores SIGTERM without a handler, and does not reap zombies;
            # a shared process namespace makes the pause container process 1.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [container],
            "volumes": _volumes(pipeline, reach),
        },
    }


def executor_pod(pipeline: Pipeline, reach: Reach) -> Object:
    """Render the pod template of executors; Spark fills in image, command and resources."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": names.executor_labels(pipeline.name)},
        "spec": {
            **_common(pipeline),
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": names.CONTAINER,
                    **_secrets(pipeline),
                    "env": _plain_environment(pipeline, reach),
                    "securityContext": security_context(),
                    "volumeMounts": _mounts(pipeline, reach),
                }
            ],
            "volumes": _volumes(pipeline, reach),
        },
    }


def _common(pipeline: Pipeline) -> Object:
    made: Object = {
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pulled = [{"name": name} for name in pipeline.spec.image_pull_secrets]
    return made | ({"imagePullSecrets": pulled} if pulled else {})


def _environment(pipeline: Pipeline, reach: Reach) -> list[Object]:
    """Return the environment of the driver, with its pod name from the downward API."""
    made = _plain_environment(pipeline, reach)
    made += [
        {"name": "SPARK_CONF_DIR", "value": names.CONFIG_DIRECTORY},
        {"name": "SPARK_LOCAL_DIRS", "value": "/tmp"},  # noqa: S108 - a volume of the pod
    ]
    if pipeline.spec.runtime is Runtime.EXECUTORS:
        field = {"apiVersion": "v1", "fieldPath": "metadata.name"}
        made.append({"name": "POD_NAME", "valueFrom": {"fieldRef": field}})
        submit_arguments = "--conf spark.kubernetes.driver.pod.name=$(POD_NAME) pyspark-shell"
        made.append({"name": "PYSPARK_SUBMIT_ARGS", "value": submit_arguments})
    return made


def _plain_environment(pipeline: Pipeline, reach: Reach) -> list[Object]:
    """Return the environment of every pod."""
    values = {
        "HOME": "/tmp",  # noqa: S108 - a volume of the pod
        "LIFTBRIDGE_CONFIG": f"{names.CONFIG_DIRECTORY}/{names.PROFILES_KEY}",
    }
    if pipeline.spec.type is PipelineType.CUSTOM:
        values |= _of_script(pipeline, reach)
    return [{"name": name, "value": value} for name, value in values.items()]


def _secrets(pipeline: Pipeline) -> Object:
    """Return Secrets whose keys become environment variables."""
    given = pipeline.spec.credentials.secrets
    return {"envFrom": [{"secretRef": {"name": name}} for name in given]} if given else {}


def _of_script(pipeline: Pipeline, reach: Reach) -> dict[str, str]:
    """Return the environment of a custom job, in the form of options of the data source."""
    spec = pipeline.spec
    found = {
        "PIPELINE_SERVERS": reach.servers,
        "PIPELINE_STREAMS": ",".join(spec.source.streams),
        "PIPELINE_ARCHIVE": spec.archive.root if spec.archive is not None else "",
        **{f"PIPELINE_TLS_{key.upper()}": path for key, path in tls_files(reach).items()},
    }
    return {name: value for name, value in found.items() if value}


def tls_files(reach: Reach) -> dict[str, str]:
    """Return paths of the TLS files in pods, by their names in a profile."""
    if reach.authority is None:
        return {}
    keys = {"ca": cluster_names.CA_KEY}
    if reach.authority.has_certificate:
        keys |= {"cert": cluster_names.CERT_KEY, "key": cluster_names.KEY_KEY}
    return {name: f"{names.TLS_DIRECTORY}/{key}" for name, key in keys.items()}


def _mounts(pipeline: Pipeline, reach: Reach) -> list[Object]:
    spec = pipeline.spec
    found = [(names.CONFIG_VOLUME, names.CONFIG_DIRECTORY, True)]
    if reach.authority is not None:
        found.append((names.TLS_VOLUME, names.TLS_DIRECTORY, True))
    if spec.script is not None:
        found.append((names.SCRIPT_VOLUME, names.SCRIPT_DIRECTORY, True))
    if spec.state is not None:
        found.append((names.STATE_VOLUME, names.STATE_DIRECTORY, False))
    found.append((names.TEMPORARY_VOLUME, "/tmp", False))  # noqa: S108 - the volume itself
    return [
        {"name": name, "mountPath": path} | ({"readOnly": True} if is_fixed else {})
        for name, path, is_fixed in found
    ]


def _volumes(pipeline: Pipeline, reach: Reach) -> list[Object]:
    spec = pipeline.spec
    found: list[Object] = [
        {"name": names.CONFIG_VOLUME, "configMap": {"name": names.owned(pipeline.name)}}
    ]
    if reach.authority is not None:
        found.append({"name": names.TLS_VOLUME, **_files(reach.authority)})
    if spec.script is not None:
        items = [{"key": spec.script.key, "path": spec.script.key}]
        source = {"name": spec.script.config_map_name, "items": items}
        found.append({"name": names.SCRIPT_VOLUME, "configMap": source})
    if spec.state is not None:
        claim = {"claimName": spec.state.claim_name}
        found.append({"name": names.STATE_VOLUME, "persistentVolumeClaim": claim})
    found.append({"name": names.TEMPORARY_VOLUME, "emptyDir": {}})
    return found


def _files(authority: Authority) -> Object:
    """Return the source of a volume with only the keys that a connection needs."""
    keys = [cluster_names.CA_KEY]
    if authority.has_certificate:
        keys += [cluster_names.CERT_KEY, cluster_names.KEY_KEY]
    items = [{"key": key, "path": key} for key in keys]
    if authority.is_secret:
        return {"secret": {"secretName": authority.name, "items": items}}
    return {"configMap": {"name": authority.name, "items": items}}
