"""Volumes of pods, their mounts, and claim templates.

Secrets are mounted whole: a file mounted by `subPath` is never updated.
"""

from dataclasses import dataclass
from typing import Any

from liftbridge_operator.cluster.rendering import addresses
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object, labels
from liftbridge_operator.model import names
from liftbridge_operator.model.kube import ExtraVolume
from liftbridge_operator.model.network import ClientAuth, TlsMode
from liftbridge_operator.model.storage import Volume

SECRET_MODE = 0o440
"""File mode of Secrets: readable by owner and group of the volume only."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume, if the pod defines it, and its mount in the container of the broker."""

    volume: Object | None
    name: str
    path: str
    is_writable: bool = False

    @property
    def mount(self) -> Object:
        """Entry of `volumeMounts`."""
        made: Object = {"name": self.name, "mountPath": self.path}
        return made if self.is_writable else made | {"readOnly": True}


def mounted(cluster: Cluster, config_name: str) -> list[Mounted]:
    """Return volumes of the broker; those of claims have no entry in the pod."""
    mounts = _data(cluster)
    mounts += [
        Mounted({"emptyDir": {}}, names.TEMPORARY_VOLUME, "/tmp", is_writable=True),  # noqa: S108 - inside the container
        _config_map(names.CONFIG_VOLUME, config_name, names.CONFIG_DIRECTORY),
        _secret(names.INTERNAL_VOLUME, names.internal_leaf(cluster.name), names.INTERNAL_DIRECTORY),
        _secret(names.PEER_KEYS_VOLUME, names.peer_keys(cluster.name), names.PEER_KEYS_DIRECTORY),
    ]
    if addresses.further(cluster):
        listeners = names.listeners(cluster.name)
        mounts.append(_config_map(names.LISTENERS_VOLUME, listeners, names.LISTENERS_DIRECTORY))
    mounts += _tls(cluster)
    mounts += _keys(cluster)
    mounts += _nats(cluster)
    template = cluster.spec.pod_template
    mounts += [
        Mounted(None, mount.name, mount.mount_path, is_writable=not mount.read_only)
        for mount in template.volume_mounts
    ]
    return mounts


def pod_volumes(cluster: Cluster, config_name: str) -> list[Object]:
    """Render entries of `volumes`."""
    own: list[Object] = [
        {"name": mount.name, **mount.volume}
        for mount in mounted(cluster, config_name)
        if mount.volume is not None
    ]
    if cluster.spec.nats.embedded is not None:
        own.append(
            {"name": names.NATS_VOLUME, "configMap": {"name": config_name, "defaultMode": 0o444}}
        )
    return own + [_extra(volume) for volume in cluster.spec.pod_template.volumes]


def named_configs(spec: Object) -> frozenset[str]:
    """Return names of ConfigMaps that volumes of a pod or a template use."""
    volumes = spec.get("volumes") or ()
    named = (str((volume.get("configMap") or {}).get("name") or "") for volume in volumes)
    return frozenset(name for name in named if name)


def claim_templates(cluster: Cluster, inputs: Inputs, claim_bytes: int) -> list[Object]:
    """Render the claim templates of each broker; none for ephemeral storage.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id for labels.
        claim_bytes: Size for data; never larger than in the specification, smaller only while
            another set is still being replaced.
    """
    storage = cluster.spec.storage
    if storage.ephemeral:
        return []
    made = [_claim(cluster, inputs, names.DATA_VOLUME, storage.data, str(claim_bytes))]
    if storage.raft is not None:
        made.append(_claim(cluster, inputs, names.RAFT_VOLUME, storage.raft, storage.raft.size))
    return made


def _claim(cluster: Cluster, inputs: Inputs, name: str, volume: Volume, size: str) -> Object:
    spec: dict[str, Any] = {
        "accessModes": [mode.value for mode in volume.access_modes],
        "resources": {"requests": {"storage": size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    if volume.volume_attributes_class_name is not None:
        spec["volumeAttributesClassName"] = volume.volume_attributes_class_name
    return {"metadata": {"name": name, "labels": labels(cluster, inputs)}, "spec": spec}


def _data(cluster: Cluster) -> list[Mounted]:
    storage = cluster.spec.storage
    place = names.DATA_DIRECTORY
    if storage.ephemeral:
        bounded: Object = {"emptyDir": {"sizeLimit": storage.data.size}}
        return [Mounted(bounded, names.DATA_VOLUME, place, is_writable=True)]
    mounts = [Mounted(None, names.DATA_VOLUME, place, is_writable=True)]
    if storage.raft is not None:
        metadata = names.METADATA_DIRECTORY
        mounts.append(Mounted(None, names.RAFT_VOLUME, metadata, is_writable=True))
    return mounts


def _tls(cluster: Cluster) -> list[Mounted]:
    tls = cluster.spec.tls
    if tls.mode is TlsMode.DISABLED:
        return []
    shown = tls.secret_name or names.leaf(cluster.name)
    found = [_secret(names.TLS_VOLUME, shown, names.TLS_DIRECTORY)]
    if tls.client_auth is not ClientAuth.NONE and tls.client_ca is not None:
        found.append(_secret(names.CLIENT_CA_VOLUME, tls.client_ca.name, names.CLIENT_CA_DIRECTORY))
    return found


def _keys(cluster: Cluster) -> list[Mounted]:
    """Mount public keys of tokens, and master keys of streams."""
    access, encryption = cluster.spec.access, cluster.spec.encryption
    found = []
    if access is not None and access.jwt is not None:
        name, place = names.JWT_KEYS_VOLUME, names.JWT_KEYS_DIRECTORY
        given = access.jwt.keys
        if given.secret_key_ref is not None:
            found.append(_secret(name, given.secret_key_ref.name, place))
        else:
            assert given.config_map_key_ref is not None
            found.append(_config_map(name, given.config_map_key_ref.name, place))
    if encryption is not None and encryption.master_keys is not None:
        secret = encryption.master_keys.name
        found.append(_secret(names.MASTER_KEYS_VOLUME, secret, names.MASTER_KEYS_DIRECTORY))
    return found


def _nats(cluster: Cluster) -> list[Mounted]:
    nats = cluster.spec.nats
    if nats.embedded is not None:
        secret = names.nats_credentials(cluster.name)
        return [_secret(names.NATS_AUTH_VOLUME, secret, names.NATS_AUTH_DIRECTORY)]
    mounts = []
    if nats.auth is not None:
        given = nats.auth.user or nats.auth.token or nats.auth.nkey or nats.auth.credentials
        assert given is not None
        mounts.append(_secret(names.NATS_AUTH_VOLUME, given.name, names.NATS_AUTH_DIRECTORY))
    if nats.tls is not None and nats.tls.ca is not None:
        mounts.append(_secret(names.NATS_CA_VOLUME, nats.tls.ca.name, names.NATS_CA_DIRECTORY))
    if nats.tls is not None and nats.tls.client_secret_name is not None:
        secret = nats.tls.client_secret_name
        mounts.append(_secret(names.NATS_CLIENT_VOLUME, secret, names.NATS_CLIENT_DIRECTORY))
    return mounts


def _secret(name: str, secret: str, path: str) -> Mounted:
    return Mounted({"secret": {"secretName": secret, "defaultMode": SECRET_MODE}}, name, path)


def _config_map(name: str, config_map: str, path: str) -> Mounted:
    return Mounted({"configMap": {"name": config_map, "defaultMode": 0o444}}, name, path)


def _extra(volume: ExtraVolume) -> Object:
    made: Object = {"name": volume.name}
    if volume.secret is not None:
        made["secret"] = volume.secret.manifest() | {"defaultMode": SECRET_MODE}
    elif volume.config_map is not None:
        made["configMap"] = volume.config_map.manifest() | {"defaultMode": 0o444}
    else:
        assert volume.empty_dir is not None
        made["emptyDir"] = volume.empty_dir.manifest()
    return made
