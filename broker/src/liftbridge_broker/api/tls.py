"""TLS of the gRPC port: server certificate, client certificates, both replaceable while running."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from liftbridge_broker.api.certificates import expiry_of

# The suites of TLS 1.2 that RFC 9113 9.2.2 allows; those of TLS 1.3 are all fine.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where keys and certificates are read from, in PEM form.

    Attributes:
        certificate: The server's certificate, its chain behind it.
        key: Its private key, without a passphrase.
        client_ca: Certificates that client certificates must be signed by; None to ask for none.
        needs_client_certificate: Whether a client without a certificate is turned away.
        version_min: Oldest TLS version spoken.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    needs_client_certificate: bool = False
    version_min: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2


class ServerTls:
    """A TLS context whose certificates can be read anew without closing the port.

    Connections that exist keep what they were made with; each new handshake takes what was read
    last. TLS 1.2 at least, ALPN `h2` only.

    Attributes:
        context: What to listen with.
        expires_at: Unix seconds at which the server's certificate ends; 0 when that is unreadable.
        loaded: SHA-256 of the files that are in use, hexadecimal; not of what lies there now.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            OSError: A file cannot be read, or does not hold what it should (`ssl.SSLError`).
        """
        self._files = files
        self.loaded = _fingerprints(files)
        self.context = _read(files)
        self.expires_at = _expiry(files)
        self._current = self.context
        self.context.sni_callback = self._on_client_hello

    def reload(self) -> None:
        """Read the files anew; after an error the old certificates stay in use.

        Raises:
            OSError: A file cannot be read, or does not hold what it should (`ssl.SSLError`).
        """
        # Taken before: a file that is replaced in between is another one at the next look.
        loaded = _fingerprints(self._files)
        self._current = _read(self._files)
        self.loaded = loaded
        self.expires_at = _expiry(self._files)

    def _on_client_hello(
        self, tls: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext
    ) -> None:
        """Continue a handshake, whether it names a server or not, with what was read last."""
        tls.context = self._current


def _fingerprints(files: TlsFiles) -> Mapping[Path, str]:
    paths = (files.certificate, files.client_ca)
    return {path: sha256(path.read_bytes()).hexdigest() for path in paths if path is not None}


def _expiry(files: TlsFiles) -> int:
    try:
        return expiry_of(files.certificate)
    except ValueError:
        return 0  # OpenSSL took it; not knowing when it ends is no reason to refuse it


def _read(files: TlsFiles) -> ssl.SSLContext:
    """A context from the files."""
    assert files.client_ca is not None or not files.needs_client_certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = files.version_min
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(files.certificate, files.key)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        needs = files.needs_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if needs else ssl.CERT_OPTIONAL
    return context
