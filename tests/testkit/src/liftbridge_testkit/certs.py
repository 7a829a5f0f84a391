"""Certificates for tests, made by the `openssl` program.

    authority = Authority(tmp_path)
    server = authority.issue("server", names=("localhost", "127.0.0.1"))
    client = authority.issue("client", common_name="broker-a")
    server.cert, server.key, authority.cert     # paths of PEM files

Keys are elliptic (P-256), which are made in a few milliseconds. Nothing here is safe outside tests.
"""

import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

_DAYS = 30


@dataclass(frozen=True, slots=True)
class Certificate:
    """Paths of a certificate and its private key, both PEM."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of its own.

    Attributes:
        cert: Path of its certificate, for clients that trust it.
    """

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """Make the authority.

        Args:
            directory: Gets all files.
            name: Distinguishes several authorities in one directory.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = name
        self.cert = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        _openssl(
            *("req", "-x509", "-nodes", "-days", str(_DAYS), *_new_key(self._key)),
            *("-subj", f"/CN={name}", "-out", str(self.cert)),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(
        self,
        name: str,
        *,
        names: tuple[str, ...] = ("localhost", "127.0.0.1"),
        common_name: str = "",
        days: int = _DAYS,
    ) -> Certificate:
        """Make a certificate for server and client use.

        Args:
            name: Stem of the file names; issuing it again replaces the files.
            names: Host names and addresses it is valid for.
            common_name: Common name of its subject; `name` when empty.
            days: Validity; a negative number makes one that has expired.
        """
        cert = self._directory / f"{name}.pem"
        key = self._directory / f"{name}.key"
        request = self._directory / f"{name}.csr"
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(
            f"subjectAltName={','.join(map(_alternative, names))}\n"
            "basicConstraints=critical,CA:FALSE\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
        )
        _openssl(
            *("req", "-nodes", *_new_key(key), "-subj", f"/CN={common_name or name}"),
            *("-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.cert), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions)),
            *("-out", str(cert)),
        )
        return Certificate(cert, key)

    def revoked(self, *certificates: Certificate) -> Path:
        """Make the list of revoked certificates, valid for a day; path of the PEM file."""
        stem = self._directory / f"{self._name}-revoked"
        index, config = stem.with_suffix(".index"), stem.with_suffix(".cnf")
        index.write_text("")
        config.write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={index}\ncertificate={self.cert}\n"
            f"private_key={self._key}\ndefault_md=sha256\ndefault_crl_days=1\n"
        )
        for certificate in certificates:
            _openssl("ca", "-config", str(config), "-revoke", str(certificate.cert))
        made = stem.with_suffix(".pem")
        _openssl("ca", "-config", str(config), "-gencrl", "-out", str(made))
        return made


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(path))


def _alternative(name: str) -> str:
    try:
        ip_address(name)
    except ValueError:
        return f"DNS:{name}"
    return f"IP:{name}"


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
