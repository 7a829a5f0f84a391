"""Where clients reach the brokers, how they are protected, and who may connect."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import (
    ListOf,
    Model,
    Rule,
    RuleReason,
    option,
)
from liftbridge_operator.model.kube import Annotations, Labels, LabelSelector, SecretKeyRef
from liftbridge_operator.model.values import (
    Duration,
    DurationText,
    LongText,
    ObjectName,
    Text,
)

CLIENT_PORT: Final = 9292
METRICS_PORT: Final = 9393
ADMIN_PORT: Final = 9494
NATS_PORTS: Final = (4222, 6222, 8222)
OWN_PORTS: Final = (METRICS_PORT, ADMIN_PORT, *NATS_PORTS)
"""Ports in the pod that no listener may take: metrics, operators, embedded NATS."""

Cidr = Annotated[
    str,
    StringConstraints(
        max_length=49, pattern=r"^([0-9.]{7,15}/[0-9]{1,2}|[0-9a-fA-F:.]{2,45}/[0-9]{1,3})$"
    ),
]


class ListenerType(StrEnum):
    """How clients reach a listener."""

    INTERNAL = "Internal"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(StrEnum):
    """Whether nodes forward connections to brokers on other nodes."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class BrokerAddress(Model):
    """Settings of a listener for one broker."""

    broker: int = Field(ge=0, le=99, description="Number of the broker, 0 for the first.")
    advertised_host: LongText | None = option(
        "Host that is advertised to clients for this broker.", max_length=253
    )
    node_port: int | None = option(
        "Port on every node, for `NodePort` and `LoadBalancer`; by default Kubernetes chooses.",
        ge=1,
        le=65_535,
    )
    annotations: Annotations = Field(
        default={}, description="Annotations of the Service of this broker."
    )


class Listener(Model):
    """A port of every broker for clients, with its Services."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "listener-own-ports",
            f"!(self.port in {list(OWN_PORTS)})",
            "this port is reserved by the broker: "
            f"{METRICS_PORT} metrics, {ADMIN_PORT} operators, "
            f"{', '.join(map(str, NATS_PORTS))} embedded NATS",
            field=".port",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "listener-node-ports",
            "self.type != 'Internal' || !has(self.brokers) || "
            "self.brokers.all(entry, !has(entry.nodePort))",
            "an Internal listener has no node ports",
            field=".brokers",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "listener-load-balancer",
            "self.type == 'LoadBalancer' || !(has(self.loadBalancerClass) || "
            "has(self.loadBalancerSourceRanges))",
            "loadBalancerClass and loadBalancerSourceRanges are for type LoadBalancer",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "listener-traffic-policy",
            "self.type != 'Internal' || !has(self.externalTrafficPolicy)",
            "externalTrafficPolicy is for types NodePort and LoadBalancer",
            field=".externalTrafficPolicy",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    name: Annotated[
        str, StringConstraints(max_length=11, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    ] = Field(description="Name of the listener; part of the names of its Services.")
    type: ListenerType = Field(
        default=ListenerType.INTERNAL,
        description="How clients reach it: through Services inside the cluster, a port on every "
        "node, or a load balancer for each broker.",
    )
    port: int = Field(
        default=CLIENT_PORT, ge=1_024, le=65_535, description="Port in the pods and of Services."
    )
    tls: bool = Field(
        default=False, description="Whether it uses TLS, with the certificates of `spec.tls`."
    )
    external_traffic_policy: TrafficPolicy | None = option(
        "Whether nodes forward connections to brokers on other nodes; defaults to `Cluster`."
    )
    load_balancer_class: Text | None = option("Class of the load balancers.")
    load_balancer_source_ranges: Annotated[tuple[Cidr, ...], ListOf(32)] = Field(
        default=(), description="Addresses that load balancers admit; defaults to all."
    )
    annotations: Annotations = Field(
        default={}, description="Annotations of all Services of this listener."
    )
    labels: Labels = Field(default={}, description="Labels of all Services of this listener.")
    brokers: Annotated[tuple[BrokerAddress, ...], ListOf(100, keys=("broker",))] = Field(
        default=(), description="Settings for individual brokers."
    )


class TlsMode(StrEnum):
    """Where the certificates of the brokers come from."""

    DISABLED = "Disabled"
    GENERATED = "Generated"
    CERT_MANAGER = "CertManager"
    SECRET = "Secret"  # noqa: S105 - a mode


class ClientAuth(StrEnum):
    """Whether clients present certificates, which are verified in any case."""

    NONE = "None"
    OPTIONAL = "Optional"
    REQUIRED = "Required"


class TlsVersion(StrEnum):
    """Lowest version of TLS."""

    V1_2 = "1.2"
    V1_3 = "1.3"


class IssuerKind(StrEnum):
    """Whether an issuer belongs to one namespace."""

    ISSUER = "Issuer"
    CLUSTER_ISSUER = "ClusterIssuer"


class IssuerRef(Model):
    """An issuer of cert-manager."""

    name: ObjectName = Field(description="Name of the issuer.")
    kind: IssuerKind = Field(
        default=IssuerKind.ISSUER, description="Whether it is of this namespace or cluster-wide."
    )
    group: ObjectName = Field(default="cert-manager.io", description="API group of the issuer.")


class Tls(Model):
    """Certificates for clients; brokers, NATS routes and operators always have their own."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "tls-issuer",
            "(self.mode == 'CertManager') == has(self.issuerRef)",
            "issuerRef must be set for mode CertManager, and only then",
            field=".issuerRef",
        ),
        Rule(
            "tls-secret",
            "(self.mode == 'Secret') == has(self.secretName)",
            "secretName must be set for mode Secret, and only then",
            field=".secretName",
        ),
        Rule(
            "tls-client-auth",
            "self.clientAuth == 'None' || self.mode != 'Disabled'",
            "clientAuth needs a mode other than Disabled",
            field=".clientAuth",
        ),
        Rule(
            "tls-client-ca",
            "!has(self.clientCA) || self.clientAuth != 'None'",
            "clientCA is for clientAuth Optional and Required",
            field=".clientCA",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "tls-client-ca-needed",
            "self.clientAuth == 'None' || self.mode == 'Generated' || has(self.clientCA)",
            "clientAuth needs clientCA unless mode is Generated",
            field=".clientCA",
            reason=RuleReason.REQUIRED,
        ),
        Rule(
            "tls-renewal",
            "duration(self.renewBefore) + duration(self.overlap) < duration(self.duration)",
            "renewBefore and overlap together must be shorter than duration",
            field=".renewBefore",
        ),
        Rule(
            "tls-duration-least",
            "duration(self.duration) >= duration('60s') && "
            "duration(self.renewBefore) >= duration('10s')",
            "duration must be at least 60s, and renewBefore at least 10s",
            field=".duration",
        ),
    )
    mode: TlsMode = Field(
        default=TlsMode.DISABLED,
        description="Where the certificates come from: nowhere, a CA of this cluster, "
        "cert-manager, or a Secret that is managed elsewhere.",
    )
    issuer_ref: IssuerRef | None = option("Issuer of cert-manager, for mode `CertManager`.")
    secret_name: ObjectName | None = option(
        "Secret of type `kubernetes.io/tls` with `tls.crt`, `tls.key` and `ca.crt`, for mode "
        "`Secret`; re-read when it changes."
    )
    client_auth: ClientAuth = Field(
        default=ClientAuth.NONE, description="Whether clients may, or must, present a certificate."
    )
    client_ca: SecretKeyRef | None = option(
        "CAs for the certificates of clients; defaults to the generated one."
    )
    min_version: TlsVersion = Field(
        default=TlsVersion.V1_2, description="Lowest version of TLS that clients may use."
    )
    duration: Duration = Field(
        default=DurationText("2160h"), description="How long a certificate is valid."
    )
    renew_before: Duration = Field(
        default=DurationText("720h"), description="How long before its expiry it is renewed."
    )
    overlap: Duration = Field(
        default=DurationText("24h"),
        description="How long an old and a new CA are both trusted before certificates of the new "
        "one are used.",
    )
    extra_names: Annotated[
        tuple[
            Annotated[str, StringConstraints(max_length=253, pattern=r"^[-*.A-Za-z0-9:]+$")], ...
        ],
        ListOf(32, is_set=True),
    ] = Field(default=(), description="Names and addresses to add to the certificates.")


class IpBlock(Model):
    """A range of addresses."""

    cidr: Cidr = Field(description="Range of addresses, such as `10.0.0.0/8`.")
    excluded: Annotated[tuple[Cidr, ...], ListOf(16)] = Field(
        default=(), description="Ranges to exclude from it."
    )


class Peer(Model):
    """Pods or addresses that may connect."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "peer-kind",
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "set either ipBlock, or podSelector and namespaceSelector",
        ),
    )
    pod_selector: LabelSelector | None = option(
        "Pods by their labels; in this namespace unless `namespaceSelector` is set."
    )
    namespace_selector: LabelSelector | None = option("Namespaces by their labels.")
    ip_block: IpBlock | None = option("A range of addresses.")


class NetworkPolicy(Model):
    """Allowed connections to the brokers; the brokers themselves and the operator always may."""

    enabled: bool = Field(
        default=True,
        description="Whether a NetworkPolicy blocks all other connections.",
    )
    clients: Annotated[tuple[Peer, ...], ListOf(32)] = Field(
        default=(), description="Peers that may connect to listeners; defaults to all."
    )
    monitoring: Annotated[tuple[Peer, ...], ListOf(32)] = Field(
        default=(), description="Peers that may read metrics; defaults to every pod of the cluster."
    )
