"""Command line and Spark settings of a pipeline's pod."""

from typing import Final

from liftbridge_operator.model.pipeline import Compaction, PipelineMode, PipelineType, Runtime
from liftbridge_operator.model.units import MIB, SECOND_NS
from liftbridge_operator.model.values import duration_ns, size_bytes
from liftbridge_operator.pipelines import names
from liftbridge_operator.pipelines.subject import Pipeline

INTERVAL_SECONDS: Final = 60
"""Default pause between two rounds of a continuous archive."""

LOCAL_TASKS: Final = 2
"""Concurrent tasks in a pod without a CPU limit."""

API_SERVER: Final = "https://kubernetes.default.svc"
_COMPACTIONS: Final = {Compaction.SMALL_FILES: "--small-files", Compaction.BY_KEY: "--by-key"}


def arguments(pipeline: Pipeline) -> list[str]:
    """Return the arguments of `liftbridge`; none for a custom job."""
    spec = pipeline.spec
    if spec.type is PipelineType.CUSTOM:
        return []
    words = ["spark", spec.type.value.lower(), *spec.source.streams]
    root = spec.archive.root if spec.archive is not None else ""
    match spec.type:
        case PipelineType.ARCHIVE:
            words += [root, "--cursor", names.cursor(pipeline.namespace, pipeline.name)]
            if spec.mode is PipelineMode.CONTINUOUS:
                words += ["--every", str(_interval_seconds(pipeline))]
            if not spec.failure_policy.fail_on_data_loss:
                words.append("--allow-loss")
        case PipelineType.REPLAY:
            assert spec.sink is not None, "one without is refused as it is read"
            words += [root, "--to-stream", spec.sink.stream]
            if spec.sink.preserve_offsets:
                words.append("--preserve-offsets")
        case PipelineType.COMPACT:
            words += [root, _COMPACTIONS[spec.compaction or Compaction.SMALL_FILES]]
        case PipelineType.AUDIT:
            words += ["--archive", root] if root else []
        case _:
            assert spec.type is PipelineType.METRICS
    return [*words, *_store(pipeline), "--master", master(pipeline), "--output", "jsonl"]


def _interval_seconds(pipeline: Pipeline) -> int:
    text = pipeline.spec.interval
    return INTERVAL_SECONDS if text is None else -(-duration_ns(text) // SECOND_NS)


def interval_seconds(pipeline: Pipeline) -> int:
    """Return the pause between two rounds of a continuous pipeline; 0 for any other."""
    is_continuous = pipeline.spec.mode is PipelineMode.CONTINUOUS
    return _interval_seconds(pipeline) if is_continuous else 0


def _store(pipeline: Pipeline) -> list[str]:
    """Return options of an object store, without its secrets, which the environment holds."""
    archive = pipeline.spec.archive
    if archive is None:
        return []
    given = {
        "endpoint": archive.endpoint,
        "region": archive.region,
        "allow_http": None if archive.allow_http is None else str(archive.allow_http).lower(),
    }
    words = []
    for name, value in given.items():
        if value is not None:
            words += ["--store", f"{name}={value}"]
    return words


def master(pipeline: Pipeline) -> str:
    """Return the Spark master URL."""
    if pipeline.spec.runtime is Runtime.EXECUTORS:
        return f"k8s://{API_SERVER}"
    return f"local[{_tasks(pipeline.spec.resources.limits.cpu)}]"


def _tasks(cpu: str | None) -> int:
    if cpu is None:
        return LOCAL_TASKS
    cores = float(cpu[:-1]) / 1_000 if cpu.endswith("m") else float(cpu)
    return max(1, int(cores))


def conf(pipeline: Pipeline, image: str) -> dict[str, str]:
    """Return the Spark settings; those of the specification override the defaults."""
    spec = pipeline.spec
    heap = size_bytes(spec.resources.limits.memory) * 2 // 5
    made = {
        "spark.driver.memory": f"{max(heap // MIB, 512)}m",
        "spark.master": master(pipeline),
        "spark.ui.enabled": "false",
    }
    if spec.executors is not None:
        made |= _executor_conf(pipeline, image)
    return made | dict(spec.spark_conf)


def _executor_conf(pipeline: Pipeline, image: str) -> dict[str, str]:
    """Return settings by which the driver creates executors, and by which they find it."""
    executors = pipeline.spec.executors
    assert executors is not None
    # Rows go through the Python workers, so the JVM gets the smaller part.
    whole = size_bytes(executors.memory) // MIB
    heap = max(whole * 2 // 5, 512)
    return {
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - of the pod
        "spark.driver.blockManager.port": str(names.BLOCKS_PORT),
        "spark.driver.host": names.host(pipeline.name, pipeline.namespace),
        "spark.driver.port": str(names.DRIVER_PORT),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.instances": str(executors.instances),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{max(whole - heap, 512)}m",
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        # Executors are deleted with the pod of their driver; Spark owns no claims here.
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        # Otherwise executors connect to the driver's bind address (SPARK-58748).
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.kubernetes.executor.podTemplateContainerName": names.CONTAINER,
        "spark.kubernetes.executor.podTemplateFile": (
            f"{names.CONFIG_DIRECTORY}/{names.EXECUTOR_KEY}"
        ),
        "spark.kubernetes.namespace": pipeline.namespace,
    }


def conf_text(settings: dict[str, str]) -> str:
    """Format the settings file: one line each, in order of their names."""
    return "".join(f"{name} {value}\n" for name, value in sorted(settings.items()))
