"""Names of everything that belongs to a cluster: objects, labels, annotations, ports, paths.

All names begin with the name of the cluster, which has at most 40 characters, so that the longest
one, the Service of broker 99 of a listener, stays within the 63 of a DNS label.
"""

from typing import Final

from liftbridge_operator.model.base import GROUP
from liftbridge_operator.model.network import ADMIN_PORT, METRICS_PORT, NATS_PORTS

MANAGED_BY: Final = "liftbridge-operator"
CLIENTS_PORT, ROUTES_PORT, MONITOR_PORT = NATS_PORTS
PORTS: Final = {"metrics": METRICS_PORT, "admin": ADMIN_PORT}
NATS_PORT_NAMES: Final = {"nats": CLIENTS_PORT, "routes": ROUTES_PORT}

# Labels.
CLUSTER: Final = f"{GROUP}/cluster"
PIPELINE: Final = f"{GROUP}/pipeline"
CLUSTER_ID: Final = f"{GROUP}/cluster-id"
SERVICE_ROLE: Final = f"{GROUP}/service"
LISTENER: Final = f"{GROUP}/listener"
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
ZONES: Final = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
"""Labels of nodes that the API server copies to pods when it binds them."""

# Annotations.
REVISION: Final = f"{GROUP}/revision"
GOOD_REVISION: Final = f"{GROUP}/good-revision"
BAD_REVISION: Final = f"{GROUP}/bad-revision"
RENDERER: Final = f"{GROUP}/renderer"
IMAGE: Final = f"{GROUP}/image"
ASKED: Final = f"{GROUP}/asked"
RESTART: Final = f"{GROUP}/restart"
ROTATE_KEYS: Final = f"{GROUP}/rotate-keys"
RETIRED: Final = f"{GROUP}/retired"

# Containers and volumes of pods.
BROKER_CONTAINER: Final = "broker"
NATS_CONTAINER: Final = "nats"
DATA_VOLUME: Final = "liftbridge-data"
RAFT_VOLUME: Final = "liftbridge-raft"
CONFIG_VOLUME: Final = "liftbridge-config"
TEMPORARY_VOLUME: Final = "liftbridge-tmp"
TLS_VOLUME: Final = "liftbridge-tls"
INTERNAL_VOLUME: Final = "liftbridge-internal"
CLIENT_CA_VOLUME: Final = "liftbridge-client-ca"
LISTENERS_VOLUME: Final = "liftbridge-listeners"
PEER_KEYS_VOLUME: Final = "liftbridge-peer-keys"
JWT_KEYS_VOLUME: Final = "liftbridge-jwt-keys"
MASTER_KEYS_VOLUME: Final = "liftbridge-master-keys"
NATS_VOLUME: Final = "liftbridge-nats"
NATS_AUTH_VOLUME: Final = "liftbridge-nats-auth"
NATS_CA_VOLUME: Final = "liftbridge-nats-ca"
NATS_CLIENT_VOLUME: Final = "liftbridge-nats-client"

DATA_DIRECTORY: Final = "/var/lib/liftbridge"
METADATA_DIRECTORY: Final = f"{DATA_DIRECTORY}/metadata"
CONFIG_DIRECTORY: Final = "/etc/liftbridge/config"
TLS_DIRECTORY: Final = "/etc/liftbridge/tls"
INTERNAL_DIRECTORY: Final = "/etc/liftbridge/internal"
CLIENT_CA_DIRECTORY: Final = "/etc/liftbridge/client-ca"
LISTENERS_DIRECTORY: Final = "/etc/liftbridge/listeners"
PEER_KEYS_DIRECTORY: Final = "/etc/liftbridge/peer-keys"
JWT_KEYS_DIRECTORY: Final = "/etc/liftbridge/jwt-keys"
MASTER_KEYS_DIRECTORY: Final = "/etc/liftbridge/master-keys"
NATS_DIRECTORY: Final = "/etc/liftbridge/nats"
NATS_AUTH_DIRECTORY: Final = "/etc/liftbridge/nats-auth"
NATS_CA_DIRECTORY: Final = "/etc/liftbridge/nats-ca"
NATS_CLIENT_DIRECTORY: Final = "/etc/liftbridge/nats-client"

CONFIG_KEY: Final = "broker.yaml"
NATS_KEY: Final = "nats.conf"
NATS_AUTH_KEY: Final = "auth.conf"
CERT_KEY: Final = "tls.crt"
KEY_KEY: Final = "tls.key"
CA_KEY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
PEER_KEYS_KEY: Final = "cluster.keys"


def brokers(cluster: str) -> str:
    """Return the name of the StatefulSet, and of the ServiceAccount of its pods."""
    return cluster


def broker(cluster: str, ordinal: int) -> str:
    """Return the name of one broker and its pod."""
    return f"{cluster}-{ordinal}"


def headless(cluster: str) -> str:
    """Return the name of the headless Service, which gives each broker a DNS name."""
    return f"{cluster}-brokers"


def host(broker_name: str, cluster: str, namespace: str) -> str:
    """Return the DNS name of a broker, for all namespaces of the Kubernetes cluster."""
    return f"{broker_name}.{headless(cluster)}.{namespace}.svc"


def listener(cluster: str, name: str) -> str:
    """Return the name of the Service of a listener, for any broker."""
    return f"{cluster}-{name}"


def listener_port(name: str) -> str:
    """Return the port name of a listener in pods and Services, which no other port has."""
    return f"c-{name}"


def listener_of(cluster: str, name: str, ordinal: int) -> str:
    """Return the name of the Service of a listener, for one broker."""
    return f"{cluster}-{name}-{ordinal}"


def listeners(cluster: str) -> str:
    """Return the name of the ConfigMap with advertised addresses of further listeners."""
    return f"{cluster}-listeners"


def claim(cluster: str, ordinal: int, volume: str = DATA_VOLUME) -> str:
    """Return the name of a broker's claim, as the StatefulSet controller forms it."""
    return f"{volume}-{cluster}-{ordinal}"


def config(cluster: str, digest: str) -> str:
    """Return the name of the immutable ConfigMap with a broker configuration."""
    return f"{cluster}-config-{digest}"


def revision(cluster: str, digest: str) -> str:
    """Return the name of the immutable ConfigMap with a pod template."""
    return f"{cluster}-revision-{digest}"


def identity(cluster: str) -> str:
    """Return the name of the ConfigMap that identifies the cluster; it is kept."""
    return f"{cluster}-identity"


def internal_authority(cluster: str) -> str:
    """Return the name of the Secret of the internal authority; it is kept."""
    return f"{cluster}-internal-ca"


def internal_leaf(cluster: str) -> str:
    """Return the name of the Secret with the internal certificate, for operators and NATS."""
    return f"{cluster}-internal"


def peer_keys(cluster: str) -> str:
    """Return the name of the Secret with the keys by which brokers recognise one another."""
    return f"{cluster}-peer-keys"


def operator_leaf(cluster: str) -> str:
    """Return the name of the Secret with the operator's client certificate."""
    return f"{cluster}-operator"


def authority(cluster: str) -> str:
    """Return the name of the Secret, and ConfigMap, of the authority for clients; it is kept."""
    return f"{cluster}-ca"


def leaf(cluster: str) -> str:
    """Return the name of the Secret with the generated client-facing certificate."""
    return f"{cluster}-tls"


def nats_credentials(cluster: str) -> str:
    """Return the name of the Secret with the credentials of embedded NATS; it is kept."""
    return f"{cluster}-nats"


def nats_client(cluster: str) -> str:
    """Return the name of the Secret with which applications use embedded NATS."""
    return f"{cluster}-nats-client"
