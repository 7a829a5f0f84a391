"""TLS files as bytes; a bad file is refused by its name.

gRPC itself would report a bad file on standard error, without its name, and then report an
unreachable server.
"""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from liftbridge_client.errors import UsageError
from liftbridge_client.model import TlsFiles

_CERTIFICATE_ADVICE: Final = (
    "Name a file with `-----BEGIN CERTIFICATE-----`; `openssl x509 -inform DER` converts another "
    "form."
)
_KEY_ADVICE: Final = (
    "Name a file with `-----BEGIN PRIVATE KEY-----`; `openssl pkey` converts another form and "
    "removes a passphrase."
)


class Pem(NamedTuple):
    """Contents of the files; `None` for files that are not given."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


def read_pem(files: TlsFiles) -> Pem:
    """Read and check TLS files.

    Raises:
        UsageError: A file cannot be read, or has the wrong content.
    """
    if (files.cert is None) != (files.key is None):
        given, lacking = ("key", "cert") if files.cert is None else ("cert", "key")
        raise _refusal(f"`{given}` needs `{lacking}`", f"Give both, or remove `{given}`.")
    pem = Pem(_read("ca", files.ca), _read("cert", files.cert), _read("key", files.key))
    _check_certificates("ca", files.ca)
    _check_certificates("cert", files.cert)
    if files.cert is not None and files.key is not None:
        _check_key(files.cert, files.key)
    return pem


class PemFiles:
    """TLS files of a client, which are read again when they change, as Kubernetes changes them."""

    def __init__(self, files: TlsFiles) -> None:
        """Store the names without I/O."""
        self._files = files
        self._paths = [path for path in (files.ca, files.cert, files.key) if path is not None]
        self._seen: tuple[tuple[int, int], ...] | None = None

    def read(self) -> Pem:
        """Read and check the files.

        Raises:
            UsageError: A file cannot be read, or has the wrong content.
        """
        self._seen = self._state()
        return read_pem(self._files)

    def changed(self) -> Pem | None:
        """Return the files if they have changed since they were last read; `None` otherwise.

        Files that cannot be used, or change while they are read, count as not changed yet: the
        former ones may still be valid.
        """
        seen = self._state()
        if seen is None or seen == self._seen:
            return None
        try:
            pem = read_pem(self._files)
        except UsageError:
            return None
        if self._state() != seen:
            return None
        self._seen = seen
        return pem

    def _state(self) -> tuple[tuple[int, int], ...] | None:
        try:
            states = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((state.st_ino, state.st_mtime_ns) for state in states)


def _read(what: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        text = f"cannot read `{what}` {path}: {error.strerror}"
        raise _refusal(text, "Correct the path, or permit this user to read the file.") from error


def _check_certificates(what: str, path: Path | None) -> None:
    if path is None:
        return
    context = _context()
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        text = f"`{what}` {path} must hold certificates in PEM"
        raise _refusal(text, _CERTIFICATE_ADVICE) from error
    if context.cert_store_stats()["x509"] == 0:  # OpenSSL also loads a revocation list
        raise _refusal(f"`{what}` {path} must hold certificates in PEM", _CERTIFICATE_ADVICE)


def _check_key(cert: Path, key: Path) -> None:
    try:
        _context().load_cert_chain(cert, key, password=bytes)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            text = f"`key` {key} must be the private key of `cert` {cert}, and is another one"
            raise _refusal(
                text, "Name the certificate and the key that belong together."
            ) from error
        text = f"`key` {key} must hold a private key in PEM without a passphrase"
        raise _refusal(text, _KEY_ADVICE) from error
    except OSError as error:
        raise _refusal(f"cannot read {cert} or {key}: {error.strerror}", _KEY_ADVICE) from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # gRPC and the broker decide which key strength is enough.
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _refusal(text: str, advice: str) -> UsageError:
    error = UsageError(f"TLS: {text}")
    error.advice = advice
    return error
