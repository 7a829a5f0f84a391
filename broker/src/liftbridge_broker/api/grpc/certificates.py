"""Reads the expiry of a certificate file, which the standard library reports only for peers.

A certificate is DER (X.690): tag, length, content, nested. The expiry has a fixed place (RFC 5280
4.1): Certificate, its first member, and in it, after the optional version [0], the fourth member,
the validity, whose second member is the end.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_TIME_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime, whose years 00 to 49 belong to this century, and GeneralizedTime."""


class _Member(NamedTuple):
    """A value: its tag, its content, and the bytes after it."""

    tag: int
    content: bytes
    rest: bytes


def expiry_of(path: Path) -> int:
    """Return the Unix time, in seconds, at which the first certificate of a PEM file expires.

    Raises:
        OSError: The file cannot be read.
        ValueError: It does not start with a readable certificate.
    """
    text = path.read_text()
    start, end = text.find(_BEGIN), text.find(_END)
    if start < 0 or end < start:
        raise ValueError("no certificate")
    certificate = _member(ssl.PEM_cert_to_DER_cert(text[start : end + len(_END)]))
    first = _member(_member(certificate.content).content)
    if first.tag == _VERSION:
        first = _member(first.rest)
    signature = _member(first.rest)
    issuer = _member(signature.rest)
    validity = _member(issuer.rest)
    until = _member(_member(validity.content).rest)
    form = _TIME_FORMATS.get(until.tag)
    if form is None:
        raise ValueError(f"time of tag {until.tag}")
    written = until.content.decode("ascii")
    expiry = datetime.strptime(written, form).replace(tzinfo=UTC)
    if until.tag == min(_TIME_FORMATS) and expiry.year > 2049:
        expiry = expiry.replace(year=expiry.year - 100)
    return int(expiry.timestamp())


def _member(data: bytes) -> _Member:
    """Return the first DER value in some bytes.

    Raises:
        ValueError: There is no complete value.
    """
    if len(data) < 2:
        raise ValueError("certificate is cut off")
    start, length = 2, data[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise ValueError("certificate is cut off")
    return _Member(data[0], data[start : start + length], data[start + length :])
