"""`StreamPipeline`: one Spark job on streams of a cluster.

The resource says which command of `liftbridge spark` runs, when and where. All state of a run is in
the archive and on the brokers, so pods may end at any moment.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, Rule, RuleReason, option, section
from liftbridge_operator.model.cluster_status import Name, Note
from liftbridge_operator.model.conditions import Conditions, Status
from liftbridge_operator.model.kube import Annotations
from liftbridge_operator.model.stream import ClusterRef, StreamName
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Cpu,
    Duration,
    LongText,
    ObjectName,
    QuantityText,
    SecretKey,
    Size,
    Text,
    Timestamp,
)

PIPELINE_KIND: Final = "StreamPipeline"
NAME_LENGTH_MAX: Final = 40
PARTITIONS_SHOWN_MAX: Final = 500
STREAMS_MAX: Final = 16

OWNED_CONF: Final = (
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.driver.host",
    "spark.driver.port",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.executor.podTemplateContainerName",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.executor.useDriverPodIP",
    "spark.kubernetes.namespace",
    "spark.master",
    "spark.submit.deployMode",
)
"""Settings of Spark that other fields determine."""


class PipelineType(StrEnum):
    """What a pipeline does."""

    ARCHIVE = "Archive"
    REPLAY = "Replay"
    COMPACT = "Compact"
    METRICS = "Metrics"
    AUDIT = "Audit"
    CUSTOM = "Custom"


class PipelineMode(StrEnum):
    """When it runs."""

    ONCE = "Once"
    SCHEDULED = "Scheduled"
    CONTINUOUS = "Continuous"


class Runtime(StrEnum):
    """Where tasks of Spark run."""

    LOCAL = "Local"
    EXECUTORS = "Executors"


class Compaction(StrEnum):
    """What a compaction does."""

    SMALL_FILES = "SmallFiles"
    BY_KEY = "ByKey"


class PipelineSource(Model):
    """What is read."""

    streams: Annotated[tuple[StreamName, ...], ListOf(STREAMS_MAX, is_set=True)] = Field(
        default=(), description="Names of the streams; more than one only for `Archive`."
    )


class Archive(Model):
    """An archive, in an object store or in a folder of a volume."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "archive-store",
            "!self.root.startsWith('/') || "
            "!(has(self.endpoint) || has(self.region) || has(self.allowHttp))",
            "endpoint, region and allowHttp are for object stores",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    root: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=1_024, pattern=r"^((s3|gs|az)://[!-~]+|/state(/[!-~]+)?)$"
        ),
    ] = Field(
        description="Address of the archive: `s3://bucket/path`, `gs://…`, `az://…`, or `/state` "
        "and folders below it, in the volume of `state`."
    )
    endpoint: LongText | None = option("Address of an S3-compatible object store.")
    region: Text | None = option("Region of the bucket.")
    allow_http: bool | None = option("Whether the object store may be reached without TLS.")


class PipelineSink(Model):
    """Where a replay writes."""

    stream: StreamName = Field(description="Name of the stream to write; it must exist.")
    preserve_offsets: bool = Field(
        default=True, description="Whether each record keeps its offset."
    )


class Schedule(Model):
    """When runs begin; none begins while one is in progress."""

    cron: Annotated[
        str,
        StringConstraints(
            max_length=128, pattern=r"^(@[a-z]{1,16}|[-0-9A-Za-z*,/?]+( [-0-9A-Za-z*,/?]+){4})$"
        ),
    ] = Field(description="Minute, hour, day of the month, month and day of the week, as in cron.")
    time_zone: (
        Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z][-+_A-Za-z0-9/]*$")]
        | None
    ) = option(
        "Name of a time zone such as `Europe/Berlin`; defaults to that of the control plane."
    )


class Executors(Model):
    """Pods in addition to the driver, which Spark creates itself."""

    instances: int = Field(default=2, ge=1, le=100, description="Number of executors.")
    cores: int = Field(default=1, ge=1, le=64, description="Concurrent tasks of each.")
    memory: Size = Field(
        default=QuantityText("2Gi"),
        description="Memory of each, for the JVM and the Python workers together.",
    )


class Script(Model):
    """A Python file in a ConfigMap."""

    config_map_name: ObjectName = Field(description="Name of the ConfigMap.")
    key: SecretKey = Field(description="Key of the file in it, such as `job.py`.")


class PipelineRequests(Model):
    """Resource requests of the pod."""

    cpu: Cpu = Field(default=QuantityText("500m"), description="Cores, such as `500m` or `2`.")
    memory: Size = Field(default=QuantityText("2Gi"), description="Memory, such as `2Gi`.")


class PipelineLimits(Model):
    """Resource limits of the pod."""

    cpu: Cpu | None = option(
        "Cores, and number of concurrent tasks; by default unlimited, with two tasks."
    )
    memory: Size = Field(
        default=QuantityText("2Gi"),
        description="Memory; two fifths for the JVM heap, the rest for Python.",
    )


class PipelineResources(Model):
    """Resources of the pod, which is the driver with `Executors`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pipeline-memory",
            "quantity(string(self.requests.memory)).compareTo("
            "quantity(string(self.limits.memory))) <= 0",
            "requests.memory is greater than limits.memory",
            field=".requests",
        ),
        Rule(
            "pipeline-cpu",
            "!has(self.limits.cpu) || quantity(string(self.requests.cpu)).compareTo("
            "quantity(string(self.limits.cpu))) <= 0",
            "requests.cpu is greater than limits.cpu",
            field=".requests",
        ),
    )
    requests: PipelineRequests = section(PipelineRequests, "Resource requests of the pod.")
    limits: PipelineLimits = section(PipelineLimits, "Resource limits of the pod.")


class State(Model):
    """A volume that outlives pods."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim to mount at `/state`; with `Executors` on every "
        "node that runs one."
    )


class Credentials(Model):
    """Secrets and identity of the job."""

    secrets: Annotated[tuple[ObjectName, ...], ListOf(8, is_set=True)] = Field(
        default=(),
        description="Secrets whose keys become environment variables, such as `AWS_ACCESS_KEY_ID`.",
    )
    service_account_annotations: Annotations = Field(
        default={},
        description="Annotations of the ServiceAccount of the pods, for cloud identities.",
    )
    tls_secret_name: ObjectName | None = option(
        "Secret with `ca.crt`, and `tls.crt` and `tls.key` if brokers require a certificate. By "
        "default the CA of the cluster is trusted, if it is in the same namespace."
    )


class FailurePolicy(Model):
    """What happens when something goes wrong."""

    fail_on_data_loss: bool = Field(
        default=True,
        description="Whether a run fails if records that were not archived are gone; otherwise the "
        "archive records the gap.",
    )
    retries: int = Field(
        default=3,
        ge=0,
        le=100,
        description="New pods for a failed run, each after a longer pause; a continuous pipeline "
        "is restarted without limit.",
    )


class PipelineSpec(Model):
    """What the pipeline does."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pipeline-streams",
            "self.type == 'Custom' || (has(self.source.streams) && "
            "(size(self.source.streams) == 1 || "
            "(self.type == 'Archive' && size(self.source.streams) > 1)))",
            "source.streams needs one stream, or one or more for type Archive",
            field=".source",
        ),
        Rule(
            "pipeline-archive",
            "!(self.type in ['Archive', 'Replay', 'Compact']) || has(self.archive)",
            "types Archive, Replay and Compact need archive",
            field=".archive",
            reason=RuleReason.REQUIRED,
        ),
        Rule(
            "pipeline-sink",
            "(self.type == 'Replay') == has(self.sink)",
            "sink must be set for type Replay, and only then",
            field=".sink",
        ),
        Rule(
            "pipeline-script",
            "(self.type == 'Custom') == has(self.script)",
            "script must be set for type Custom, and only then",
            field=".script",
        ),
        Rule(
            "pipeline-compaction",
            "self.type == 'Compact' || !has(self.compaction)",
            "compaction is for type Compact",
            field=".compaction",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "pipeline-schedule",
            "(self.mode == 'Scheduled') == has(self.schedule)",
            "schedule must be set for mode Scheduled, and only then",
            field=".schedule",
        ),
        Rule(
            "pipeline-continuous",
            "self.mode != 'Continuous' || self.type in ['Archive', 'Custom']",
            "only types Archive and Custom run in mode Continuous",
            field=".mode",
        ),
        Rule(
            "pipeline-interval",
            "!has(self.interval) || (self.mode == 'Continuous' && self.type == 'Archive' && "
            "duration(self.interval) >= duration('1s') && "
            "duration(self.interval) <= duration('24h'))",
            "interval is for type Archive in mode Continuous, from 1s to 24h",
            field=".interval",
        ),
        Rule(
            "pipeline-executors",
            "(self.runtime == 'Executors') == has(self.executors)",
            "executors must be set for runtime Executors, and only then",
            field=".executors",
        ),
        Rule(
            "pipeline-state",
            "!has(self.archive) || !self.archive.root.startsWith('/') || has(self.state)",
            "an archive below /state needs state",
            field=".state",
            reason=RuleReason.REQUIRED,
        ),
        Rule(
            "pipeline-conf",
            f"!has(self.sparkConf) || self.sparkConf.all(name, !(name in {list(OWNED_CONF)}))",
            f"these Spark settings are determined by other fields: {', '.join(OWNED_CONF)}",
            field=".sparkConf",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "pipeline-conf-names",
            "!has(self.sparkConf) || self.sparkConf.all(name, "
            "name.matches('^spark[.][A-Za-z0-9_.-]+$'))",
            "names of Spark settings must begin with spark.",
            field=".sparkConf",
        ),
    )
    type: PipelineType = Field(description="What it does.")
    cluster_ref: ClusterRef = Field(description="The cluster of the streams.")
    source: PipelineSource = section(PipelineSource, "What is read.")
    archive: Archive | None = option(
        "The archive to write, to read, or to compare with the brokers."
    )
    sink: PipelineSink | None = option("Where a replay writes.")
    script: Script | None = option("The job of type `Custom`.")
    compaction: Compaction | None = option("What a compaction does; defaults to `SmallFiles`.")
    mode: PipelineMode = Field(
        description="When it runs: once, on a schedule, or continuously. With `Once`, a changed "
        "spec causes another run."
    )
    schedule: Schedule | None = option("When runs begin, for mode `Scheduled`.")
    interval: Duration | None = option(
        "Pause between two rounds of an archive in mode `Continuous`; defaults to `60s`."
    )
    runtime: Runtime = Field(
        default=Runtime.LOCAL,
        description="Whether tasks run in the one pod, which has no permissions at the API "
        "server, or in pods that it creates.",
    )
    executors: Executors | None = option("The other pods, for runtime `Executors`.")
    image: Text | None = option("Image of the pods; defaults to that of the operator's version.")
    image_pull_secrets: Annotated[tuple[ObjectName, ...], ListOf(8, is_set=True)] = Field(
        default=(), description="Secrets with credentials of registries."
    )
    resources: PipelineResources = section(
        PipelineResources, "Resources of the pod, which is the driver with `Executors`."
    )
    spark_conf: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=1_024, pattern=r"^[ -~]*$")]],
        Field(max_length=64),
    ] = Field(default={}, description="Further Spark settings.")
    state: State | None = option("A volume that outlives pods.")
    credentials: Credentials = section(Credentials, "Secrets and identity of the job.")
    failure_policy: FailurePolicy = section(
        FailurePolicy, "What happens when something goes wrong."
    )
    suspend: bool = Field(
        default=False,
        description="Whether the pipeline is suspended. A scheduled run in progress is completed; "
        "any other is stopped, and continues later.",
    )


PIPELINE_RULES: Final = (
    Rule(
        "pipeline-name",
        f"size(self.metadata.name) <= {NAME_LENGTH_MAX} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"the name of a pipeline has at most {NAME_LENGTH_MAX} characters, a-z, 0-9 and -, and "
        "begins with a letter: names of pods and Services are derived from it",
    ),
)
"""Rules about the whole object."""


class PipelinePartition(Model):
    """Progress of the archive of one partition."""

    stream: Name = Field(description="Name of the stream.")
    partition: int = Field(ge=0, le=2**31 - 1, description="Number of the partition.")
    archived_offset: int = Field(
        ge=-1, le=INTEGER_MAX, description="Last offset that is archived; -1 for none."
    )
    high_watermark: int = Field(
        ge=0, le=INTEGER_MAX, description="First offset that is not committed yet."
    )
    lag: int = Field(
        ge=0, le=INTEGER_MAX, description="Offsets that are committed but not archived."
    )
    last_commit: Timestamp | None = option("When the archive was last seen to advance.")


class OtherPartitions(Model):
    """Partitions that are not listed, together."""

    partitions: int = Field(ge=0, le=INTEGER_MAX, description="Number of partitions.")
    lag: int = Field(ge=0, le=INTEGER_MAX, description="Sum of their lags.")


class PipelineRun(Model):
    """The run that ended last."""

    ended: Timestamp | None = option("When it ended.")
    exit_code: int = Field(
        ge=-1, le=2**31 - 1, description="Its exit code, as for `liftbridge spark`."
    )
    message: LongText = Field(default="", description="End of its log, if it failed.")


class PipelineStatus(Status):
    """Observed state of the pipeline."""

    workload: Note | None = option("What runs it, such as `Deployment/orders-pipeline`.")
    cursor: Note | None = option(
        "Cursor at the brokers that holds the first offset not archived, such as "
        "`archive/NAMESPACE/NAME`; `retention_cursor` of a stream may name it."
    )
    lag: int | None = option(
        "Offsets of all partitions that are committed but not archived.", ge=0, le=INTEGER_MAX
    )
    partitions: Annotated[
        tuple[PipelinePartition, ...],
        ListOf(PARTITIONS_SHOWN_MAX, keys=("stream", "partition")),
    ] = Field(default=(), description="Partitions; if there are more, those with the largest lags.")
    others: OtherPartitions | None = option("Partitions that are not listed, together.")
    last_run: PipelineRun | None = option("The run that ended last.")
    conditions: Conditions = Field(default=(), description="Conditions of the pipeline.")
