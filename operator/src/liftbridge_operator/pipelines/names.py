"""Names of everything that belongs to a pipeline: objects, labels, annotations, paths in pods."""

from typing import Final

from liftbridge_operator.model import names as common
from liftbridge_operator.model.base import GROUP

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
"""Spark recognises its local volume by such a name; otherwise it mounts another one at the folder
that the driver's SPARK_LOCAL_DIRS names, and the API server refuses two volumes at one path."""

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
    """Return the name of all objects of a pipeline except the Job of a single run."""
    return f"{pipeline}-pipeline"


def run(pipeline: str, digest: str) -> str:
    """Return the name of the Job of a single run, with a digest of its specification."""
    return f"{owned(pipeline)}-{digest}"


def host(pipeline: str, namespace: str) -> str:
    """Return the DNS name by which executors reach the driver."""
    return f"{owned(pipeline)}.{namespace}.svc"


def cursor(namespace: str, pipeline: str) -> str:
    """Return the name of the cursor that records what is archived."""
    return f"archive/{namespace}/{pipeline}"


def labels(pipeline: str) -> dict[str, str]:
    """Return the labels of all objects."""
    return {
        "app.kubernetes.io/name": "liftbridge-pipeline",
        "app.kubernetes.io/instance": pipeline,
        "app.kubernetes.io/component": "pipeline",
        "app.kubernetes.io/part-of": "liftbridge",
        "app.kubernetes.io/managed-by": common.MANAGED_BY,
        PIPELINE: pipeline,
    }


def executor_labels(pipeline: str) -> dict[str, str]:
    """Return the labels of executor pods, without the one that selects the driver."""
    kept = {name: value for name, value in labels(pipeline).items() if name != PIPELINE}
    return kept | {"app.kubernetes.io/component": "executor", EXECUTOR_OF: pipeline}
