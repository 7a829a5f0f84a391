"""The subset of Kubernetes' own types that a pod template takes, field for field as Kubernetes."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model, Rule, exactly_one, option
from liftbridge_operator.model.values import (
    Cpu,
    Label,
    LabelValue,
    LongText,
    ObjectName,
    QualifiedName,
    SecretKey,
    Size,
    Text,
)

Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=4_096)]], Field(max_length=32)
]


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class NodeOperator(StrEnum):
    """How a label of a node is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class LabelRequirement(Model):
    """One comparison of a label."""

    key: QualifiedName = Field(description="Label to compare.")
    operator: SelectorOperator = Field(description="How to compare it.")
    values: Annotated[tuple[LabelValue, ...], ListOf(32)] = Field(
        default=(), description="Values for `In` and `NotIn`; none for the others."
    )


class LabelSelector(Model):
    """Objects by their labels; all conditions must hold."""

    match_labels: Labels = Field(default={}, description="Labels and their required values.")
    match_expressions: Annotated[tuple[LabelRequirement, ...], ListOf(16)] = Field(
        default=(), description="Comparisons of labels."
    )


class NodeRequirement(Model):
    """One comparison of a label or field of a node."""

    key: QualifiedName = Field(description="Label or field to compare.")
    operator: NodeOperator = Field(description="How to compare it.")
    values: Annotated[tuple[LabelValue, ...], ListOf(32)] = Field(
        default=(),
        description="Values for `In` and `NotIn`, one number for `Gt` and `Lt`, else none.",
    )


class NodeSelectorTerm(Model):
    """Nodes for which all comparisons hold."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], ListOf(16)] = Field(
        default=(), description="Comparisons of labels of the node."
    )
    match_fields: Annotated[tuple[NodeRequirement, ...], ListOf(4)] = Field(
        default=(), description="Comparisons of fields of the node, such as `metadata.name`."
    )


class NodeSelector(Model):
    """Nodes for which one of the terms holds."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], ListOf(16, items_min=1)] = Field(
        description="Terms of which one must hold."
    )


class PreferredNodes(Model):
    """Nodes that are preferred, and how much."""

    weight: int = Field(ge=1, le=100, description="How much the term counts.")
    preference: NodeSelectorTerm = Field(description="Nodes that are preferred.")


class NodeAffinity(Model):
    """Nodes that pods may or should run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = option(
        "Nodes that pods may run on, and no others."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], ListOf(16)
    ] = Field(default=(), description="Nodes that are preferred.")


class PodAffinityTerm(Model):
    """Pods to be near to or far from, and what counts as near."""

    label_selector: LabelSelector | None = option("Pods to select; defaults to none.")
    namespace_selector: LabelSelector | None = option("Namespaces of these pods, by labels.")
    namespaces: Annotated[tuple[Label, ...], ListOf(16)] = Field(
        default=(),
        description="Namespaces of these pods, by name; empty for the namespace of the resource.",
    )
    topology_key: QualifiedName = Field(
        description="Label of nodes; nodes with the same value are near to each other."
    )


class WeightedPodAffinityTerm(Model):
    """Pods that should be near or far, and how much."""

    weight: int = Field(ge=1, le=100, description="How much the term counts.")
    pod_affinity_term: PodAffinityTerm = Field(description="Pods to select.")


class PodAffinity(Model):
    """Pods that brokers are placed near to."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], ListOf(16)
    ] = Field(default=(), description="Terms that must hold.")
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[WeightedPodAffinityTerm, ...], ListOf(16)
    ] = Field(default=(), description="Terms that are preferred.")


class PodAntiAffinity(Model):
    """Pods that brokers are placed far from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], ListOf(16)
    ] = Field(default=(), description="Terms that must hold.")
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[WeightedPodAffinityTerm, ...], ListOf(16)
    ] = Field(default=(), description="Terms that are preferred.")


class Affinity(Model):
    """Where pods may and should be placed."""

    node_affinity: NodeAffinity | None = option("Nodes that pods may or should run on.")
    pod_affinity: PodAffinity | None = option("Pods that brokers are placed near to.")
    pod_anti_affinity: PodAntiAffinity | None = option("Pods that brokers are placed far from.")


class TolerationOperator(StrEnum):
    """How a taint is compared."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A taint of nodes that pods tolerate."""

    key: QualifiedName | None = option("Key of the taint; defaults to every key.")
    operator: TolerationOperator = Field(
        default=TolerationOperator.EQUAL, description="How the taint is compared."
    )
    value: LabelValue | None = option("Value of the taint, for `Equal`.")
    effect: TaintEffect | None = option("Effect of the taint; defaults to every effect.")
    toleration_seconds: int | None = option(
        "How long a pod stays on a node with a `NoExecute` taint; defaults to forever.",
        ge=0,
        le=2_592_000,
    )


class WhenUnsatisfiable(StrEnum):
    """What happens to a pod that would violate a spread."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class TopologySpreadConstraint(Model):
    """How evenly pods are spread."""

    max_skew: int = Field(
        ge=1, le=100, description="Largest difference in pod counts between two domains."
    )
    topology_key: QualifiedName = Field(
        description="Label of nodes; nodes with the same value are one domain."
    )
    when_unsatisfiable: WhenUnsatisfiable = Field(
        description="What happens to a pod that would violate the spread."
    )
    label_selector: LabelSelector | None = option(
        "Pods to count; defaults to the brokers of this cluster."
    )
    min_domains: int | None = option("Minimum number of domains.", ge=1, le=100)


class ResourceAmounts(Model):
    """Amounts of resources of a container."""

    cpu: Cpu | None = option("Cores, such as `500m` or `2`.")
    memory: Size | None = option("Memory, such as `1Gi`.")
    ephemeral_storage: Size | None = option("Space on the node outside volumes, such as `1Gi`.")


class SecretKeyRef(Model):
    """One key of a Secret in the namespace of the resource."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(description="Key in it.")


class ConfigMapKeyRef(Model):
    """One key of a ConfigMap in the namespace of the resource."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: SecretKey = Field(description="Key in it.")


class EnvSource(Model):
    """Where the value of a variable comes from."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "env-source",
            ("secretKeyRef", "configMapKeyRef"),
            "exactly one of secretKeyRef and configMapKeyRef must be set",
        ),
    )
    secret_key_ref: SecretKeyRef | None = option("Key of a Secret.")
    config_map_key_ref: ConfigMapKeyRef | None = option("Key of a ConfigMap.")


class EnvVar(Model):
    """An environment variable of the broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "env-value", ("value", "valueFrom"), "exactly one of value and valueFrom must be set"
        ),
        Rule(
            "env-owned",
            "!self.name.startsWith('LIFTBRIDGE_')",
            "broker settings belong in spec.config",
            field=".name",
        ),
    )
    name: Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = (
        Field(description="Name of the variable; must not begin with `LIFTBRIDGE_`.")
    )
    value: LongText | None = option("Its value.")
    value_from: EnvSource | None = option("Where its value comes from.")


class SecretVolume(Model):
    """A Secret as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")
    optional: bool = Field(default=False, description="Whether pods start without it.")


class ConfigMapVolume(Model):
    """A ConfigMap as files."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    optional: bool = Field(default=False, description="Whether pods start without it.")


class EmptyDirVolume(Model):
    """A directory with the lifetime of the pod."""

    size_limit: Size | None = option("Maximum size.")


class ExtraVolume(Model):
    """A volume in addition to those of the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "volume-source",
            ("secret", "configMap", "emptyDir"),
            "exactly one of secret, configMap and emptyDir must be set",
        ),
        Rule(
            "volume-name",
            "!self.name.startsWith('liftbridge-')",
            "names that begin with liftbridge- are reserved for the operator",
            field=".name",
        ),
    )
    name: Label = Field(description="Name of the volume; must not begin with `liftbridge-`.")
    secret: SecretVolume | None = option("A Secret as files.")
    config_map: ConfigMapVolume | None = option("A ConfigMap as files.")
    empty_dir: EmptyDirVolume | None = option("A directory with the lifetime of the pod.")


class ExtraMount(Model):
    """Where a volume is mounted in the container of the broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "mount-path",
            "self.mountPath.startsWith('/extra/') && !self.mountPath.contains('..')",
            "extra volumes must be mounted below /extra/",
            field=".mountPath",
        ),
    )
    name: Label = Field(description="Name of the volume.")
    mount_path: Text = Field(description="Directory it is mounted at, below `/extra/`.")
    read_only: bool = Field(default=True, description="Whether the mount is read-only.")
