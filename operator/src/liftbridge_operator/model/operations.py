"""What pods contain, where they run, and when they may be disrupted."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, Rule, RuleReason, option, section
from liftbridge_operator.model.kube import (
    Affinity,
    Annotations,
    EnvVar,
    ExtraMount,
    ExtraVolume,
    Labels,
    Toleration,
    TopologySpreadConstraint,
)
from liftbridge_operator.model.values import (
    Cpu,
    Duration,
    DurationText,
    LabelOrAny,
    LabelValue,
    ObjectName,
    QualifiedName,
    QuantityText,
    Size,
    Text,
)

_OWN_KEYS = ("liftbridge.io/", "app.kubernetes.io/")


def _foreign(field: str) -> str:
    tests = " || ".join(f"key.startsWith('{prefix}')" for prefix in _OWN_KEYS)
    return f"!has(self.{field}) || !self.{field}.exists(key, {tests})"


class PodMetadata(Model):
    """Labels and annotations of pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pod-labels-own",
            _foreign("labels"),
            "labels of liftbridge.io/ and app.kubernetes.io/ are reserved for the operator",
            field=".labels",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "pod-annotations-own",
            _foreign("annotations"),
            "annotations of liftbridge.io/ and app.kubernetes.io/ are reserved for the operator",
            field=".annotations",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    labels: Labels = Field(default={}, description="Labels to add to pods.")
    annotations: Annotations = Field(default={}, description="Annotations to add to pods.")


class PodSecurity(Model):
    """Numeric identities; everything else is as the restricted profile requires."""

    run_as_user: int = Field(
        default=10_001, ge=1, le=2_147_483_647, description="User that processes run as; never 0."
    )
    run_as_group: int = Field(
        default=10_001, ge=1, le=2_147_483_647, description="Group that processes run as; never 0."
    )
    fs_group: int = Field(
        default=10_001, ge=1, le=2_147_483_647, description="Group that volumes belong to."
    )


class Requests(Model):
    """Resource requests of each broker."""

    cpu: Cpu = Field(default=QuantityText("500m"), description="Cores, such as `500m` or `2`.")
    memory: Size = Field(default=QuantityText("1Gi"), description="Memory, such as `1Gi`.")


class Limits(Model):
    """Resource limits of each broker."""

    cpu: Cpu | None = option(
        "Cores; unlimited by default, since a throttled broker looks like a dead one."
    )
    memory: Size = Field(default=QuantityText("1Gi"), description="Memory, such as `1Gi`.")


class BrokerResources(Model):
    """Resources of each broker; changes are applied without a restart where possible."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "resources-memory",
            "quantity(string(self.requests.memory)).compareTo("
            "quantity(string(self.limits.memory))) <= 0",
            "requests.memory is greater than limits.memory",
            field=".requests",
        ),
        Rule(
            "resources-cpu",
            "!has(self.limits.cpu) || quantity(string(self.requests.cpu)).compareTo("
            "quantity(string(self.limits.cpu))) <= 0",
            "requests.cpu is greater than limits.cpu",
            field=".requests",
        ),
    )
    requests: Requests = section(Requests, "Resource requests of each broker.")
    limits: Limits = section(Limits, "Resource limits of each broker.")


class PodTemplate(Model):
    """Additions to the pods: a typed subset, without containers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "pod-mounts-known",
            "!has(self.volumeMounts) || (has(self.volumes) && self.volumeMounts.all(mount, "
            "self.volumes.exists(volume, volume.name == mount.name)))",
            "each of volumeMounts must name one of volumes",
            field=".volumeMounts",
        ),
    )
    metadata: PodMetadata = section(PodMetadata, "Labels and annotations of pods.")
    affinity: Affinity | None = option("Where pods are placed, in addition to `spec.topology`.")
    tolerations: Annotated[tuple[Toleration, ...], ListOf(32)] = Field(
        default=(), description="Taints of nodes that pods tolerate."
    )
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = Field(
        default={}, description="Labels that nodes must have."
    )
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...],
        ListOf(8, keys=("topologyKey", "whenUnsatisfiable")),
    ] = Field(default=(), description="How evenly pods are spread, in addition to `spec.topology`.")
    priority_class_name: ObjectName | None = option("Priority class of pods.")
    runtime_class_name: ObjectName | None = option("Runtime class of pods.")
    scheduler_name: ObjectName | None = option("Scheduler that places pods.")
    security: PodSecurity = section(PodSecurity, "Numeric identities of processes and volumes.")
    image_pull_secrets: Annotated[tuple[ObjectName, ...], ListOf(8, is_set=True)] = Field(
        default=(), description="Secrets with credentials of image registries."
    )
    env: Annotated[tuple[EnvVar, ...], ListOf(64, keys=("name",))] = Field(
        default=(), description="Environment variables of the broker."
    )
    volumes: Annotated[tuple[ExtraVolume, ...], ListOf(16, keys=("name",))] = Field(
        default=(), description="Volumes to add to pods."
    )
    volume_mounts: Annotated[tuple[ExtraMount, ...], ListOf(16, keys=("mountPath",))] = Field(
        default=(), description="Where these volumes are mounted in the container of the broker."
    )
    termination_grace_period_seconds: int = Field(
        default=90,
        ge=30,
        le=3_600,
        description="Seconds that a pod has to stop before it is killed; the broker hands over "
        "its leaderships in this time.",
    )


class Strictness(StrEnum):
    """Whether pods that cannot be placed as requested wait."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"
    DISABLED = "Disabled"


class Topology(Model):
    """How brokers are spread over nodes and zones."""

    zone_label: QualifiedName = Field(
        default="topology.kubernetes.io/zone",
        description="Label of nodes that names the zone; the replicas of a partition go to "
        "different zones.",
    )
    zone_spread: Strictness = Field(
        default=Strictness.PREFERRED, description="Whether brokers go to different zones."
    )
    node_spread: Strictness = Field(
        default=Strictness.PREFERRED, description="Whether brokers go to different nodes."
    )


class DisruptionMode(StrEnum):
    """Whether restarts wait for a human."""

    AUTOMATIC = "Automatic"
    APPROVAL = "Approval"


class Gate(StrEnum):
    """What must hold before a broker is restarted."""

    FULL_ISR = "FullISR"
    MIN_ISR = "MinISR"


class Weekday(StrEnum):
    """A day of the week."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


class Window(Model):
    """A time of the week when brokers may be restarted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "window-length",
            "duration(self.length) >= duration('10m') && duration(self.length) <= duration('24h')",
            "a window is 10m to 24h long",
            field=".length",
        ),
    )
    days: Annotated[tuple[Weekday, ...], ListOf(7, is_set=True)] = Field(
        default=(), description="Days it begins on; defaults to every day."
    )
    start: Annotated[
        str, StringConstraints(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    ] = Field(description="Time of day it begins at, such as `02:30`.")
    length: Duration = Field(description="How long it is open, 10m to 24h.")
    time_zone: Annotated[
        str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$")
    ] = Field(default="UTC", description="Time zone of `start`, such as `Europe/Berlin`.")


class Disruption(Model):
    """When and how brokers are restarted; always one at a time."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "catch-up-rate-min",
            "!has(self.catchUpRate) || "
            "quantity(string(self.catchUpRate)).compareTo(quantity('1Ki')) >= 0",
            "catchUpRate must be at least 1Ki",
            field=".catchUpRate",
        ),
    )
    mode: DisruptionMode = Field(
        default=DisruptionMode.AUTOMATIC,
        description="Whether restarts begin automatically or wait for the annotation "
        "`liftbridge.io/approve` with the hash of the plan.",
    )
    windows: Annotated[tuple[Window, ...], ListOf(16)] = Field(
        default=(), description="Times when restarts may begin; defaults to always."
    )
    gate: Gate = Field(
        default=Gate.FULL_ISR,
        description="What must hold before a broker is restarted: all other replicas of its "
        "partitions in sync, or only as many as a commit needs, for when a broker is lost.",
    )
    allow_unreplicated: bool | None = option(
        "Whether a broker is restarted although partitions with one replica, or the metadata, are "
        "unavailable meanwhile; defaults to true for a cluster of one broker, else to false."
    )
    drain_timeout: Duration = Field(
        default=DurationText("60s"),
        description="How long a stopping broker waits for other brokers to take over.",
    )
    report_after: Duration = Field(
        default=DurationText("10m"),
        description="How long a gate may stay closed before `Stalled` is set; it is never forced.",
    )
    catch_up_rate: Size | None = option(
        "Bytes per second that each leader sends to replicas being moved, at least 1Ki; "
        "unlimited by default."
    )


class Rebalance(StrEnum):
    """Whether partitions are moved onto new brokers."""

    AUTOMATIC = "Automatic"
    NEVER = "Never"


class Scaling(Model):
    """What happens when brokers are added or removed."""

    rebalance: Rebalance = Field(
        default=Rebalance.AUTOMATIC,
        description="Whether partitions are moved to added brokers. Brokers to be removed are "
        "always emptied.",
    )


class Replacement(Model):
    """A broker that starts over on an empty volume because its own is lost."""

    broker: int = Field(ge=0, le=99, description="Number of the broker, 0 for the first.")
    volume_uid: Annotated[
        str, StringConstraints(min_length=1, max_length=64, pattern=r"^[-0-9a-zA-Z]+$")
    ] = Field(description="`metadata.uid` of the claim to give up; done when another one is bound.")
    force: bool = Field(
        default=False,
        description="Whether the old pod counts as stopped without proof. Set it only after making "
        "sure that its node is off.",
    )


class ScrapeMonitor(Model):
    """A ServiceMonitor for the Prometheus operator."""

    enabled: bool = Field(default=False, description="Whether a ServiceMonitor is created.")
    interval: Duration = Field(default=DurationText("30s"), description="Time between two scrapes.")
    labels: Labels = Field(default={}, description="Labels by which Prometheus finds it.")


class AlertRules(Model):
    """A PrometheusRule for the Prometheus operator."""

    enabled: bool = Field(default=False, description="Whether a PrometheusRule is created.")
    labels: Labels = Field(default={}, description="Labels by which Prometheus finds it.")


class Monitoring(Model):
    """Objects for the Prometheus operator, whose CRDs must be installed."""

    service_monitor: ScrapeMonitor = section(ScrapeMonitor, "A ServiceMonitor for the brokers.")
    prometheus_rule: AlertRules = section(AlertRules, "A PrometheusRule for the brokers.")


class StreamAccess(Model):
    """Namespaces whose `Stream` resources may name this cluster."""

    allowed_namespaces: Annotated[tuple[LabelOrAny, ...], ListOf(64, is_set=True)] = Field(
        default=(),
        description="Namespaces whose `Stream` resources may name this cluster, in addition to its "
        "own; `*` for all.",
    )


ImageName = Annotated[Text, StringConstraints(max_length=512, pattern=r"^[^\s]+$")]
"""Image with its tag or digest."""
