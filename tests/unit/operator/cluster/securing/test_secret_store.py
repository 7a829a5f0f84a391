"""Secrets of a cluster as they are kept, against an API server in memory and real keys."""

import base64
import itertools
from dataclasses import replace
from hashlib import sha256

import pytest

from liftbridge_operator.cluster.certificates.port import Pair
from liftbridge_operator.cluster.reconciling.ports import Served
from liftbridge_operator.cluster.rendering.nats import PASSWORDS
from liftbridge_operator.cluster.securing.family import SPREAD_S
from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CERTIFICATES, CONFIG_MAPS, SECRETS
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.names import CLUSTER, CLUSTER_ID
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.resources.clusters import (
    CLUSTER_ID as ID,
)
from liftbridge_testkit.resources.clusters import (
    NAMESPACE,
    PATHS,
    cluster_of,
    inputs_for,
    load_spec,
)

PATH = {path.stem: path for path in PATHS}
HOUR = 3_600
START = 1_800_000_000
ISSUER = CryptographyIssuer()


class World:
    """A keeper of Secrets with its clock."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.kube = MemoryKube()
        self.now_s = START
        self.cluster, self.inputs = cluster_of(spec), inputs_for(spec)
        self.served = None
        numbers = itertools.count()
        self.keeper = SecretStore(
            self.kube,
            ISSUER,
            lambda: self.now_s,
            lambda: f"password{next(numbers)}",
            lambda: f"key-{next(numbers):060}",
        )

    async def look(self, *, may_write=True):
        return await self.keeper(
            self.cluster, self.inputs, may_write=may_write, served=self.served, held={}
        )

    def load(self, *brokers, leaf="orders-internal"):
        """Brokers load the files that their Secrets hold now; the others keep theirs."""
        kinds = {"orders-internal": ("admin.tls.cert", "admin.tls.ca"), "orders-tls": ("tls.cert",)}
        files = self.files(leaf)
        named = zip(kinds[leaf], ("tls.crt", "ca.crt"), strict=False)
        loaded = {setting: sha256(files[key]).hexdigest() for setting, key in named}
        before = self.served or Served()
        told = {name: {**before.loaded.get(name, {}), **loaded} for name in brokers}
        every = tuple(dict.fromkeys([*before.brokers, *brokers]))
        self.served = Served(every, {**before.loaded, **told})

    def names(self, kind=SECRETS):
        return [one["metadata"]["name"] for one in self.kube.all_of(kind)]

    def files(self, name, kind=SECRETS):
        (found,) = [one for one in self.kube.all_of(kind) if one["metadata"]["name"] == name]
        return {key: base64.b64decode(text) for key, text in found["data"].items()}

    def known(self, name, key):
        return ISSUER.describe(self.files(name)[key])


def world_of(name: str, **changes) -> World:
    return World(load_spec(PATH[name], **changes))


async def test_first_pass_makes_the_internal_family_and_the_certificate_of_the_operator():
    world = world_of("least")
    issued = await world.look()
    assert world.names() == [
        "orders-internal",
        "orders-internal-ca",
        "orders-operator",
        "orders-peer-keys",
    ]
    (authority,) = world.known("orders-internal-ca", "ca.crt")
    (leaf,) = world.known("orders-internal", "tls.crt")
    (own,) = world.known("orders-operator", "tls.crt")
    assert leaf.issuer_key_id == own.issuer_key_id == authority.key_id
    assert "*.orders-brokers.shop.svc" in leaf.names
    assert "*.orders-brokers.shop.svc" not in own.names
    assert issued.operator is not None
    assert issued.operator.certificate == world.files("orders-operator")["tls.crt"]
    assert issued.operator.authority == world.files("orders-internal")["ca.crt"]
    assert (issued.is_waiting, issued.trouble) == (False, None)
    assert issued.certificates.reason == "Valid"
    assert issued.certificates.not_after_ms == (START + 2_160 * HOUR) * 1_000


@pytest.mark.parametrize("name", sorted(set(PATH) - {"outside", "secured"}))
async def test_nothing_is_written_when_nothing_is_due(name):
    world = world_of(name)
    first = await world.look()
    assert {one.reason for one in first.happened} == {"CertificateIssued"}
    written = len(world.kube.writes)
    world.now_s += 24 * HOUR
    assert await world.look() == replace(first, happened=())
    assert len(world.kube.writes) == written


async def test_embedded_nats_has_credentials_made_once():
    world = world_of("embedded")
    await world.look()
    files = world.files("orders-nats")
    assert b'user: broker, password: "password0"' in files["auth.conf"]
    assert files["client-username"] == b"client"


async def test_clients_get_an_authority_of_their_own_and_its_bundle():
    world = world_of("embedded")
    await world.look()
    (internal,) = world.known("orders-internal-ca", "ca.crt")
    (clients,) = world.known("orders-ca", "ca.crt")
    assert internal.key_id != clients.key_id
    (shown,) = world.known("orders-tls", "tls.crt")
    assert shown.issuer_key_id == clients.key_id
    (published,) = world.kube.all_of(CONFIG_MAPS)
    assert published["data"]["ca.crt"].encode() == world.files("orders-tls")["ca.crt"]


async def test_keys_of_authorities_are_in_no_secret_that_pods_mount():
    world = world_of("embedded")
    await world.look()
    for name in ("orders-internal", "orders-tls"):
        assert set(world.files(name)) == {"tls.crt", "tls.key", "ca.crt"}


async def test_kept_secrets_are_taken_over_by_a_resource_of_the_same_name():
    world = world_of("embedded")
    await world.look()
    before = world.files("orders-internal-ca"), world.files("orders-nats")
    for name in ("internal", "operator", "peer-keys", "tls", "nats-client"):
        world.kube.remove(SECRETS, NAMESPACE, f"orders-{name}")
    world.kube.remove(CONFIG_MAPS, NAMESPACE, "orders-ca")
    world.cluster = replace(world.cluster, uid="another")
    issued = await world.look()
    assert issued.certificates.reason == "Valid"
    assert (world.files("orders-internal-ca"), world.files("orders-nats")) == before


async def test_leaf_of_the_former_resource_is_waited_out():
    world = world_of("least")
    await world.look()
    world.cluster = replace(world.cluster, uid="another")
    written = len(world.kube.writes)
    issued = await world.look()
    assert issued.is_waiting
    assert "former resource" in issued.certificates.detail
    assert len(world.kube.writes) == written


@pytest.mark.parametrize(
    "name", ["orders-internal-ca", "orders-internal", "orders-operator", "orders-peer-keys"]
)
async def test_secret_of_somebody_else_is_told_and_left_alone(name):
    world = world_of("least")
    world.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"theirs": "eA=="},
        }
    )
    issued = await world.look()
    assert issued.trouble is not None
    assert issued.trouble.reason == "Conflict"
    assert issued.trouble.values["object"] == f"Secret {name}"
    assert world.files(name) == {"theirs": b"x"}


async def test_authority_of_another_cluster_is_told():
    world = world_of("least")
    world.inputs = replace(world.inputs, cluster_id="other")
    await world.look()
    world.inputs = replace(world.inputs, cluster_id=ID)
    issued = await world.look()
    assert issued.trouble is not None
    assert ID in issued.trouble.values["detail"]


async def test_nothing_is_made_while_nothing_may_be_written():
    world = world_of("embedded")
    issued = await world.look(may_write=False)
    assert issued.is_waiting
    assert issued.operator is None
    assert world.kube.writes == []
    await world.look()
    written = len(world.kube.writes)
    world.now_s += 2_000 * HOUR
    issued = await world.look(may_write=False)
    assert issued.operator is not None
    assert len(world.kube.writes) == written


async def test_leaf_is_renewed_in_time_and_its_key_with_it():
    world = world_of("least")
    await world.look()
    before = world.files("orders-internal")
    world.now_s += (2_160 - 720) * HOUR
    issued = await world.look()
    after = world.files("orders-internal")
    assert after["tls.key"] != before["tls.key"]
    assert after["ca.crt"] == before["ca.crt"]
    assert issued.certificates.reason == "Valid"


def ahead_of(world):
    """Moments of Secrets, and begins of certificates, that the clock has not come to."""
    found = []
    for one in world.kube.all_of(SECRETS):
        name, notes = one["metadata"]["name"], one["metadata"].get("annotations", {})
        moments = {key: int(text) for key, text in notes.items() if text.isdecimal()}
        if "tls.crt" in one["data"]:
            moments["tls.crt"] = world.known(name, "tls.crt")[0].not_before_s
        found += [(name, key) for key, at in moments.items() if at > world.now_s]
    return found


async def test_nothing_waits_for_a_clock_that_was_set_back():
    world = world_of("embedded")
    await world.look()
    world.now_s = START + 2_160 * HOUR  # all leaves are renewed
    for _ in range(3):
        await world.look()
    world.now_s = START + HOUR
    assert {name for name, _ in ahead_of(world)} == {
        "orders-internal",
        "orders-operator",
        "orders-tls",
    }

    def forward(body):
        notes = body["metadata"].get("annotations", {})
        notes |= {key: str(START * 2) for key, text in notes.items() if text.isdecimal()}

    for name in world.names():
        world.kube.edit(SECRETS, NAMESPACE, name, forward)
    await world.look()
    assert ahead_of(world) == []
    written = len(world.kube.writes)
    await world.look()
    assert len(world.kube.writes) == written


async def test_leaf_is_no_older_than_its_authority_though_the_clock_is():
    world = world_of("embedded")
    await world.look()
    written = len(world.kube.writes)
    world.now_s = START - 72 * HOUR
    await world.look()
    await world.look()
    kept = [one for one in world.kube.writes[written:] if one.kind == SECRETS]
    assert len({(one.kind, one.name) for one in kept}) == len(kept)


async def test_authority_is_exchanged_with_the_overlap_and_everybody_trusts_what_is_shown():
    tls = {"duration": "20m", "renewBefore": "5m", "overlap": "1m"}
    world = world_of("least", tls=tls)
    await world.look()
    (first,) = world.known("orders-internal-ca", "ca.crt")
    phases, trusted, told = [], [frozenset({first.key_id})], []
    while world.known("orders-internal-ca", "ca.crt")[0] == first or phases[-1] != "Steady":
        world.now_s += 30
        assert world.now_s < first.not_after_s
        world.load("orders-0")
        issued = await world.look()
        told += [one.reason for one in issued.happened]
        if phases[-1:] != [issued.certificates.phase]:
            phases.append(issued.certificates.phase)
        bundle = frozenset(one.key_id for one in world.known("orders-internal", "ca.crt"))
        trusted = [*trusted, bundle][-(SPREAD_S // 30) :]
        for name in ("orders-internal", "orders-operator"):
            (shown,) = world.known(name, "tls.crt")
            # A broker may still trust what was published up to two minutes ago, and nothing newer.
            assert all(shown.issuer_key_id in one for one in trusted)
            assert shown.not_after_s > world.now_s
    assert phases == ["Steady", "WaitingForBundle", "WaitingForCertificate", "Steady"]
    assert len(world.known("orders-internal", "ca.crt")) == 1
    assert set(world.files("orders-internal-ca")) == {"ca.crt", "ca.key", "peers.key"}
    assert told[-1] == "CertificateRotated"


async def exchanging(name="least", leaf="orders-internal"):
    """A world that is about to exchange its authority: the coming one is in the bundle."""
    tls = {"mode": "Generated"} if leaf == "orders-tls" else {}
    spec = {"duration": "20m", "renewBefore": "5m", "overlap": "1m", **tls}
    world = world_of(name, tls=spec)
    await world.look()
    (first,) = world.known(f"{leaf.removesuffix('-tls')}-ca", "ca.crt")
    # Leaves are renewed and brokers load them, until the authority nears its end.
    while len(world.known(leaf, "ca.crt")) == 1:
        world.now_s += 60
        world.load("orders-0", "orders-1", leaf=leaf)
        if leaf == "orders-tls":
            world.load("orders-0", "orders-1")
        await world.look()
        assert world.now_s < first.not_after_s
    return world, first


@pytest.mark.parametrize("is_answered", [True, False])
async def test_next_authority_signs_only_after_every_broker_has_loaded_the_bundle(is_answered):
    world, first = await exchanging()
    world.load("orders-0")
    if not is_answered:  # nobody was asked yet: a process that has just begun
        world.served = None
    world.now_s += 10 * SPREAD_S
    assert (await world.look()).certificates.phase == "WaitingForBundle"
    assert world.known("orders-internal-ca", "ca.crt") == (first,)
    world.load("orders-0", "orders-1")
    assert (await world.look()).certificates.phase == "WaitingForCertificate"


async def test_former_authority_leaves_only_after_every_broker_shows_the_new_leaf():
    world, first = await exchanging()
    world.load("orders-0", "orders-1")
    world.now_s += 2 * SPREAD_S
    await world.look()
    world.load("orders-0")
    world.now_s += 2 * SPREAD_S
    assert (await world.look()).certificates.phase == "WaitingForCertificate"
    assert first in world.known("orders-internal", "ca.crt")
    world.load("orders-1")
    assert (await world.look()).certificates.phase == "Steady"
    assert first not in world.known("orders-internal", "ca.crt")


async def test_broker_that_lags_with_the_certificate_for_clients_holds_the_exchange_up():
    world, _ = await exchanging("embedded", "orders-tls")
    world.load("orders-0", "orders-1", leaf="orders-tls")
    world.now_s += 2 * SPREAD_S
    await world.look()
    world.load("orders-0", leaf="orders-tls")
    world.now_s += 2 * SPREAD_S
    await world.look()
    assert len(world.known("orders-tls", "ca.crt")) == 2
    world.load("orders-1", leaf="orders-tls")
    await world.look()
    assert len(world.known("orders-tls", "ca.crt")) == 1


async def test_certificate_of_cert_manager_is_asked_for_and_its_secret_waited_for():
    world = world_of("outside")
    issued = await world.look()
    (asked,) = world.kube.all_of(CERTIFICATES)
    assert asked["spec"]["issuerRef"]["name"] == "letters"
    assert issued.is_waiting
    assert "orders-tls" in issued.certificates.detail


REFUSALS = {
    "right": (ForbiddenError("certificates is forbidden"), "forbidden"),
    "rule": (
        UnavailableError('failed calling webhook "webhook.cert-manager.io"'),
        "calling webhook",
    ),
    "definition": (NotFoundError("the server could not find it"), "knows no Certificate"),
    "form": (InvalidError("spec.issuerRef: wrong"), "issuerRef"),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_certificate_that_cannot_be_asked_for_is_told_and_its_secret_used(what):
    error, detail = REFUSALS[what]
    world = world_of("outside")
    for present in (False, True):
        world.kube.fail(error, verb="apply", kind=CERTIFICATES)
        issued = await world.look()
        assert issued.certificates.reason == "Refused"
        assert detail in issued.certificates.detail
        assert issued.is_waiting is not present
        authority = ISSUER.make_authority("a", not_before_s=START - 1, not_after_s=START + HOUR)
        leaf = ISSUER.issue(authority, "b", (), not_before_s=START, not_after_s=START + HOUR)
        if not present:
            given(world, "orders-tls", {"tls.crt": leaf.cert, "tls.key": leaf.key})


async def test_missing_right_to_secrets_is_told():
    world = world_of("least")
    words = 'secrets is forbidden: User "operator" cannot get resource "secrets"'
    for _ in range(2):
        world.kube.fail(ForbiddenError(words), verb="get", kind=SECRETS)
    issued = await world.look()
    assert issued.is_waiting
    assert issued.trouble.reason == "MissingRights"
    assert "secrets is forbidden" in issued.trouble.values["object"]


SAID = {
    "QuotaExceeded": ForbiddenError("secrets is forbidden: exceeded quota: few"),
    "MissingRights": ForbiddenError('User "operator" cannot patch resource "secrets"'),
    "AdmissionDenied": UnavailableError('failed calling webhook "rule": connection refused'),
    "UnsupportedChange": InvalidError("field is immutable when `immutable` is set"),
}


@pytest.mark.parametrize("reason", SAID)
async def test_refused_secret_is_named_with_its_cause(reason):
    world = world_of("secured")
    for _ in range(8):
        world.kube.fail(SAID[reason], verb="create", kind=SECRETS)
    issued = await world.look()
    assert (issued.trouble.reason, issued.is_waiting) == (reason, True)
    assert str(SAID[reason]) in " ".join(issued.trouble.values.values())


@pytest.mark.parametrize("reason", SAID)
async def test_certificates_that_cannot_be_renewed_serve_until_they_end(reason):
    world = world_of("least")
    first = await world.look()
    world.now_s = START + 2_000 * HOUR
    world.kube.fail(SAID[reason], verb="patch", kind=SECRETS)
    issued = await world.look()
    assert issued.trouble.reason == reason
    assert issued.operator.authority == first.operator.authority
    assert not issued.is_waiting
    assert (await world.look()).trouble is None


async def test_secret_that_somebody_closed_is_named_and_serves():
    world = world_of("least")
    first = await world.look()
    world.kube.edit(SECRETS, NAMESPACE, "orders-internal", lambda body: body.update(immutable=True))
    world.now_s = START + 2_000 * HOUR
    issued = await world.look()
    assert issued.trouble.reason == "UnsupportedChange"
    assert issued.operator.authority == first.operator.authority


def given(world, name, files):
    world.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {CLUSTER: "", CLUSTER_ID: ""},
            },
            "data": {key: base64.b64encode(text).decode() for key, text in files.items()},
        }
    )


async def test_secret_of_a_user_is_looked_at_and_never_written():
    world = world_of("secured")
    issued = await world.look()
    assert issued.is_waiting
    assert issued.certificates.secret == "shown"
    authority = ISSUER.make_authority("a", not_before_s=START - 1, not_after_s=START + 9 * HOUR)
    leaf = ISSUER.issue(authority, "b", ("b",), not_before_s=START - 1, not_after_s=START + HOUR)
    given(world, "shown", {"tls.crt": leaf.cert, "tls.key": leaf.key})
    issued = await world.look()
    assert not issued.is_waiting
    assert issued.certificates.not_after_ms == (START + HOUR) * 1_000
    assert (issued.certificates.reason, issued.certificates.detail) == ("Expiring", "shown")
    world.now_s += HOUR
    assert (await world.look()).certificates.reason == "Expired"
    assert world.files("shown") == {"tls.crt": leaf.cert, "tls.key": leaf.key}


async def test_nonsense_in_a_secret_is_told():
    world = world_of("secured")
    given(world, "shown", {"tls.crt": b"nonsense", "tls.key": b"nonsense"})
    issued = await world.look()
    assert (issued.is_waiting, issued.certificates.reason) == (True, "Untrusted")
    world = world_of("least")
    await world.look()

    def spoil(body):
        body["data"]["ca.crt"] = "bm9uc2Vuc2U="

    world.kube.edit(SECRETS, NAMESPACE, "orders-internal-ca", spoil)
    issued = await world.look()
    assert (issued.is_waiting, issued.certificates.reason) == (True, "Untrusted")


DAMAGES = {
    "text": lambda _: b"nonsense",
    "cut": lambda held: held[: len(held) // 2],
    "bytes": lambda _: b"\xff\x00\xfe",
    "empty": lambda _: b"",
    "missing": lambda _: None,
}


async def damaged():
    """Each file that the operator makes, in each Secret, damaged in each way."""
    world = world_of("embedded")
    await world.look()
    return [
        (secret, key, damage)
        for secret in world.names()
        for key in world.files(secret)
        for damage in DAMAGES
    ]


def damage(world, secret, key, how):
    held = world.files(secret)[key]
    text = DAMAGES[how](held)

    def change(body):
        body["data"].pop(key)
        if text is not None:
            body["data"][key] = base64.b64encode(text).decode()

    world.kube.edit(SECRETS, NAMESPACE, secret, change)


def is_whole(world):
    """Whether all that brokers and operators read can be used."""
    leaves = ("orders-internal", "orders-tls", "orders-operator")
    pairs = [Pair(files["tls.crt"], files["tls.key"]) for files in map(world.files, leaves)]
    trusted = {one: {known.key_id for known in world.known(one, "ca.crt")} for one in leaves}
    signed = {one: world.known(one, "tls.crt")[0].issuer_key_id for one in trusted}
    credentials = world.files("orders-nats")
    return (
        all(ISSUER.fits(one) for one in pairs)
        and all(signed[one] in trusted[one] for one in trusted)
        and all(credentials[one].isalnum() for one in PASSWORDS)
        and credentials["broker-password"] in credentials["auth.conf"]
        and world.files("orders-nats-client")["password"] == credentials["client-password"]
        and world.files("orders-peer-keys")["cluster.keys"].isascii()
    )


async def test_each_damaged_file_is_made_anew_or_named_with_the_remedy():
    cases = await damaged()
    assert len({secret for secret, _, _ in cases}) == 8
    for secret, key, how in cases:
        world = world_of("embedded")
        await world.look()
        before = world.known("orders-internal-ca", "ca.crt")[0].key_id
        damage(world, secret, key, how)
        issued = await world.look()
        if secret in ("orders-ca", "orders-internal-ca") and key in ("ca.crt", "ca.key"):
            told = issued.certificates
            assert (told.reason, told.secret) == ("Untrusted", secret), (secret, key, how)
            assert "suspend" in told.detail
            assert "ca.crt and ca.key" in told.detail
            assert issued.is_waiting
            continue
        assert (issued.certificates.reason, issued.is_waiting) == ("Valid", False)
        assert is_whole(world), (secret, key, how)
        assert world.known("orders-internal-ca", "ca.crt")[0].key_id == before
        written = len(world.kube.writes)
        await world.look()
        assert len(world.kube.writes) == written


async def test_key_of_another_certificate_is_damage():
    world = world_of("least")
    await world.look()
    other = base64.b64encode(world.files("orders-operator")["tls.key"]).decode()
    world.kube.edit(
        SECRETS, NAMESPACE, "orders-internal", lambda body: body["data"].update({"tls.key": other})
    )
    assert (await world.look()).certificates.reason == "Valid"
    files = world.files("orders-internal")
    assert ISSUER.fits(Pair(files["tls.crt"], files["tls.key"]))


async def test_authority_that_signed_nothing_is_made_anew():
    world = world_of("least")
    await world.look()
    world.kube.remove(SECRETS, NAMESPACE, "orders-internal")
    damage(world, "orders-internal-ca", "ca.key", "text")
    assert (await world.look()).certificates.reason == "Valid"
    (authority,) = world.known("orders-internal-ca", "ca.crt")
    assert world.known("orders-internal", "tls.crt")[0].issuer_key_id == authority.key_id
