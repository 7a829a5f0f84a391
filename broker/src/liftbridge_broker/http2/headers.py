"""Request headers: HPACK, reassembly of blocks, and the rules of RFC 9113 8 and of gRPC.

The broker ignores metadata that callers add (gRPC's custom metadata) except `authorization`: such
fields are checked and dropped. So they cost no more than HTTP/2 requires, and a call retains none
of them.
"""

import re
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from liftbridge_broker.http2.events import RequestHead
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.grpc import parse_timeout
from liftbridge_broker.http2.limits import Limits

Fields = list[tuple[bytes, bytes]]

_NAME_OCTETS: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_FORBIDDEN_IN_VALUE: Final = b"\x00\r\n"
_GRPC_TYPE = re.compile(r"application/grpc(\+proto)?\s*(;.*)?")
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_AUTHORIZATION: Final = b"authorization"
_PROTOCOL: Final = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        _AUTHORIZATION,
    )
)
HEADER_FIELDS_MAX: Final = 128
"""Maximum number of fields in a block; twice as many end the connection.

A field from the table costs the client one byte and the broker about 3 us.
"""
_FIELD_OVERHEAD_BYTES: Final = 32
_CACHED_HEADS_MAX: Final = 32
_CACHED_BYTES_MAX: Final = 512
"""Maximum size of a cached block, and of the texts of a cached head.

With the objects about 50 kB in all.
"""

_RESOURCE_EXHAUSTED: Final = 8
_INTERNAL: Final = 13


def split_fields(fields: Fields) -> tuple[dict[bytes, bytes], dict[bytes, bytes]] | None:
    """Return the pseudo-header fields of a request or its trailers, and the protocol's own fields.

    None when the list is malformed (RFC 9113 8.2, 8.3): the stream is reset with PROTOCOL_ERROR.
    Spaces around values are removed, since gRPC lets callers send them.
    """
    pseudo: dict[bytes, bytes] = {}
    own: dict[bytes, bytes] = {}
    is_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if is_regular or name in pseudo or name not in _PSEUDO:
                return None
            pseudo[name] = value
        elif (
            name in _CONNECTION_SPECIFIC
            or not name
            or name.translate(None, _NAME_OCTETS)
            or len(value.translate(None, _FORBIDDEN_IN_VALUE)) != len(value)
            or (name == b"te" and value != b"trailers")
        ):
            return None
        else:
            is_regular = True
            if name in _PROTOCOL:
                # Two would be ambiguous: joined, they are no valid credentials (RFC 9110 5.3).
                is_second = name == _AUTHORIZATION and name in own
                first = own[name] + b"," if is_second else b""
                own[name] = first + value.strip(b" \t")
    return pseudo, own


def parse_head(fields: Fields, header_list_bytes_max: int) -> RequestHead | None:
    """Check a decoded header list; None if it is malformed.

    A well-formed HTTP request that is not acceptable as gRPC has a `refusal`. Of a list that is too
    large only the fields that the answer needs are checked.
    """
    refusal = _size_refusal(fields, header_list_bytes_max)
    if refusal is not None:
        fields = [field for field in fields if field[0] in _PSEUDO or field[0] in _PROTOCOL]
    parts = split_fields(fields)
    if parts is None:
        return None
    pseudo, own = parts
    path = pseudo.get(b":path")
    if not path or b":method" not in pseudo or b":scheme" not in pseudo:
        return None
    length = own.get(b"content-length")
    if length is not None and (not length.isdigit() or len(length) > 18):
        return None
    timeout_ns = None
    if b"grpc-timeout" in own:
        timeout_ns = parse_timeout(own[b"grpc-timeout"])
        if timeout_ns is None:
            refusal = refusal or (_INTERNAL, "malformed grpc-timeout")
    content_type = own.get(b"content-type", b"").decode("latin-1")
    encoding = own.get(b"grpc-encoding", b"identity")
    return RequestHead(
        verb=pseudo[b":method"].decode("latin-1"),
        path=path.decode("latin-1"),
        is_grpc=_GRPC_TYPE.fullmatch(content_type) is not None,
        timeout_ns=timeout_ns,
        encoding=encoding.decode("latin-1"),
        content_length=None if length is None else int(length),
        refusal=refusal,
        # Without `authorization`: a cached head shares its bytes with the table, mostly.
        text_bytes=len(pseudo[b":method"]) + len(path) + len(encoding),
        authorization=own.get(_AUTHORIZATION, b""),
    )


def _size_refusal(fields: Fields, limit: int) -> tuple[int, str] | None:
    """Build the refusal of a header list with too many fields, or over its size limit.

    The size is counted as SETTINGS_MAX_HEADER_LIST_SIZE counts.
    """
    if len(fields) > HEADER_FIELDS_MAX:
        text = f"received more header fields than max ({len(fields)} vs. {HEADER_FIELDS_MAX})"
        return _RESOURCE_EXHAUSTED, text
    size = sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields)
    if size <= limit:
        return None
    return _RESOURCE_EXHAUSTED, f"received metadata larger than max ({size} vs. {limit})"


class HeaderDecoder:
    """HPACK decoder of one connection.

    A block that leaves the dynamic table unchanged always decodes to the same list until another
    block changes the table. Such results are cached, because a client repeats its headers on
    every call and decoding in Python takes some 40 us (`tests/bench/bench_http2.py`).

    Attributes:
        field_count: Fields of the last block, 0 when its result was cached.
    """

    __slots__ = ("_decoder", "_heads", "_list_bytes_max", "field_count")

    def __init__(self, limits: Limits) -> None:
        self._list_bytes_max = limits.header_list_bytes_max
        self._decoder = Decoder(max_header_list_size=2 * limits.header_list_bytes_max)
        self._heads: dict[bytes, RequestHead] = {}
        self.field_count = 0

    def head(self, block: bytes) -> RequestHead | None:
        """Decode and check the header block of a request; None if it is malformed.

        Raises:
            ConnectionFaultError: The block cannot be decoded, so the table is lost.
        """
        known = self._heads.get(block)
        if known is not None:
            self.field_count = 0
            return known
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = (table.maxsize, len(entries), entries[0] if entries else None)
        head = parse_head(self.fields(block), self._list_bytes_max)
        after = (table.maxsize, len(entries), entries[0] if entries else None)
        # An insertion puts a new tuple first, so the identity of the first entry shows it.
        if before[:2] != after[:2] or before[2] is not after[2]:
            self._heads.clear()
        elif head is not None and max(len(block), head.text_bytes) <= _CACHED_BYTES_MAX:
            if len(self._heads) >= _CACHED_HEADS_MAX:
                self._heads.clear()
            self._heads[block] = head
        return head

    def fields(self, block: bytes) -> Fields:
        """Decode a header block without checking its meaning.

        Raises:
            ConnectionFaultError: The block cannot be decoded, so the table is lost.
        """
        try:
            fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            code = Http2Code.ENHANCE_YOUR_CALM
            raise ConnectionFaultError(
                code, "header list too large", flood="header_list"
            ) from error
        except HPACKError as error:
            # The library's text contains the rest of the block, and so the tokens of the client.
            text = "header block cannot be decoded"
            raise ConnectionFaultError(Http2Code.COMPRESSION_ERROR, text) from error
        self.field_count = len(fields)
        if self.field_count > 2 * HEADER_FIELDS_MAX:
            text = f"header list of {self.field_count} fields, allowed are {HEADER_FIELDS_MAX}"
            raise ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="header_list")
        return fields

    def trailers_are_good(self, block: bytes) -> bool:
        """Decode the unused trailers of a request; return whether they are well-formed.

        Raises:
            ConnectionFaultError: The block cannot be decoded, so the table is lost.
        """
        self._heads.clear()
        fields = self.fields(block)
        parts = split_fields(fields) if len(fields) <= HEADER_FIELDS_MAX else None
        return parts is not None and not parts[0]

    def skip(self, block: bytes) -> None:
        """Decode a block only to keep the table in sync with the peer's.

        Raises:
            ConnectionFaultError: The block cannot be decoded, so the table is lost.
        """
        self._heads.clear()
        self.fields(block)


class HeaderBlock:
    """A header block in pieces: HEADERS and the following CONTINUATION frames (RFC 9113 6.10).

    Attributes:
        stream_id: Stream of the open block, 0 without one.
        flags: Flags of its HEADERS frame.
    """

    __slots__ = (
        "_bytes_max",
        "_continuations",
        "_continuations_max",
        "_pieces",
        "flags",
        "stream_id",
    )

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = 2 * limits.header_list_bytes_max
        self._continuations_max = limits.continuations_max
        self._continuations = 0
        self._pieces = bytearray()
        self.stream_id = 0
        self.flags = 0

    def begin(self, stream_id: int, flags: int, piece: bytes) -> None:
        """Open a block with the fragment of a HEADERS frame.

        Raises:
            ConnectionFaultError: The block is too large.
        """
        assert self.stream_id == 0
        self.stream_id = stream_id
        self.flags = flags
        self._continuations = 0
        self._pieces = bytearray()
        self._add(piece)

    def extend(self, piece: bytes) -> None:
        """Add the fragment of a CONTINUATION frame.

        Raises:
            ConnectionFaultError: There are too many, or the block is too large.
        """
        self._continuations += 1
        if self._continuations > self._continuations_max:
            code = Http2Code.ENHANCE_YOUR_CALM
            raise ConnectionFaultError(code, "flood: continuation", flood="continuation")
        self._add(piece)

    def finish(self) -> bytes:
        """Close the block and return it."""
        block = bytes(self._pieces)
        self._pieces = bytearray()
        self.stream_id = 0
        return block

    def _add(self, piece: bytes) -> None:
        """Append a fragment within the bound."""
        if len(self._pieces) + len(piece) > self._bytes_max:
            code = Http2Code.ENHANCE_YOUR_CALM
            raise ConnectionFaultError(code, "header list too large", flood="header_list")
        self._pieces += piece
