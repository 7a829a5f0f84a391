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
