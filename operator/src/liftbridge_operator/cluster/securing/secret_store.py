"""Read the Secrets of a cluster, and write those that are missing or outdated.

There are two families: always the internal one, by which brokers, their NATS servers and the
operator authenticate one another; and one for clients when `tls.mode` is `Generated`. They never
share an authority: a holder of an internal certificate may operate the brokers. Secrets of
cert-manager and of users are only read.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, TypeVar

from liftbridge_operator.cluster.acting.context import Trouble
from liftbridge_operator.cluster.acting.ownership import foreign
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.acting.whole import shown
from liftbridge_operator.cluster.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.cluster.certificates.port import Issuer, Known, Pair
from liftbridge_operator.cluster.certificates.rotation import Terms, is_early
from liftbridge_operator.cluster.certificates.subject_names import internal_names, subject_names
from liftbridge_operator.cluster.observing.objects import is_owned_by, label_of, metadata_of
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.reconciling.ports import Issued, Served
from liftbridge_operator.cluster.rendering import cert_manager, nats, secrets
from liftbridge_operator.cluster.rendering.addresses import certified_hosts
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs
from liftbridge_operator.cluster.reporting.account import Certificates
from liftbridge_operator.cluster.reporting.events import Happened
from liftbridge_operator.cluster.securing.certificate_states import (
    state_of_family,
    state_of_known,
    steps_of,
    trouble_of,
    worst_of,
)
from liftbridge_operator.cluster.securing.family import (
    Brought,
    Family,
    Files,
)
from liftbridge_operator.cluster.securing.peer_keys import (
    KEPT,
    PeerKeys,
    are_reported,
    first_keys,
    kept_keys,
    mounted_keys,
)
from liftbridge_operator.cluster.securing.peer_keys import Phase as PeerPhase
from liftbridge_operator.kube.errors import KubeError, NotFoundError
from liftbridge_operator.kube.intent import differences
from liftbridge_operator.kube.kinds import CERTIFICATES, CONFIG_MAPS, SECRETS, SETS, Kind
from liftbridge_operator.kube.port import Kube, Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.model.network import ClientAuth, Tls, TlsMode
from liftbridge_operator.model.units import SECOND_NS
from liftbridge_operator.model.values import duration_ns

AUTHORITY_LEAVES: Final = 20
"""Lifetime of an authority, in lifetimes of a leaf: five years by default."""

KEY_LEAVES: Final = 4
"""Age at which a peer key is rotated, in lifetimes of a leaf: a year by default."""

PUBLISHED: Final = "liftbridge.io/published"
ISSUED: Final = "liftbridge.io/issued"
KEYS_SINCE: Final = "liftbridge.io/peer-keys-since"
KEYS_ASKED: Final = "liftbridge.io/peer-keys-asked"
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class _Named:
    """Settings of brokers that name the files of a family, with the keys of the files."""

    bundle: tuple[tuple[str, str], ...]
    leaf: tuple[tuple[str, str], ...]


INTERNAL_FILES: Final = _Named(
    (("admin.tls.ca", names.CA_KEY),), (("admin.tls.cert", names.CERT_KEY),)
)


def _client_files(cluster: Cluster) -> _Named:
    """Return the settings of the client family; brokers read its bundle only to verify clients."""
    tls, leaf = cluster.spec.tls, ("tls.cert", names.CERT_KEY)
    if not any(listener.tls for listener in cluster.spec.listeners):
        return _Named((), ())
    if tls.client_auth is not ClientAuth.NONE and tls.client_ca is None:
        return _Named((leaf, ("tls.client.auth.ca", names.CA_KEY)), (leaf,))
    return _Named((leaf,), (leaf,))


class ForeignError(Exception):
    """A foreign object has the name of an object of this cluster.

    Attributes:
        trouble: Problem that a user has to fix.
    """

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class UnusableError(Exception):
    """An authority that signed a presented certificate is unusable, and is not recreated.

    Attributes:
        secret: Secret of the authority.
    """

    def __init__(self, secret: str, leaf: str, why: ValueError) -> None:
        super().__init__(
            f"in Secret {secret} {why}; put back what it held, or set `spec.suspend` and delete "
            f"the Secrets {secret} and {leaf} once no broker runs: both are then recreated"
        )
        self.secret = secret


class LeavingError(Exception):
    """The garbage collector is about to delete a Secret of a former resource of this name."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass over the Secrets of one cluster."""

    cluster: Cluster
    inputs: Inputs
    terms: Terms
    now_s: int
    may_write: bool
    served: Served | None
    held: Mapping[str, Refusal]
    happened: list[Happened] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)

    def is_served(self, files: Mapping[str, bytes], *settings: tuple[str, str]) -> bool:
        """Return whether every broker reports files as loaded, by the settings that name them.

        Args:
            files: Files of the Secret.
            settings: Setting of the broker, and key of the file; none when brokers use no file.
        """
        if self.served is None:
            return False
        wanted = {
            setting: sha256(files[key]).hexdigest() for setting, key in settings if key in files
        }
        return all(
            wanted.items() <= self.served.loaded.get(broker, {}).items()
            for broker in self.served.brokers
        )

    def knows(self, keys: PeerKeys) -> bool:
        """Return whether every desired broker reports these keys."""
        served = self.served
        return (
            served is not None
            and served.are_all
            and are_reported(keys, [served.keys.get(broker, ()) for broker in served.brokers])
        )


class SecretStore:
    """Implements `cluster.reconciling.ports.Issue`.

    Args:
        kube: The API server; Secrets are read by name, created and patched, never listed.
        issuer: Makes keys.
        now_s: Seconds since 1970.
        password: Generates a random password of letters and digits.
        key: Generates a random peer key.
    """

    def __init__(
        self,
        kube: Kube,
        issuer: Issuer,
        now_s: Callable[[], int],
        password: Callable[[], str],
        key: Callable[[], str],
    ) -> None:
        self._kube = kube
        self._issuer = issuer
        self._now_s = now_s
        self._password = password
        self._key = key

    async def __call__(
        self,
        cluster: Cluster,
        inputs: Inputs,
        *,
        may_write: bool,
        served: Served | None,
        held: Mapping[str, Refusal],
    ) -> Issued:
        """Create missing Secrets, renew those that expire soon, and return the state."""
        terms = terms_of(cluster.spec.tls)
        looked = _Pass(cluster, inputs, terms, self._now_s(), may_write, served, held)
        issued = await self._named(looked)
        against = (
            refusal for name, refusal in looked.refused.items() if name.startswith(SECRETS.kind)
        )
        return replace(
            issued,
            trouble=issued.trouble or next(map(trouble_of, against), None),
            happened=tuple(looked.happened),
            refusals=looked.refused,
        )

    async def _named(self, looked: _Pass) -> Issued:
        """Return the state of all Secrets, or the problem that makes it unknown."""
        cluster = looked.cluster
        try:
            return await self._all(looked)
        except ForeignError as error:
            return Issued(trouble=error.trouble, is_waiting=True)
        except LeavingError as error:
            return Issued(Certificates(detail=str(error)), is_waiting=True)
        except UnusableError as error:
            certificate = Certificates(reason="Untrusted", detail=str(error), secret=error.secret)
            return Issued(certificate, is_waiting=True)
        except ValueError as error:
            certificate = Certificates(reason="Untrusted", detail=str(error), secret=cluster.name)
            return Issued(certificate, is_waiting=True)
        except KubeError as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            return Issued(trouble=trouble_of(refusal), is_waiting=True)

    async def _tried(
        self, looked: _Pass, name: str, part: Callable[[_Pass], Awaitable[_Part]]
    ) -> _Part:
        """Run a part with its writes; where they are refused, run it without writes.

        Existing certificates serve brokers and the operator until they expire.

        Args:
            looked: The pass, which collects the refusal.
            name: Name of the object of the part.
            part: Reads, and writes if it may.

        Raises:
            KubeError: The API server does not answer, or an object has changed.
        """
        if looked.may_write and name in looked.held:
            looked.refused[name] = looked.held[name]
        elif looked.may_write:
            try:
                return await part(looked)
            except KubeError as error:
                refusal = refusal_of(error)
                if refusal is None:
                    raise
                looked.refused[name] = refusal
        return await part(replace(looked, may_write=False))

    async def _all(self, looked: _Pass) -> Issued:
        name = looked.cluster.name
        leaf = names.internal_leaf(name)
        internal = await self._tried(
            looked,
            f"{SECRETS.kind}/{leaf}",
            lambda now: self._family(
                now,
                names.internal_authority(name),
                leaf,
                internal_names(now.cluster),
                INTERNAL_FILES,
            ),
        )
        if internal is None:
            return Issued(is_waiting=True)
        operator = await self._tried(
            looked,
            f"{SECRETS.kind}/{names.operator_leaf(name)}",
            lambda now: self._operator(now, internal),
        )
        credentials = f"{SECRETS.kind}/{names.nats_credentials(name)}"
        trusted = internal.files.leaf[names.CA_KEY]
        if operator is None or not await self._tried(
            looked, credentials, lambda now: self._credentials(now, trusted)
        ):
            return Issued(is_waiting=True)
        keys = await self._tried(looked, f"{SECRETS.kind}/{names.peer_keys(name)}", self._peer_keys)
        certificates, is_waiting = await self._shown(looked)
        state = worst_of([state_of_family(internal), *certificates], looked.terms, looked.now_s)
        state = replace(state, peer_keys=keys.phase.value if keys is not None else "")
        return Issued(state, operator, is_waiting=is_waiting)

    # -- families -----------------------------------------------------------------------------

    async def _family(
        self,
        looked: _Pass,
        authority: str,
        leaf: str,
        wanted: tuple[str, ...],
        named: "_Named",
    ) -> Brought | None:
        """Advance a family; None when it is missing and may not be created."""
        cluster, inputs = looked.cluster, looked.inputs
        live_authority = await self._kept(looked, authority)
        live_leaf = await self._owned(looked, leaf)
        held = _files_of(live_leaf)
        before = Files(
            _files_of(live_authority),
            held,
            _seconds(live_leaf, PUBLISHED, looked.now_s),
            _seconds(live_leaf, ISSUED, looked.now_s),
            has_bundle=looked.is_served(held, *named.bundle),
            has_leaf=looked.is_served(held, *named.leaf),
        )
        family = Family(self._issuer, leaf, wanted, looked.terms)
        try:
            if not looked.may_write:
                return _as_is(family, before, looked)
            after = family.bring(before, looked.now_s)
        except ValueError as error:
            raise UnusableError(authority, leaf, error) from error
        await self._write(
            live_authority,
            secrets.authority(cluster, inputs, authority, after.files.authority),
        )
        body = secrets.leaf(cluster, inputs, leaf, after.files.leaf)
        body["metadata"]["annotations"] = {
            PUBLISHED: str(after.files.published_s),
            ISSUED: str(after.files.issued_s),
        }
        await self._write(live_leaf, body)
        looked.happened.extend(steps_of(before, after))
        return after

    async def _operator(self, looked: _Pass, internal: Brought) -> TlsMaterial | None:
        """Return the operator's certificate, from the signing authority, and the bundle."""
        cluster = looked.cluster
        name = names.operator_leaf(cluster.name)
        live = await self._owned(looked, name)
        files = _files_of(live)
        trusted = internal.files.leaf[names.CA_KEY]
        pair = Pair(files.get(names.CERT_KEY, b""), files.get(names.KEY_KEY, b""))
        held = self._issuer.describe(pair.cert) if self._issuer.fits(pair) else ()
        if not looked.may_write:
            if not held:
                return None
            return TlsMaterial(trusted, pair.cert, pair.key)
        if not held or self._is_due(held[0], internal.authority, looked):
            files = self._for_operator(internal, looked)
        files = files | {names.CA_KEY: trusted}
        await self._write(live, secrets.leaf(cluster, looked.inputs, name, files))
        return TlsMaterial(trusted, files[names.CERT_KEY], files[names.KEY_KEY])

    @staticmethod
    def _is_due(held: Known, authority: Known, looked: _Pass) -> bool:
        left_s = held.not_after_s - looked.now_s
        could_s = min(looked.terms.duration_s, authority.not_after_s - looked.now_s)
        is_near = left_s <= looked.terms.renew_before_s and left_s < could_s
        if held.issuer_key_id != authority.key_id:
            return True
        return is_near or is_early(held, authority, looked.now_s)

    def _for_operator(self, internal: Brought, looked: _Pass) -> dict[str, bytes]:
        held = internal.files.authority
        made = self._issuer.issue(
            Pair(held[names.CA_KEY], held[names.AUTHORITY_KEY]),
            names.operator_leaf(looked.cluster.name),
            ("liftbridge-operator",),
            not_before_s=max(looked.now_s - 300, internal.authority.not_before_s),
            not_after_s=min(looked.now_s + looked.terms.duration_s, internal.authority.not_after_s),
        )
        return {names.CERT_KEY: made.cert, names.KEY_KEY: made.key}

    async def _credentials(self, looked: _Pass, trusted: bytes) -> bool:
        """Generate passwords of embedded NATS once, each in the Secrets of those who need it."""
        cluster, inputs = looked.cluster, looked.inputs
        if cluster.spec.nats.embedded is None:
            return True
        name = names.nats_credentials(cluster.name)
        live = await self._kept(looked, name)
        held = {key: text.decode() for key, text in _files_of(live).items() if text.isalnum()}
        passwords = {key: held.get(key) or self._password() for key in nats.PASSWORDS}
        if looked.may_write:
            await self._write(live, secrets.nats_credentials(cluster, inputs, passwords))
            given = await self._owned(looked, names.nats_client(cluster.name))
            password = passwords["client-password"]
            await self._write(given, secrets.nats_client(cluster, inputs, password, trusted))
        return looked.may_write or live is not None

    async def _peer_keys(self, looked: _Pass) -> PeerKeys | None:
        """Advance the peer keys; None where they are missing and may not be created."""
        cluster = looked.cluster
        authority, name = names.internal_authority(cluster.name), names.peer_keys(cluster.name)
        live_kept, live = await self._kept(looked, authority), await self._owned(looked, name)
        kept = _files_of(live_kept)
        text = _files_of(live).get(names.PEER_KEYS_KEY, b"").decode("utf-8", "replace")
        before = kept_keys(kept) or mounted_keys(text)
        if not looked.may_write:
            return before
        since_s = _seconds(live_kept, KEYS_SINCE, looked.now_s)
        asked = _noted(live_kept, KEYS_ASKED)
        if before is None:
            brokers = await self._get(SETS, cluster.namespace, names.brokers(cluster.name))
            keys = first_keys(self._key, is_running=brokers is not None)
            since_s, asked = looked.now_s, cluster.key_request
        else:
            is_asked = bool(cluster.key_request) and cluster.key_request != asked
            is_old = looked.now_s - since_s >= KEY_LEAVES * looked.terms.duration_s
            keys = before
            if text == before.text and looked.knows(before):
                keys = before.advanced(is_due=is_asked or is_old, make=self._key)
            if keys.phase is PeerPhase.INTRODUCING and keys != before:
                since_s, asked = looked.now_s, cluster.key_request
        body = secrets.authority(
            cluster,
            looked.inputs,
            authority,
            {key: held for key, held in kept.items() if key not in KEPT} | keys.files,
        )
        body["metadata"]["annotations"] = {KEYS_SINCE: str(since_s), KEYS_ASKED: asked}
        await self._write(live_kept, body)
        await self._write(live, secrets.peer_keys(cluster, looked.inputs, keys.text))
        if before is not None and before.former and not keys.former:
            values = {"key": keys.ids[0]}
            looked.happened.append(Happened(EventReason.PEER_KEY_ROTATED, values))
        return keys

    # -- client-facing certificates -----------------------------------------------------------

    async def _shown(self, looked: _Pass) -> tuple[list[Certificates], bool]:
        """Return the state of client-facing certificates, and whether pods would wait for them."""
        cluster, tls = looked.cluster, looked.cluster.spec.tls
        if tls.mode is TlsMode.DISABLED:
            return [], False
        if tls.mode is TlsMode.GENERATED:
            leaf = names.leaf(cluster.name)
            made = await self._tried(
                looked,
                f"{SECRETS.kind}/{leaf}",
                lambda now: self._family(
                    now,
                    names.authority(cluster.name),
                    leaf,
                    subject_names(cluster, certified_hosts(cluster, looked.inputs)),
                    _client_files(cluster),
                ),
            )
            if made is None:
                return [], True
            trusted = made.files.leaf[names.CA_KEY]
            bundle = secrets.published_bundle(cluster, looked.inputs, trusted)
            await self._tried(looked, shown(bundle), lambda now: self._publish(now, bundle))
            return [state_of_family(made)], False
        refused = ""
        if tls.mode is TlsMode.CERT_MANAGER and looked.may_write:
            wanted = subject_names(cluster, certified_hosts(cluster, looked.inputs))
            asked = cert_manager.certificate(cluster, looked.inputs, wanted)
            refused = await self._ask_for(asked, looked)
        name = tls.secret_name or names.leaf(cluster.name)
        states, is_waiting = await self._looked_at(name, looked)
        if refused:
            states = [replace(state, reason="Refused", detail=refused) for state in states]
        return states, is_waiting

    async def _publish(self, looked: _Pass, bundle: Object) -> None:
        """Publish the bundle that clients trust in a ConfigMap."""
        if looked.may_write:
            await self._apply(CONFIG_MAPS, bundle, looked)

    async def _ask_for(self, body: Object, looked: _Pass) -> str:
        """Apply a Certificate of cert-manager; return the refusal, empty for none."""
        name = shown(body)
        refusal = looked.held.get(name)
        if refusal is None:
            try:
                await self._apply(CERTIFICATES, body, looked)
            except NotFoundError:
                refusal = Refusal("UnsupportedChange", "the API server knows no Certificate")
            except KubeError as error:
                refusal = refusal_of(error)
                if refusal is None:
                    raise
        if refusal is None:
            return ""
        looked.refused[name] = refusal
        return refusal.text

    async def _looked_at(self, name: str, looked: _Pass) -> tuple[list[Certificates], bool]:
        """Return the state of a Secret that cert-manager or a user maintains."""
        live = await self._get(SECRETS, looked.cluster.namespace, name)
        files = _files_of(live)
        lacking = [key for key in (names.CERT_KEY, names.KEY_KEY) if not files.get(key)]
        if lacking:
            detail = f"Secret {name} has no {' and no '.join(lacking)}"
            return [Certificates(detail=detail, secret=name)], True
        try:
            known, *_ = self._issuer.describe(files[names.CERT_KEY])
        except ValueError as error:
            certificate = Certificates(reason="Untrusted", detail=str(error), secret=name)
            return [certificate], True
        return [state_of_known(known, name)], False

    # -- reading and writing --------------------------------------------------------------------

    async def _get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self._kube.get(kind, namespace, name)
        except NotFoundError:
            return None

    async def _kept(self, looked: _Pass, name: str) -> Object | None:
        """Read a Secret that outlives the resource and must have the id of this cluster."""
        live = await self._get(SECRETS, looked.cluster.namespace, name)
        if live is not None and label_of(live, names.CLUSTER_ID) != looked.inputs.cluster_id:
            detail = f"it does not belong to cluster {looked.inputs.cluster_id}"
            raise ForeignError(Trouble("Conflict", {"object": f"Secret {name}", "detail": detail}))
        return live

    async def _owned(self, looked: _Pass, name: str) -> Object | None:
        """Read a Secret that the resource owns; raise while one of a former resource exists."""
        live = await self._get(SECRETS, looked.cluster.namespace, name)
        if live is None or is_owned_by(live, looked.cluster.uid):
            return live
        if (trouble := foreign(live, looked.cluster)) is not None:
            raise ForeignError(trouble)
        raise LeavingError(f"Secret {name} of the former resource is still there")

    async def _write(self, live: Object | None, body: Object) -> None:
        """Create or update a Secret; skip the write when it is already equal."""
        if live is None:
            await self._kube.create(body)
            return
        held: Mapping[str, str] = live.get("data") or {}
        wanted = body["data"]
        noted = body["metadata"].get("annotations") or {}
        present = metadata_of(live).get("annotations") or {}
        if held == wanted and all(present.get(key) == value for key, value in noted.items()):
            return
        changes = dict.fromkeys(held) | wanted
        metadata = {"metadata": {"annotations": noted}} if noted else {}
        await self._kube.patch(
            SECRETS,
            body["metadata"]["namespace"],
            body["metadata"]["name"],
            {"data": changes, **metadata},
            preconditions=Preconditions.of(live),
        )

    async def _apply(self, kind: Kind, body: Object, looked: _Pass) -> None:
        metadata = body["metadata"]
        live = await self._get(kind, metadata["namespace"], metadata["name"])
        if live is not None and (trouble := foreign(live, looked.cluster)) is not None:
            raise ForeignError(trouble)
        if live is None or differences(live, body):
            await self._kube.apply(body, force=live is not None)


def terms_of(tls: Tls) -> Terms:
    """Return the durations of certificates from the specification."""
    duration_s = duration_ns(tls.duration) // SECOND_NS
    return Terms(
        duration_s=duration_s,
        renew_before_s=duration_ns(tls.renew_before) // SECOND_NS,
        overlap_s=duration_ns(tls.overlap) // SECOND_NS,
        authority_duration_s=AUTHORITY_LEAVES * duration_s,
    )


def _as_is(family: Family, before: Files, looked: _Pass) -> Brought | None:
    """Return a family without writes; None when it is incomplete."""
    needed = {names.CERT_KEY, names.KEY_KEY, names.CA_KEY}
    if not (
        needed <= set(before.leaf) and {names.CA_KEY, names.AUTHORITY_KEY} <= set(before.authority)
    ):
        return None
    after = family.bring(before, looked.now_s)
    return replace(after, files=before)


def _files_of(live: Object | None) -> dict[str, bytes]:
    data = (live or {}).get("data") or {}
    return {key: base64.b64decode(text) for key, text in data.items()}


def _noted(live: Object | None, key: str) -> str:
    return str((metadata_of(live).get("annotations") or {}).get(key, "")) if live else ""


def _seconds(live: Object | None, key: str, now_s: int) -> int:
    """Read a time from an annotation; now, if it lies in the future after a clock change."""
    text = _noted(live, key)
    return min(int(text), now_s) if text.isdecimal() else 0
