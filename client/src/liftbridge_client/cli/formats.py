r"""Formats of messages for `subscribe --format`: escapes as in kcat and rpk.

| Escape | Stands for |
| --- | --- |
| `%o` | offset |
| `%p` | partition |
| `%k` | key |
| `%v`, `%s` | value |
| `%t` | name of the stream |
| `%n` | NATS subject |
| `%T` | time, Unix nanoseconds |
| `%d` | time, ISO 8601 in UTC |
| `%h` | headers as `name=value`, with commas |
| `%K`, `%S` | length of the key, of the value |
| `%%` | a percent sign |
| `\n`, `\t`, `\r`, `\0`, `\\` | newline, tab, return, zero byte, backslash |

`%k{hex}`, `%v{hex}` and `{base64}` encode key and value. Nothing is added at the end.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from liftbridge_client.errors import UsageError
from liftbridge_client.model import Message

Piece = Callable[[Message], bytes]

_ESCAPES: Final[Mapping[str, Piece]] = {
    "o": lambda m: b"%d" % m.offset,
    "p": lambda m: b"%d" % m.partition,
    "k": lambda m: m.key,
    "v": lambda m: m.value,
    "s": lambda m: m.value,
    "t": lambda m: m.stream.encode(),
    "n": lambda m: m.subject.encode(),
    "T": lambda m: b"%d" % m.timestamp,
    "d": lambda m: m.time.isoformat().encode(),
    "h": lambda m: b",".join(b"%b=%b" % (name.encode(), v) for name, v in m.headers.items()),
    "K": lambda m: b"%d" % len(m.key),
    "S": lambda m: b"%d" % len(m.value),
    "%": lambda _m: b"%",
}
_ENCODERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
}
_BACKSLASHES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN: Final = re.compile(r"%(.)(?:\{(\w+)\})?|\\(.)|([^%\\]+)", re.DOTALL)


def compile_format(text: str) -> Piece:
    """Compile a format into a function from a message to bytes.

    Raises:
        UsageError: It has an unknown escape.
    """
    pieces: list[Piece] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UsageError(f"--format: {text[position:]!r} ends in the middle of an escape")
        pieces.append(_piece(match))
        position = match.end()
    return _joined(pieces)


def _joined(pieces: Sequence[Piece]) -> Piece:
    return lambda message: b"".join(piece(message) for piece in pieces)


def _piece(found: re.Match[str]) -> Piece:
    escape, encoding, backslash, literal = found.groups()
    if escape is None:
        plain = literal if backslash is None else _BACKSLASHES.get(backslash)
        if plain is None:
            raise UsageError(
                f"--format: unknown escape \\{backslash}; see liftbridge subscribe --help"
            )
        data = plain.encode()
        return lambda _message: data
    piece = _ESCAPES.get(escape)
    if piece is None:
        raise UsageError(f"--format: unknown escape %{escape}; see liftbridge subscribe --help")
    if encoding is None:
        return piece
    encode = _ENCODERS.get(encoding)
    if encode is None:
        raise UsageError(f"--format: unknown encoding {{{encoding}}}; must be hex or base64")
    return lambda message: encode(piece(message))
