"""Certificates as they are issued: what they say, who takes them, in handshakes in memory."""

import ssl
import time

import pytest

from liftbridge_operator.cluster.certificates.port import Pair
from liftbridge_operator.cluster.certificates.subject_names import (
    NAMES_MAX,
    internal_names,
    subject_names,
)
from liftbridge_operator.cluster.x509 import CryptographyIssuer, bundle
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, load_spec

ISSUER = CryptographyIssuer()
NOW = int(time.clock_gettime(time.CLOCK_REALTIME))
DAY = 86_400
PATH = {path.stem: path for path in PATHS}


def authority(name: str = "orders", days: int = 10) -> Pair:
    return ISSUER.make_authority(name, not_before_s=NOW - DAY, not_after_s=NOW + days * DAY)


def leaf(of: Pair, names: tuple[str, ...], *, begins_s: int = -DAY, ends_s: int = DAY) -> Pair:
    return ISSUER.issue(of, "b", names, not_before_s=NOW + begins_s, not_after_s=NOW + ends_s)


def context(side: ssl._SSLMethod, own: Pair, trusted: bytes, folder) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=trusted.decode())
    path = folder / f"{side.name}.pem"
    path.write_bytes(own.cert + own.key)
    made.load_cert_chain(path)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both sides in turn until both are done."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    waiting = list(sides)
    for _ in range(10):
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not waiting


@pytest.mark.parametrize(
    "name",
    ["orders-7.orders-brokers.shop.svc", "127.0.0.1", "localhost", "orders-brokers.shop"],
)
def test_both_sides_show_one_certificate_and_take_it(name, tmp_path):
    root = authority()
    own = leaf(root, internal_names(cluster_of(load_spec(PATH["least"]))))
    server = context(ssl.PROTOCOL_TLS_SERVER, own, root.cert, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, own, root.cert, tmp_path)
    handshake(server, client, name)
    assert server.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(
    ("names", "days", "asked", "why"),
    [
        (("localhost",), 1, "other", "Hostname mismatch"),
        (("*.brokers",), 1, "a.b.brokers", "Hostname mismatch"),
        (("localhost",), -1, "localhost", "expired"),
    ],
)
def test_wrong_names_and_old_certificates_are_refused(names, days, asked, why, tmp_path):
    root = authority()
    begins_s = min(-DAY, (days - 1) * DAY)
    shown = leaf(root, names, begins_s=begins_s, ends_s=days * DAY)
    server = context(ssl.PROTOCOL_TLS_SERVER, shown, root.cert, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, leaf(root, ("c",)), root.cert, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match=why):
        handshake(server, client, asked)


def test_certificate_of_another_authority_is_refused_until_its_own_is_in_the_bundle(tmp_path):
    first, second = authority(), authority()
    server = context(ssl.PROTOCOL_TLS_SERVER, leaf(second, ("localhost",)), first.cert, tmp_path)
    own = leaf(first, ("c",))
    client = context(ssl.PROTOCOL_TLS_CLIENT, own, first.cert, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "localhost")
    both = bundle([first.cert, second.cert])
    client = context(ssl.PROTOCOL_TLS_CLIENT, own, both, tmp_path)
    handshake(server, client, "localhost")
    assert [one.key_id for one in ISSUER.describe(both)] == [
        ISSUER.describe(one.cert)[0].key_id for one in (first, second)
    ]


def test_certificates_describe_themselves():
    root = authority()
    (known,) = ISSUER.describe(root.cert)
    (shown,) = ISSUER.describe(leaf(root, ("b", "127.0.0.1", "a")).cert)
    assert known.issuer_key_id == known.key_id == shown.issuer_key_id != shown.key_id
    assert shown.names == ("127.0.0.1", "a", "b")
    assert (shown.not_before_s, shown.not_after_s) == (NOW - DAY, NOW + DAY)
    assert len(shown.fingerprint) == 64


def test_something_else_than_certificates_is_refused():
    with pytest.raises(ValueError, match="PEM"):
        ISSUER.describe(b"nonsense")


def test_keys_are_not_shown():
    assert "PRIVATE" not in repr(authority())


def test_every_listener_and_address_is_a_name():
    names = subject_names(cluster_of(load_spec(PATH["outside"])), ("198.51.100.4",))
    assert {
        "*.orders-brokers.shop.svc",
        "orders-nodes.shop.svc",
        "orders-balanced.shop.svc.cluster.local",
        "a.example",
        "streams.example",
        "192.0.2.7",
        "198.51.100.4",
    } <= set(names)
    assert len(names) == len(set(names))


def test_scaling_needs_no_other_names():
    three = cluster_of(load_spec(PATH["least"]))
    nine = cluster_of(load_spec(PATH["least"], replicas=9))
    assert subject_names(three) == subject_names(nine)


def test_too_many_names_are_refused():
    addresses = tuple(f"192.0.{high}.{low}" for high in range(4) for low in range(256))
    with pytest.raises(ValueError, match=f"more than {NAMES_MAX}"):
        subject_names(cluster_of(load_spec(PATH["least"])), addresses)
