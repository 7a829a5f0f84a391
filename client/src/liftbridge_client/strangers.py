"""Diagnosis of a failed connection from gRPC's text: not a broker, or wrong TLS settings.

These texts name bytes of protocols ("got frame type 80"). They only affect the error text: the call
is retried as for any unavailable broker, since another one may have its address by then.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

PORT_ADVICE: Final = (
    "Name the gRPC port of a broker, 9292 unless it is configured otherwise; 9294 is for operators,"
    " 9293 for metrics, 4222 for NATS."
)
_CREDENTIALS_ADVICE: Final = (
    "Give a certificate and its key that the broker accepts: `cert` and `key` of TlsFiles or of a "
    "profile."
)

_CERTIFICATE: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "presents a certificate that is not trusted",
        "Name the CA that signed it: `ca` of TlsFiles or of a profile.",
    ),
    (
        "Hostname Verification",
        "presents a certificate for another name",
        "Connect by a name in the certificate, or give that name as `server_name`.",
    ),
)
"""Faults of a server's certificate, as `_KINDS`."""

_KINDS: Final = (
    ("http1.x server", "speaks HTTP/1, not gRPC", PORT_ADVICE),
    ("Failed parsing HTTP/2", "does not speak gRPC", PORT_ADVICE),
    ("missing selected ALPN", "speaks TLS, but not gRPC", PORT_ADVICE),
    (
        "WRONG_VERSION_NUMBER",
        "does not speak TLS",
        "Connect without TLS, or name a port that has TLS.",
    ),
    *_CERTIFICATE,
    ("_ALERT_", "refuses TLS with this client", _CREDENTIALS_ADVICE),
    ("Unwrap failed", "ended TLS, as if it required a client certificate", _CREDENTIALS_ADVICE),
    *(
        (
            words,
            "accepts connections, but sends nothing",
            "Check whether it is a broker, and whether that is overloaded or hangs.",
        )
        for words in ("before receiving SETTINGS", "Endpoint closing")
    ),
    *(
        (
            words,
            "closes connections immediately",
            "Check whether a broker is there and whether it expects TLS, or try again later.",
        )
        for words in ("Socket closed", "Connection reset", "Broken pipe")
    ),
)
"""Texts of gRPC with their diagnosis and advice; the first match counts."""

SURE: Final = 2
_UNCONNECTED: Final = "failed to connect to all addresses"
_ADDRESS: Final = re.compile(r"ipv[46]:(\S+): ")
_REASON: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([^:]+)")


class Stranger(NamedTuple):
    """Diagnosis of a failed connection, with advice."""

    what: str
    advice: str


def stranger(text: str) -> Stranger | None:
    """Diagnose a failed connection from gRPC's text; `None` if the text is unknown."""
    if not text.startswith(_UNCONNECTED):
        return None
    for words, what, advice in _KINDS:
        if words in text:
            address = _ADDRESS.search(text)
            reason = _REASON.search(text)
            place = unquote(address[1]) if address else "the server"
            return Stranger(f"{place} {what}{f' ({reason[1]})' if reason else ''}", advice)
    return None


def certainty(text: str) -> int:
    """Rank how specific an error text of gRPC is, to compare several addresses of a name.

    Returns `SURE` if the text names a fault of a certificate, 1 for another diagnosis, 0 for none.
    """
    if stranger(text) is None:
        return 0
    return SURE if any(words in text for words, _, _ in _CERTIFICATE) else 1
