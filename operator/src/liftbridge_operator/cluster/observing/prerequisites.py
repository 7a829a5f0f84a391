"""What access control and encryption need before a broker may start with them.

Pods that lack a Secret do not start, and brokers that cannot use a file of keys do not either.
Brokers that enforce access rules below the feature level that has them let in nobody but
super-users. So what lacks is an error of the specification: no broker is restarted until it is
there.

Files are judged as brokers judge them; a test gives the same texts to both. No message holds a part
of a Secret.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cryptography.x509 import load_pem_x509_certificates

from liftbridge_operator.cluster.planning.observation import Metadata
from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import CONFIG_MAPS, SECRETS, Kind
from liftbridge_operator.kube.port import Kube
from liftbridge_operator.model.access import ACCESS_LEVEL
from liftbridge_operator.model.cluster import ClusterSpec

FILE_BYTES_MAX: Final = 65_536
MASTER_KEYS_MAX: Final = 16
MASTER_KEY_ID_BYTES_MAX: Final = 255
_ENVIRONMENT_ID: Final = "env-"
_KEY_BYTES: Final = 32
_ENVIRONMENT_KEY_BYTES: Final = (16, 32)


class NamedFile(NamedTuple):
    """A file that a field names.

    Attributes:
        field: Path below `spec`.
        kind: Kind of the object that holds it.
        name: Name of the object.
        key: Key in it.
        fault_of: Completes a sentence that begins with the place; empty if the text is usable.
    """

    field: str
    kind: Kind
    name: str
    key: str
    fault_of: Callable[[str], str]


async def unmet(
    kube: Kube, namespace: str, spec: ClusterSpec, metadata: Metadata | None
) -> tuple[str, ...]:
    """Return what lacks, each as a sentence that begins with a field; empty if nothing does.

    Args:
        kube: The API server.
        namespace: Namespace of the cluster, whose Secrets and ConfigMaps pods mount.
        spec: Specification of the cluster.
        metadata: What brokers last said; None if no leader answered, when none is restarted anyway.

    Raises:
        KubeError: An object could not be read.
    """
    found = [await _fault(kube, namespace, file) for file in named_files(spec)]
    return tuple(filter(None, [*found, _level_fault(spec, metadata)]))


def named_files(spec: ClusterSpec) -> Iterator[NamedFile]:
    """Yield the files of users that brokers cannot start without."""
    if spec.tls.client_ca is not None:
        ca = spec.tls.client_ca
        yield NamedFile("tls.clientCA", SECRETS, ca.name, ca.key, fault_of_authorities)
    if spec.access is not None and spec.access.jwt is not None:
        keys = spec.access.jwt.keys
        given = keys.secret_key_ref or keys.config_map_key_ref
        assert given is not None
        kind = SECRETS if keys.secret_key_ref is not None else CONFIG_MAPS
        yield NamedFile("access.jwt.keys", kind, given.name, given.key, fault_of_public_keys)
    if spec.encryption is not None and spec.encryption.master_keys is not None:
        keys_ref = spec.encryption.master_keys
        yield NamedFile(
            "encryption.masterKeys", SECRETS, keys_ref.name, keys_ref.key, fault_of_master_keys
        )


async def _fault(kube: Kube, namespace: str, file: NamedFile) -> str:
    place = f"spec.{file.field}: {file.kind.kind} {file.name}"
    try:
        live = await kube.get(file.kind, namespace, file.name)
    except NotFoundError:
        return f"{place} does not exist"
    given = (live.get("data") or {}).get(file.key)
    if not given:
        return f"{place} has no key {file.key}"
    try:
        text = base64.b64decode(given).decode() if file.kind == SECRETS else str(given)
    except (binascii.Error, UnicodeDecodeError):
        return f"{place} has a key {file.key} that is not text"
    if len(text.encode()) > FILE_BYTES_MAX:
        return f"{place} has a key {file.key} of more than {FILE_BYTES_MAX} bytes"
    fault = file.fault_of(text)
    return f"{place}, key {file.key}, {fault}" if fault else ""


def _level_fault(spec: ClusterSpec, metadata: Metadata | None) -> str:
    """Return what keeps the present feature level from access rules or encrypted streams."""
    wants = {
        "access": spec.access is not None and (spec.access.enabled or spec.access.tokens),
        "encryption": spec.encryption is not None and spec.encryption.new_streams,
    }
    field = next((name for name, is_wanted in wants.items() if is_wanted), "")
    if not field or metadata is None or metadata.feature_level >= ACCESS_LEVEL:
        return ""
    return (
        f"spec.{field}: needs feature level {ACCESS_LEVEL}, and {metadata.feature_level} is in "
        f"force: set spec.featureLevel to {ACCESS_LEVEL}"
    )


def fault_of_authorities(text: str) -> str:
    """Return what is wrong with a file of certificate authorities; empty if it is usable."""
    try:
        has_any = bool(load_pem_x509_certificates(text.encode()))
    except ValueError:
        has_any = False
    return "" if has_any else "holds no certificate in PEM form"


def fault_of_public_keys(text: str) -> str:
    """Return what is wrong with the form of a file of public keys; empty if brokers may use it."""
    if "PRIVATE KEY-----" in text:
        return "holds a private key; store only public ones there"
    if "-----BEGIN PUBLIC KEY-----" in text:
        return ""
    try:
        keys = json.loads(text)["keys"]
        members = [dict(key) for key in keys]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "is neither PEM (-----BEGIN PUBLIC KEY-----) nor a JWK set (RFC 7517)"
    if any("d" in member for member in members):
        return "holds a private key; store only public ones there"
    return "" if members else "holds no key"


def fault_of_master_keys(text: str) -> str:
    """Return what is wrong with a file of master keys, by line; empty if it is usable."""
    ids: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        fault = _fault_of_master_key(words)
        if not fault and words[0] in ids:
            fault = "repeats an id"
        if fault:
            return f"line {number} {fault}"
        ids.append(words[0])
    if len(ids) > MASTER_KEYS_MAX:
        return f"holds {len(ids)} keys, at most {MASTER_KEYS_MAX} are allowed"
    return "" if ids else "holds no key"


def _fault_of_master_key(words: list[str]) -> str:
    if len(words) != 2:
        return "must be an id and a key, separated by a blank"
    key_id, digits = words
    if len(key_id.encode()) > MASTER_KEY_ID_BYTES_MAX or not key_id.isprintable():
        return f"has an id that is not 1 to {MASTER_KEY_ID_BYTES_MAX} bytes of printable text"
    try:
        size = len(bytes.fromhex(digits))
    except ValueError:
        size = 0
    is_former = key_id.startswith(_ENVIRONMENT_ID)
    if size == _KEY_BYTES or (is_former and size in _ENVIRONMENT_KEY_BYTES):
        return ""
    return "has a key that is not 64 hexadecimal digits; `openssl rand -hex 32` creates one"
