"""`StreamPipeline`: one job of Spark on streams of a cluster.

The resource says which command of `liftbridge spark` runs, when and where. Everything that a run
needs to remember lies in the archive and at the brokers, so pods may end at any moment.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, Rule, RuleReason, option, section
from liftbridge_operator.model.cluster_status import Name, Note
from liftbridge_operator.model.conditions import Conditions
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
"""Settings of Spark that follow from other fields."""


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
    endpoint: LongText | None = option("Address of an object store of the kind S3.")
    region: Text | None = option("Region of the bucket.")
    allow_http: bool | None = option("Whether the object store may be reached without TLS.")


class PipelineSink(Model):
    """Where a replay writes."""

    stream: StreamName = Field(description="Name of the stream that is written; it exists.")
    preserve_offsets: bool = Field(
        default=True, description="Whether each record gets the offset that it had."
    )


class Schedule(Model):
    """When runs begin; none begins while one is under way."""

    cron: Annotated[
        str,
        StringConstraints(
            max_length=128, pattern=r"^(@[a-z]{1,16}|[-0-9A-Za-z*,/?]+( [-0-9A-Za-z*,/?]+){4})$"
        ),
    ] = Field(description="Minute, hour, day of the month, month and day of the week, as of cron.")
    time_zone: (
        Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z][-+_A-Za-z0-9/]*$")]
        | None
    ) = option("Name of a time zone such as `Europe/Berlin`; that of the control plane without it.")


class Executors(Model):
    """Pods beside the driver, which Spark makes itself."""

    instances: int = Field(default=2, ge=1, le=100, description="Number of executors.")
    cores: int = Field(default=1, ge=1, le=64, description="Tasks of each at the same time.")
    memory: Size = Field(
        default=QuantityText("2Gi"),
        description="Memory of each, for the JVM and the Python workers together.",
    )


class Script(Model):
    """A Python file in a ConfigMap."""

    config_map_name: ObjectName = Field(description="Name of the ConfigMap.")
    key: SecretKey = Field(description="Key of the file in it, such as `job.py`.")


class PipelineRequests(Model):
    """What the pod is granted."""

    cpu: Cpu = Field(default=QuantityText("500m"), description="Cores, such as `500m` or `2`.")
    memory: Size = Field(default=QuantityText("2Gi"), description="Memory, such as `2Gi`.")


class PipelineLimits(Model):
    """What the pod may not exceed."""

    cpu: Cpu | None = option(
        "Cores; as many tasks run at the same time, two without it. Not limited without it."
    )
    memory: Size = Field(
        default=QuantityText("2Gi"),
        description="Memory; two fifths are the heap of the JVM, the rest is for Python.",
    )


class PipelineResources(Model):
    """Resources of the pod, which with `Executors` is the driver."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pipeline-memory",
            "quantity(string(self.requests.memory)).compareTo("
            "quantity(string(self.limits.memory))) <= 0",
            "requests.memory is more than limits.memory",
            field=".requests",
        ),
        Rule(
            "pipeline-cpu",
            "!has(self.limits.cpu) || quantity(string(self.requests.cpu)).compareTo("
            "quantity(string(self.limits.cpu))) <= 0",
            "requests.cpu is more than limits.cpu",
            field=".requests",
        ),
    )
    requests: PipelineRequests = section(PipelineRequests, "What the pod is granted.")
    limits: PipelineLimits = section(PipelineLimits, "What the pod may not exceed.")


class State(Model):
    """A volume that outlives pods."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim that is mounted at `/state`; with `Executors` on every "
        "node that runs one."
    )


class Credentials(Model):
    """Secrets that the job is given, and who it is."""

    secrets: Annotated[tuple[ObjectName, ...], ListOf(8, is_set=True)] = Field(
        default=(),
        description="Secrets whose keys become variables of the environment, such as "
        "`AWS_ACCESS_KEY_ID`.",
    )
    service_account_annotations: Annotations = Field(
        default={},
        description="Annotations of the ServiceAccount of the pods, by which clouds know them.",
    )
    tls_secret_name: ObjectName | None = option(
        "Secret with `ca.crt`, and `tls.crt` and `tls.key` where brokers ask for a certificate. "
        "Without it the authority of the cluster is trusted, if it lies in the same namespace."
    )


class FailurePolicy(Model):
    """What happens when something goes wrong."""

    fail_on_data_loss: bool = Field(
        default=True,
        description="Whether a run fails when records are gone that were not archived; else the "
        "gap is written into the archive.",
    )
    retries: int = Field(
        default=3,
        ge=0,
        le=100,
        description="New pods for a run that failed, each after a longer pause; a continuous "
        "pipeline is started again without end.",
    )


class PipelineSpec(Model):
    """What the pipeline does."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pipeline-streams",
            "self.type == 'Custom' || (has(self.source.streams) && "
            "(size(self.source.streams) == 1 || "
            "(self.type == 'Archive' && size(self.source.streams) > 1)))",
            "source.streams needs one stream, or some for type Archive",
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
            "sink is needed for type Replay, and for no other",
            field=".sink",
        ),
        Rule(
            "pipeline-script",
            "(self.type == 'Custom') == has(self.script)",
            "script is needed for type Custom, and for no other",
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
            "schedule is needed for mode Scheduled, and for no other",
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
            "executors is needed for runtime Executors, and for no other",
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
            f"these settings of Spark follow from other fields: {', '.join(OWNED_CONF)}",
            field=".sparkConf",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "pipeline-conf-names",
            "!has(self.sparkConf) || self.sparkConf.all(name, "
            "name.matches('^spark[.][A-Za-z0-9_.-]+$'))",
            "names of settings of Spark begin with spark.",
            field=".sparkConf",
        ),
    )
    type: PipelineType = Field(description="What it does.")
    cluster_ref: ClusterRef = Field(description="The cluster whose streams it is about.")
    source: PipelineSource = section(PipelineSource, "What is read.")
    archive: Archive | None = option(
        "The archive that is written, read, or compared with the brokers."
    )
    sink: PipelineSink | None = option("Where a replay writes.")
    script: Script | None = option("The job of type `Custom`.")
    compaction: Compaction | None = option("What a compaction does; `SmallFiles` without it.")
    mode: PipelineMode = Field(
        description="When it runs: once, at each moment of a schedule, or without end. A run is "
        "made again once `Once` is given another specification."
    )
    schedule: Schedule | None = option("When runs begin, for mode `Scheduled`.")
    interval: Duration | None = option(
        "Pause between two rounds of an archive in mode `Continuous`; `60s` without it."
    )
    runtime: Runtime = Field(
        default=Runtime.LOCAL,
        description="Whether tasks run in the one pod, which has no rights at the API server, or "
        "in pods that this one makes.",
    )
    executors: Executors | None = option("The other pods, for runtime `Executors`.")
    image: Text | None = option("Image of the pods; that of the operator's version without it.")
    image_pull_secrets: Annotated[tuple[ObjectName, ...], ListOf(8, is_set=True)] = Field(
        default=(), description="Secrets with credentials of registries."
    )
    resources: PipelineResources = section(
        PipelineResources, "Resources of the pod, which with `Executors` is the driver."
    )
    spark_conf: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=1_024, pattern=r"^[ -~]*$")]],
        Field(max_length=64),
    ] = Field(default={}, description="Further settings of Spark.")
    state: State | None = option("A volume that outlives pods.")
    credentials: Credentials = section(Credentials, "Secrets that the job is given, and who it is.")
    failure_policy: FailurePolicy = section(
        FailurePolicy, "What happens when something goes wrong."
    )
    suspend: bool = Field(
        default=False,
        description="Whether nothing is to run. A run of a schedule that is under way comes to its "
        "end; any other is stopped, and goes on later.",
    )


PIPELINE_RULES: Final = (
    Rule(
        "pipeline-name",
        f"size(self.metadata.name) <= {NAME_LENGTH_MAX} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"the name of a pipeline has at most {NAME_LENGTH_MAX} characters, a-z, 0-9 and -, and "
        "begins with a letter: names of pods and Services are made of it",
    ),
)
"""Rules about the whole object."""


class PipelinePartition(Model):
    """How far the archive of one partition has come."""

    stream: Name = Field(description="Name of the stream.")
    partition: int = Field(ge=0, le=2**31 - 1, description="Number of the partition.")
    archived_offset: int = Field(
        ge=-1, le=INTEGER_MAX, description="Last offset that is archived; -1 for none."
    )
    high_watermark: int = Field(
        ge=0, le=INTEGER_MAX, description="First offset that is not committed yet."
    )
    lag: int = Field(
        ge=0, le=INTEGER_MAX, description="Offsets that are committed and not archived."
    )
    last_commit: Timestamp | None = option("When the archive was last seen to come further.")


class OtherPartitions(Model):
    """Partitions that are not listed, together."""

    partitions: int = Field(ge=0, le=INTEGER_MAX, description="How many.")
    lag: int = Field(ge=0, le=INTEGER_MAX, description="Sum of their lags.")


class PipelineRun(Model):
    """The run that ended last."""

    ended: Timestamp | None = option("When it ended.")
    exit_code: int = Field(
        ge=-1, le=2**31 - 1, description="Its exit code, as of `liftbridge spark`."
    )
    message: LongText = Field(default="", description="End of its log, when it failed.")


class PipelineStatus(Model):
    """What the operator tells of a pipeline."""

    observed_generation: int = Field(
        default=-1,
        ge=-1,
        le=INTEGER_MAX,
        description="`metadata.generation` that all this is about; -1 before the first look.",
    )
    workload: Note | None = option("What runs it, such as `Deployment/orders-pipeline`.")
    cursor: Note | None = option(
        "Cursor at the brokers that has the first offset not archived, such as "
        "`archive/NAMESPACE/NAME`; `retention_cursor` of a stream may name it."
    )
    lag: int | None = option(
        "Offsets of all partitions that are committed and not archived.", ge=0, le=INTEGER_MAX
    )
    partitions: Annotated[
        tuple[PipelinePartition, ...],
        ListOf(PARTITIONS_SHOWN_MAX, keys=("stream", "partition")),
    ] = Field(
        default=(), description="Partitions; where there are more, those with the largest lags."
    )
    others: OtherPartitions | None = option("Partitions that are not listed, together.")
    last_run: PipelineRun | None = option("The run that ended last.")
    conditions: Conditions = Field(default=(), description="Claims about the pipeline.")
