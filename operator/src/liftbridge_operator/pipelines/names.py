"""Names of everything that belongs to a pipeline: objects, labels, annotations, places in pods."""

from typing import Final

from liftbridge_operator.model.base import GROUP
from liftbridge_operator.rendering import names as common

# Labels.
PIPELINE: Final = common.PIPELINE
EXECUTOR_OF: Final = f"{GROUP}/executor-of"

# Annotations.
REVISION: Final = f"{GROUP}/revision"

CONTAINER: Final = "spark"

CONFIG_VOLUME: Final = "liftbridge-config"
TLS_VOLUME: Final = "liftbridge-tls"
SCRIPT_VOLUME: Final = "pipeline-script"
STATE_VOLUME: Final = "pipeline-state"
TEMPORARY_VOLUME: Final = "spark-local-dir-1"
"""By such a name Spark knows a volume for its own files; else it mounts another one at the folder
that SPARK_LOCAL_DIRS of the driver names, and no server takes a pod with two at one place."""

CONFIG_DIRECTORY: Final = "/etc/liftbridge/pipeline"
TLS_DIRECTORY: Final = "/etc/liftbridge/tls"
SCRIPT_DIRECTORY: Final = "/etc/liftbridge/script"
STATE_DIRECTORY: Final = "/state"

PROFILES_KEY: Final = "profiles.toml"
CONF_KEY: Final = "spark-defaults.conf"
EXECUTOR_KEY: Final = "executor.json"

DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079


def owned(pipeline: str) -> str:
    """All objects of a pipeline but the job of a single run."""
    return f"{pipeline}-pipeline"


def run(pipeline: str, digest: str) -> str:
    """The job of a single run, named by what was asked for."""
    return f"{owned(pipeline)}-{digest}"


def host(pipeline: str, namespace: str) -> str:
    """Name in DNS by which executors reach the driver."""
    return f"{owned(pipeline)}.{namespace}.svc"


def cursor(namespace: str, pipeline: str) -> str:
    """The cursor at the brokers that says what is archived."""
    return f"archive/{namespace}/{pipeline}"


def labels(pipeline: str) -> dict[str, str]:
    """Labels of all objects."""
    return {
        "app.kubernetes.io/name": "liftbridge-pipeline",
        "app.kubernetes.io/instance": pipeline,
        "app.kubernetes.io/component": "pipeline",
        "app.kubernetes.io/part-of": "liftbridge",
        "app.kubernetes.io/managed-by": common.MANAGED_BY,
        PIPELINE: pipeline,
    }


def executor_labels(pipeline: str) -> dict[str, str]:
    """Labels of pods that the driver makes: none by which the driver's are found."""
    kept = {name: value for name, value in labels(pipeline).items() if name != PIPELINE}
    return kept | {"app.kubernetes.io/component": "executor", EXECUTOR_OF: pipeline}
