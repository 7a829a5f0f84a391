"""The Secret of a user: what it has, and what is read from it."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

from liftbridge_operator.cluster.acting.ownership import owner_text
from liftbridge_operator.cluster.certificates.port import Issuer, Pair
from liftbridge_operator.cluster.observing.objects import is_owned_by, metadata_of
from liftbridge_operator.kube.kinds import SECRETS, USERS
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model import names
from liftbridge_operator.model.base import GROUP
from liftbridge_operator.model.user import UserSpec
from liftbridge_operator.users.observation import ObservedSecret, Offer, Resource

TOKEN_KEY: Final = "token"  # noqa: S105 - name of a file
ADDRESS_KEY: Final = "address"
PROFILE_KEY: Final = "profiles.toml"
PROFILE: Final = "liftbridge"
"""Name of the only profile in the file."""

FORMER: Final = f"{GROUP}/former-token"

_CREDENTIALS: Final = (names.CERT_KEY, names.KEY_KEY, TOKEN_KEY)
_TOKEN_PREFIX: Final = "lbt_"  # noqa: S105 - public


def kept_files(spec: UserSpec, offer: Offer) -> dict[str, bytes]:
    """Return the files of the Secret of a user besides its credential."""
    files = {ADDRESS_KEY: offer.address.encode(), PROFILE_KEY: _profile(spec, offer).encode()}
    if offer.ca:
        files[names.CA_KEY] = offer.ca
    return files


def _profile(spec: UserSpec, offer: Offer) -> str:
    """Return the file of profiles for the command and the library; files are those beside it."""
    values = {"servers": f'"{offer.address}"', "tls": "true"}
    if offer.ca:
        values["ca"] = f'"{names.CA_KEY}"'
    if spec.authentication.certificate is not None:
        values |= {"cert": f'"{names.CERT_KEY}"', "key": f'"{names.KEY_KEY}"'}
    if spec.authentication.token is not None:
        values["token_file"] = f'"{TOKEN_KEY}"'
    lines = [f"{key} = {value}" for key, value in values.items()]
    return "\n".join([f'current = "{PROFILE}"', "", f"[profiles.{PROFILE}]", *lines, ""])


def secret_of(resource: Resource, files: Mapping[str, bytes], former_id: str) -> Object:
    """Return the Secret of a user, which goes with its resource.

    Args:
        resource: The resource.
        files: All files.
        former_id: Public part of the token that was in it before; empty for none.
    """
    owner = {
        "apiVersion": USERS.api_version,
        "kind": USERS.kind,
        "name": resource.name,
        "uid": resource.uid,
        "controller": True,
    }
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {
            "name": resource.secret_name,
            "namespace": resource.namespace,
            "labels": {"app.kubernetes.io/managed-by": names.MANAGED_BY},
            "annotations": {FORMER: former_id},
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "data": {key: b64encode(files[key]).decode("ascii") for key in sorted(files)},
    }


def files_of(body: Object | None) -> dict[str, bytes]:
    """Return the files of a Secret; unreadable ones are left out."""
    found: dict[str, bytes] = {}
    for key, text in ((body or {}).get("data") or {}).items():
        try:
            found[key] = b64decode(text, validate=True)
        except (Base64Error, ValueError):
            continue
    return found


def credential_of(spec: UserSpec, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the credential that a user has, of its kind of authentication."""
    wanted: tuple[str, ...] = ()
    if spec.authentication.certificate is not None:
        wanted = (names.CERT_KEY, names.KEY_KEY)
    elif spec.authentication.token is not None:
        wanted = (TOKEN_KEY,)
    return {key: files[key] for key in wanted if key in files}


def observed(
    body: Object | None, resource: Resource, offer: Offer, issuer: Issuer
) -> ObservedSecret | None:
    """Read the Secret of a user; None for no Secret.

    Args:
        body: The Secret.
        resource: The resource; its specification is readable.
        offer: What the cluster offers.
        issuer: Reads certificates.
    """
    if body is None:
        return None
    if not is_owned_by(body, resource.uid):
        return ObservedSecret(is_own=False, owner=f"another owner: {owner_text(body)}")
    spec, files = resource.spec, files_of(body)
    assert spec is not None
    kept = {key: text for key, text in files.items() if key not in _CREDENTIALS}
    held = {key: text for key, text in files.items() if key in _CREDENTIALS}
    pair = Pair(files.get(names.CERT_KEY, b""), files.get(names.KEY_KEY, b""))
    return ObservedSecret(
        is_own=True,
        is_current=kept == kept_files(spec, offer) and held == credential_of(spec, files),
        token_id=token_id_of(files.get(TOKEN_KEY, b"")),
        former_id=former_of(body),
        certificate=issuer.describe(pair.cert)[0] if issuer.fits(pair) else None,
    )


def former_of(body: Object | None) -> str:
    """Return the public part of the token that a Secret had before; empty for none."""
    return str((metadata_of(body or {}).get("annotations") or {}).get(FORMER, "")) if body else ""


def token_id_of(token: bytes) -> str:
    """Return the public part of a token, `lbt_<id>_<secret>`; empty for something else."""
    text = token.decode("ascii", "replace")
    found = text.removeprefix(_TOKEN_PREFIX).partition("_")[0]
    return found if text.startswith(_TOKEN_PREFIX) else ""
