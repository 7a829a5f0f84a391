"""`LiftbridgeCluster`: its spec."""

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.access import Access, Encryption
from liftbridge_operator.model.base import (
    GROUP,
    VERSION,
    ListOf,
    Model,
    Rule,
    RuleReason,
    option,
    section,
)
from liftbridge_operator.model.broker_config import BrokerConfig
from liftbridge_operator.model.nats import Nats
from liftbridge_operator.model.network import Listener, NetworkPolicy, Tls
from liftbridge_operator.model.operations import (
    BrokerResources,
    Disruption,
    ImageName,
    Monitoring,
    PodTemplate,
    Replacement,
    Scaling,
    StreamAccess,
    Topology,
)
from liftbridge_operator.model.storage import Storage

BROKERS_MAX: Final = 100
NAME_LENGTH_MAX: Final = 40
FEATURE_LEVELS: Final[dict[int, str]] = {1: "0.1.0", 2: "0.1.0", 3: "0.1.0", 4: "0.1.0"}
"""First version of brokers that knows each feature level."""

_VERSION_PATTERN: Final = r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}(-[0-9A-Za-z.-]{1,32})?$"


def _number(version: str) -> str:
    """CEL expression of a version as one number, without a suffix after `-`."""
    part = f"{version}.split('-')[0].split('.')"
    return f"(int({part}[0]) * 100000000 + int({part}[1]) * 10000 + int({part}[2]))"


def feature_rules() -> tuple[Rule, ...]:
    """Rules that a feature level needs brokers whose version knows it."""
    return tuple(
        Rule(
            f"feature-level-{level}",
            f"!has(self.featureLevel) || self.featureLevel < {level} || "
            f"{_number('self.version')} >= {_number(repr(version))}",
            f"feature level {level} needs brokers of version {version} or later",
            field=".version",
        )
        for level, version in FEATURE_LEVELS.items()
        if version != FEATURE_LEVELS.get(level - 1)
    )


TAKEN_LISTENERS: Final = ("brokers", "pipeline")
"""Names that no listener may have: `CLUSTER-brokers` is the Service of the brokers themselves, and
`NAME-pipeline` that of a pipeline."""

_IS_APART: Final = f"(one.name.matches('^[a-z0-9]+$') && !(one.name in {list(TAKEN_LISTENERS)}))"
"""CEL expression: the Services of listener `one` share no name with those of another resource. With
a hyphen, `x` with `y-internal` would have the names of `x-y` with `internal`."""

_APART: Final = (
    "the name of a new listener has only a-z and 0-9 and is none of "
    f"{', '.join(TAKEN_LISTENERS)}: its Services could have the names of another resource's"
)


class ClusterSpec(Model):
    """Desired state of the cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *feature_rules(),
        Rule(
            "feature-level-up",
            "!has(oldSelf.featureLevel) || "
            "(has(self.featureLevel) && self.featureLevel >= oldSelf.featureLevel)",
            "a feature level can be raised, but never lowered or removed",
            field=".featureLevel",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "listener-ports-differ",
            "self.listeners.all(one, self.listeners.exists_one(other, other.port == one.port))",
            "each listener needs its own port",
            field=".listeners",
        ),
        Rule(
            "listener-node-ports-differ",
            "self.listeners.all(one, !has(one.brokers) || "
            "one.brokers.filter(entry, has(entry.nodePort)).all(entry, "
            "one.brokers.exists_one(same, has(same.nodePort) && "
            "same.nodePort == entry.nodePort) && "
            "self.listeners.exists_one(other, has(other.brokers) && other.brokers.exists(same, "
            "has(same.nodePort) && same.nodePort == entry.nodePort))))",
            "a nodePort is used more than once",
            field=".listeners",
        ),
        Rule(
            "listener-names-apart",
            f"self.listeners.all(one, {_IS_APART} || "
            "oldSelf.listeners.exists(before, before.name == one.name))",
            _APART,
            field=".listeners",
        ),
        Rule(
            "listener-tls",
            "self.tls.mode != 'Disabled' || !self.listeners.exists(listener, listener.tls)",
            "a listener with tls needs a spec.tls.mode other than Disabled",
            field=".listeners",
        ),
        Rule(
            "access-names",
            "!has(self.access) || !self.access.enabled || self.tls.clientAuth == 'Required' || "
            "has(self.access.jwt) || self.access.tokens",
            "access.enabled needs tls.clientAuth Required, access.jwt or access.tokens: else no "
            "client has a name",
            field=".access.enabled",
        ),
        Rule(
            "access-tls",
            "!has(self.access) || !(self.access.enabled || has(self.access.jwt) || "
            "self.access.tokens || !self.access.anonymous) || "
            "self.listeners.exists(listener, listener.tls)",
            "access needs a listener with tls: clients prove who they are over TLS only",
            field=".access",
        ),
        Rule(
            "access-proofs",
            "!has(self.access) || self.access.anonymous || self.tls.clientAuth != 'None' || "
            "has(self.access.jwt) || self.access.tokens",
            "without access.anonymous, clients need a proof: set tls.clientAuth, access.jwt or "
            "access.tokens",
            field=".access.anonymous",
        ),
        Rule(
            "encryption-kept",
            "!has(oldSelf.encryption) || has(self.encryption)",
            "encryption cannot be removed: brokers without master keys could not read their "
            "encrypted streams",
            field=".encryption",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "min-isr-of-brokers",
            "!has(self.config.streams.minISR) || self.config.streams.minISR <= self.replicas",
            "config.streams.minISR is greater than replicas",
            field=".config.streams.minISR",
        ),
        Rule(
            "cursors-of-brokers",
            "!has(self.config.cursors.replicationFactor) || "
            "self.config.cursors.replicationFactor <= self.replicas",
            "config.cursors.replicationFactor is greater than replicas",
            field=".config.cursors.replicationFactor",
        ),
        Rule(
            "grace-covers-drain",
            "duration(self.disruption.drainTimeout).getSeconds() + 15 <= "
            "self.podTemplate.terminationGracePeriodSeconds",
            "podTemplate.terminationGracePeriodSeconds must be at least 15 s more than "
            "disruption.drainTimeout",
            field=".podTemplate.terminationGracePeriodSeconds",
        ),
        Rule(
            "replaced-brokers-exist",
            "!has(self.replaceBrokers) || "
            "self.replaceBrokers.all(entry, entry.broker < self.replicas)",
            "replaceBrokers names a broker that does not exist",
            field=".replaceBrokers",
        ),
    )
    version: Annotated[str, StringConstraints(max_length=48, pattern=_VERSION_PATTERN)] = Field(
        description="Version of the brokers, such as `0.1.0`; determines the default image."
    )
    image: ImageName | None = option(
        "Image of the brokers with tag or digest, instead of the default one for `version`."
    )
    feature_level: int | None = option(
        "Decision rules that brokers use, raised once all of them know the level; there is then no "
        "way back to versions that do not. Not raised by default.",
        ge=1,
        le=max(FEATURE_LEVELS),
    )
    replicas: int = Field(
        default=3,
        ge=1,
        le=BROKERS_MAX,
        description="Number of brokers. Brokers are emptied before they are removed.",
    )
    suspend: bool = Field(
        default=False,
        description="Whether all brokers are stopped, in order and with everything kept.",
    )
    paused: bool = Field(
        default=False,
        description="Whether the operator changes nothing and only reports the status.",
    )
    nats: Nats = Field(description="How brokers reach NATS.")
    storage: Storage = Field(description="Volumes of the brokers.")
    config: BrokerConfig = section(BrokerConfig, "Settings of the brokers.")
    listeners: Annotated[tuple[Listener, ...], ListOf(8, keys=("name",), items_min=1)] = Field(
        default=(Listener(name="internal"),),
        description="Ports for clients, and their Services.",
        json_schema_extra={"default": [{"name": "internal"}]},
    )
    tls: Tls = section(Tls, "Certificates for client connections.")
    access: Access | None = option("Who clients are, and whether access rules are in force.")
    encryption: Encryption | None = option("Master keys of encrypted streams.")
    network_policy: NetworkPolicy = section(NetworkPolicy, "Allowed connections to the brokers.")
    resources: BrokerResources = section(BrokerResources, "Resources of each broker.")
    pod_template: PodTemplate = section(PodTemplate, "Additions to the pods.")
    topology: Topology = section(Topology, "How brokers are spread over nodes and zones.")
    disruption: Disruption = section(Disruption, "When and how brokers are restarted.")
    scaling: Scaling = section(Scaling, "What happens when brokers are added or removed.")
    replace_brokers: Annotated[tuple[Replacement, ...], ListOf(16, keys=("broker",))] = Field(
        default=(),
        description="Brokers that start over on an empty volume because their own is lost.",
    )
    monitoring: Monitoring = section(Monitoring, "Objects for the Prometheus operator.")
    streams: StreamAccess = section(
        StreamAccess, "Namespaces whose `Stream` resources may name this cluster."
    )


CLUSTER_RULES: Final = (
    Rule(
        "cluster-name",
        f"size(self.metadata.name) <= {NAME_LENGTH_MAX} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"the name of a cluster has at most {NAME_LENGTH_MAX} characters, a-z, 0-9 and -, and "
        "begins with a letter: names of pods and Services are derived from it",
    ),
    Rule(
        "cluster-names-apart",
        "has(self.status) || !self.metadata.name.matches('-(internal|pipeline)$')",
        "the name of a new cluster must not end in -internal or -pipeline: its objects could have "
        "the names of those of the cluster, or of the pipeline, that is named by the part before "
        "this ending",
    ),
    Rule(
        "first-listener-names-apart",
        f"has(self.status) || self.spec.listeners.all(one, {_IS_APART})",
        _APART,
        field=".spec.listeners",
    ),
)
"""Rules about the whole object.

An object without a status is being created; objects older than a rule are exempt from it.
"""

CLUSTER_KIND: Final = "LiftbridgeCluster"
API_VERSION: Final = f"{GROUP}/{VERSION}"
