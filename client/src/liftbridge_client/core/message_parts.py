"""Parts of a message: bytes, and headers with text names.

A wrong type is refused before anything is sent; later it would fail the task that sends for all
callers.
"""

from collections.abc import Mapping
from typing import Final

from liftbridge_client.errors import UsageError

MESSAGE_HEADERS_MAX: Final = 1_000
"""Maximum number of headers of a message; a broker refuses more."""

REQUEST_HEADERS_MAX: Final = 4_096
"""Maximum number of headers of all messages of one request that a broker accepts."""


def check_message(value: object, key: object, headers: object) -> None:
    """Refuse an invalid message.

    Raises:
        UsageError: The value or the key is not bytes, or a header's name is not text or its value
            not bytes.
    """
    if not isinstance(value, bytes):
        raise UsageError(
            f"the value is {_kind(value)}: values must be bytes; encode it, or use a publisher "
            "with a codec, such as TextCodec()"
        )
    if not isinstance(key, bytes):
        raise UsageError(f'the key is {_kind(key)}: keys must be bytes, b"" for none; encode it')
    if headers is not None:
        _check_headers(headers)


def _check_headers(headers: object) -> None:
    if not isinstance(headers, (dict, Mapping)):  # faster for a dict
        raise UsageError(
            f"the headers are {_kind(headers)}: headers must be a mapping from str to bytes; make "
            "them a dict"
        )
    for name, value in headers.items():
        if not isinstance(name, str):
            raise UsageError(
                f"the header name {name!r} is {_kind(name)}: header names must be str; decode it"
            )
        if not (name.isascii() or is_utf8(name)):
            raise UsageError(
                f"the header name {name!r} is a str with lone surrogates: header names "
                "must be text that UTF-8 can encode; replace them"
            )
        if not isinstance(value, bytes):
            raise UsageError(
                f"header {name!r} is {_kind(value)}: header values must be bytes; encode it"
            )


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text, which it cannot with a lone surrogate in it."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
