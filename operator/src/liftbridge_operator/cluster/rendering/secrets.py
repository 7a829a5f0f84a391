"""Render Secrets and the published bundle; their contents are generated elsewhere."""

import base64
from collections.abc import Mapping

from liftbridge_operator.cluster.rendering import nats
from liftbridge_operator.cluster.rendering.subject import (
    Cluster,
    Inputs,
    Object,
    kept_metadata,
    metadata,
)
from liftbridge_operator.model import names


def authority(cluster: Cluster, inputs: Inputs, name: str, files: Mapping[str, bytes]) -> Object:
    """Render the Secret of an authority, which outlives the `LiftbridgeCluster`.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id.
        name: `names.authority` or `names.internal_authority`.
        files: Contents by key.
    """
    return _secret(kept_metadata(cluster, inputs, name), "Opaque", files)


def leaf(cluster: Cluster, inputs: Inputs, name: str, files: Mapping[str, bytes]) -> Object:
    """Render the Secret of a certificate: `tls.crt`, `tls.key` and `ca.crt`."""
    assert {names.CERT_KEY, names.KEY_KEY, names.CA_KEY} <= set(files)
    return _secret(metadata(cluster, inputs, name), "kubernetes.io/tls", files)


def peer_keys(cluster: Cluster, inputs: Inputs, text: str) -> Object:
    """Render the Secret with the file of peer keys."""
    name = names.peer_keys(cluster.name)
    files = {names.PEER_KEYS_KEY: text.encode()}
    return _secret(metadata(cluster, inputs, name), "Opaque", files)


def nats_credentials(cluster: Cluster, inputs: Inputs, passwords: Mapping[str, str]) -> Object:
    """Render the kept Secret with credentials of embedded NATS and its authorization file.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id.
        passwords: Passwords by `nats.PASSWORDS`.
    """
    assert set(passwords) == set(nats.PASSWORDS)
    texts = dict(passwords) | {
        "client-username": nats.CLIENT_USER,
        names.NATS_AUTH_KEY: nats.auth_text(cluster, inputs, dict(passwords)),
    }
    files = {key: text.encode() for key, text in texts.items()}
    name = names.nats_credentials(cluster.name)
    return _secret(kept_metadata(cluster, inputs, name), "Opaque", files)


def nats_client(cluster: Cluster, inputs: Inputs, password: str, bundle: bytes) -> Object:
    """Render the Secret with everything that applications need to use embedded NATS.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id.
        password: That of the user for applications.
        bundle: Authorities of the servers, PEM.
    """
    files = {
        "address": f"{nats.host(cluster)}:{names.CLIENTS_PORT}".encode(),
        "username": nats.CLIENT_USER.encode(),
        "password": password.encode(),
        names.CA_KEY: bundle,
    }
    name = names.nats_client(cluster.name)
    return _secret(metadata(cluster, inputs, name), "Opaque", files)


def published_bundle(cluster: Cluster, inputs: Inputs, bundle: bytes) -> Object:
    """Render the ConfigMap with the authorities that clients trust."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, inputs, names.authority(cluster.name)),
        "data": {names.CA_KEY: bundle.decode("ascii")},
    }


def _secret(made: Object, kind: str, files: Mapping[str, bytes]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": made,
        "type": kind,
        "data": {key: base64.b64encode(files[key]).decode("ascii") for key in sorted(files)},
    }
