"""The end of a certificate's validity, against what `openssl` says of the same file."""

import ssl
import subprocess
from pathlib import Path

import pytest

from liftbridge_broker.api.grpc.certificates import expiry_of
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.fuzzing import Fuzz


def told_by_openssl(path: Path) -> int:
    """`notAfter` in Unix seconds."""
    command = ["openssl", "x509", "-in", str(path), "-noout", "-enddate"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return ssl.cert_time_to_seconds(answer.strip().removeprefix("notAfter="))


# 2050 and later is written in another form.
@pytest.mark.parametrize("days", [1, 30, 12_000, 40_000])
def test_expiry_is_what_openssl_says(tmp_path: Path, days: int) -> None:
    issued = Authority(tmp_path).issue("server", days=days)
    assert expiry_of(issued.cert) == told_by_openssl(issued.cert)


def test_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", days=3)
    chain = tmp_path / "chain.pem"
    chain.write_text("a comment\n" + issued.cert.read_text() + authority.cert.read_text())
    assert expiry_of(chain) == told_by_openssl(issued.cert) < told_by_openssl(authority.cert)


def test_certificate_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("server")
    whole = ssl.PEM_cert_to_DER_cert(issued.cert.read_text())
    path = tmp_path / "cut.pem"
    for length in range(0, len(whole) // 2, 3):
        path.write_text(ssl.DER_cert_to_PEM_cert(whole[:length]))
        with pytest.raises(ValueError, match=r"certificate|time of tag"):
            expiry_of(path)
    path.write_text("nothing")
    with pytest.raises(ValueError, match="no certificate"):
        expiry_of(path)


def test_damaged_certificates_are_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).issue("server").cert.read_text())
    path = tmp_path / "damaged.pem"
    refused = 0
    for random in fuzz.rounds(5280, 2_000):
        data = bytearray(whole[: len(whole) // 2])
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_text(ssl.DER_cert_to_PEM_cert(bytes(data)))
        try:
            expiry_of(path)
        except ValueError:
            refused += 1
    assert refused == fuzz.count  # half of it is missing


def test_times_of_damaged_certificates_are_times_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).issue("server").cert.read_text())
    path = tmp_path / "damaged.pem"
    read = 0
    for random in fuzz.rounds(5281, 2_000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_text(ssl.DER_cert_to_PEM_cert(bytes(data)))
        try:
            assert expiry_of(path) > -(10**11)
            read += 1
        except ValueError:
            pass
    assert 0 < read < fuzz.count


def test_reload_moves_the_expiry(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", days=3)
    tls = ServerTls(TlsFiles(certificate=issued.cert, key=issued.key))
    before = tls.expires_at
    authority.issue("server", days=9)
    tls.reload()
    assert before < tls.expires_at == told_by_openssl(issued.cert)
