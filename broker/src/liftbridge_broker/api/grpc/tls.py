"""TLS of the gRPC port: server certificate, client certificates, both replaceable while running."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from liftbridge_broker.api.grpc.certificates import expiry_of
from liftbridge_broker.errors import ConfigError

# The suites of TLS 1.2 that RFC 9113 9.2.2 allows; all suites of TLS 1.3 are allowed.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

_FOREIGN_KEY: Final = frozenset(("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of keys and certificates, in PEM form.

    Attributes:
        certificate: The server's certificate, followed by its chain.
        key: Its private key, without a passphrase.
        client_ca: Certificates that must have signed client certificates, and revocation lists;
            None to request no client certificate.
        needs_client_certificate: Whether a client without a certificate is refused.
        version_min: Oldest TLS version spoken.
        setting: Prefix of the settings that name them, for errors.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    needs_client_certificate: bool = False
    version_min: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    setting: str = "tls"


class ServerTls:
    """A TLS context whose certificates can be reloaded without closing the port.

    Existing connections keep their certificates; each new handshake uses the latest. TLS 1.2 at
    least, ALPN `h2` only.

    Attributes:
        context: Context of the next handshake; a new one after `reload`, so that no session of the
            old one, whose client presents no certificate again, is resumed.
        files: Files that it is loaded from.
        expires_at: Unix seconds at which the server's certificate expires; 0 when unreadable.
        loaded: SHA-256 of the loaded files, hexadecimal; not of their current content.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ConfigError: A file cannot be read, or its content is invalid.
        """
        self.files = files
        self.reload()

    def reload(self) -> None:
        """Read the files again; after an error the old certificates stay in use.

        Raises:
            ConfigError: A file cannot be read, or its content is invalid.
        """
        # Computed first, so that a file replaced in between differs at the next check.
        loaded = _checked(self.files)
        self.context = _read(self.files)
        self.loaded: Mapping[Path, str] = loaded
        self.expires_at = _expiry(self.files)


def _checked(files: TlsFiles) -> Mapping[Path, str]:
    """Return the fingerprints of the certificates, after a check of each file's content."""
    fingerprints = {files.certificate: _fingerprint(files, files.certificate, "CERTIFICATE")}
    _fingerprint(files, files.key, "PRIVATE KEY")
    if files.client_ca is not None:
        fingerprints[files.client_ca] = _fingerprint(files, files.client_ca, "CERTIFICATE")
    return fingerprints


def _fingerprint(files: TlsFiles, path: Path, label: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{files.setting}: cannot read {path}: {error.strerror}") from error
    if f"{label}-----".encode() not in data:
        raise ConfigError(
            f"{files.setting}: {path} holds no {label.lower()} in PEM form, which begins with "
            f"-----BEGIN {label}-----"
        )
    if path == files.key and b"ENCRYPTED" in data:
        raise ConfigError(
            f"{files.setting}: {path} has a passphrase, which the broker cannot ask for: store the "
            f"key without one (openssl pkey -in {path} -out NEW)"
        )
    return sha256(data).hexdigest()


def _expiry(files: TlsFiles) -> int:
    try:
        return expiry_of(files.certificate)
    except (OSError, ValueError):
        return 0  # OpenSSL accepted it; an unknown expiry does not make it unusable


def _read(files: TlsFiles) -> ssl.SSLContext:
    """Create a context from the files.

    Raises:
        ConfigError: OpenSSL rejects them.
    """
    assert files.client_ca is not None or not files.needs_client_certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = files.version_min
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A resumed session verifies nothing again: it would outlive the certificate of its client, and
    # with TLS 1.3 each session can be resumed into the next.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    try:
        # The empty password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=bytes)
    except (OSError, ValueError) as error:
        raise _refusal(files, f"{files.certificate} and {files.key}", error) from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise _refusal(files, str(files.client_ca), error) from error
        needs = files.needs_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if needs else ssl.CERT_OPTIONAL
        if context.cert_store_stats()["crl"]:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _refusal(files: TlsFiles, names: str, error: Exception) -> ConfigError:
    if isinstance(error, ssl.SSLError) and error.reason in _FOREIGN_KEY:
        return ConfigError(
            f"{files.setting}: {files.key} is not the private key of the certificate in "
            f"{files.certificate}, the first one there: replace both together"
        )
    return ConfigError(f"{files.setting}: cannot use {names}, is a part damaged? {error}")
