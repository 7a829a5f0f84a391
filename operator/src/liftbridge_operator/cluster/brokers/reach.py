"""Addresses of a cluster's brokers, and the certificate of the operator."""

from base64 import b64decode
from typing import Any, NamedTuple

import grpc

from liftbridge_operator.kube.kinds import SECRETS
from liftbridge_operator.kube.port import Kube, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.network import ADMIN_PORT


class Endpoint(NamedTuple):
    """Admin address of a broker: host and port."""

    broker: str
    address: str


class UnusableError(Exception):
    """The Secret of the operator's client certificate lacks a file."""


async def credentials_of(kube: Kube, body: Object) -> grpc.ChannelCredentials:
    """Return the CA and client certificate of the operator for the brokers of a cluster.

    Args:
        kube: The API server, which holds the certificate.
        body: The LiftbridgeCluster.

    Raises:
        KubeError: The certificate does not exist, or cannot be read.
        UnusableError: It lacks a file.
    """
    metadata: dict[str, Any] = body["metadata"]
    name = names.operator_leaf(metadata["name"])
    secret = await kube.get(SECRETS, metadata["namespace"], name)
    files = {key: b64decode(text) for key, text in secret.get("data", {}).items()}
    keys = (names.CA_KEY, names.KEY_KEY, names.CERT_KEY)
    if not all(files.get(key) for key in keys):
        raise UnusableError(f"Secret {name} lacks a file")
    return grpc.ssl_channel_credentials(*(files[key] for key in keys))


def endpoints_of(body: Object) -> list[Endpoint]:
    """List all present and desired brokers of a cluster."""
    namespace, cluster = body["metadata"]["namespace"], body["metadata"]["name"]
    wanted = body.get("spec", {}).get("replicas", 1)
    present = body.get("status", {}).get("replicas", 0)
    brokers = [names.broker(cluster, ordinal) for ordinal in range(max(wanted, present, 1))]
    return [
        Endpoint(broker, f"{names.host(broker, cluster, namespace)}:{ADMIN_PORT}")
        for broker in brokers
    ]
