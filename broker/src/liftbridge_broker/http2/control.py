"""Frames that carry no request: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, PRIORITY, GOAWAY.

All of them are rare, so each has a plain method with the checks of RFC 9113 6.
"""

from typing import Final

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.guard import Guard
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.sender import Sender
from liftbridge_broker.http2.table import StreamTable

_FIXED_BYTES: Final = {
    frames.PRIORITY: 5,
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}


class ControlFrames:
    """Handler of control frames.

    Attributes:
        has_greeted: Whether the server's settings were queued.
        has_settings: Whether the client's first SETTINGS has arrived.
        pongs: Payloads of answered PINGs since the owner last took them.
        peer_goaway: Code of the GOAWAY the client sent, None before.
    """

    __slots__ = (
        "_frames_at_ping",
        "_guard",
        "_sender",
        "_table",
        "has_greeted",
        "has_settings",
        "peer_goaway",
        "pongs",
    )

    def __init__(self, table: StreamTable, sender: Sender, guard: Guard) -> None:
        self._table = table
        self._sender = sender
        self._guard = guard
        self._frames_at_ping = 0
        self.has_greeted = False
        self.has_settings = False
        self.pongs: list[bytes] = []
        self.peer_goaway: int | None = None

    def greet(self, limits: Limits) -> None:
        """Queue the server's settings once the client has proved that it speaks HTTP/2."""
        self.has_greeted = True
        settings = {
            frames.SETTING_MAX_CONCURRENT_STREAMS: limits.streams_max,
            frames.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.SETTING_MAX_FRAME_SIZE: limits.frame_bytes_max,
            frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self._sender.control(frames.settings_frame(settings))
        more = limits.connection_window_bytes - frames.WINDOW_DEFAULT
        if more > 0:
            self._sender.control(frames.window_update_frame(0, more))

    def handle(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle one frame; frames of unknown types are dropped (RFC 9113 5.5).

        Raises:
            ConnectionFaultError: The frame breaks a rule of the connection.
        """
        fixed = _FIXED_BYTES.get(kind)
        if fixed is not None and len(payload) != fixed:
            text = f"frame of type {kind} with {len(payload)} bytes"
            raise ConnectionFaultError(Http2Code.FRAME_SIZE_ERROR, text)
        match kind:
            case frames.WINDOW_UPDATE:
                self._on_window_update(stream_id, payload)
            case frames.RST_STREAM:
                self._require_stream(stream_id, kind)
                self._table.on_reset(stream_id, int.from_bytes(payload, "big"))
            case frames.PING:
                self._require_connection(stream_id, kind)
                self._on_ping(flags, payload)
            case frames.SETTINGS:
                self._require_connection(stream_id, kind)
                self._on_settings(flags, payload)
            case frames.PRIORITY:
                self._require_stream(stream_id, kind)
                self.check_dependency(stream_id, payload)
                self._guard.spend("priority", self._table.now)
            case frames.GOAWAY:
                self._require_connection(stream_id, kind)
                self._on_goaway(payload)
            case frames.PUSH_PROMISE:
                raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
            case _:
                self._guard.spend("unknown_frame", self._table.now)

    @staticmethod
    def check_dependency(stream_id: int, payload: bytes) -> None:
        """Refuse a stream that depends on itself (RFC 7540 5.3.1); ignore all other priorities.

        Raises:
            ConnectionFaultError: The stream depends on itself.
        """
        if int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MAX == stream_id:
            text = f"stream {stream_id} depends on itself"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)

    @staticmethod
    def _require_stream(stream_id: int, kind: int) -> None:
        """Refuse a frame on the connection that must belong to a stream."""
        if stream_id == 0:
            text = f"frame of type {kind} on stream 0"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)

    @staticmethod
    def _require_connection(stream_id: int, kind: int) -> None:
        """Refuse a frame on a stream that must belong to the connection."""
        if stream_id != 0:
            text = f"frame of type {kind} on stream {stream_id}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        """Answer a PING, or record an answer.

        A PING is free when an answer was sent since the last one, because clients measure the
        delay of a busy connection that way; others count (gRPC calls them ping strikes).
        """
        if flags & frames.FLAG_ACK:
            if len(self.pongs) < 2:
                self.pongs.append(payload)
            return
        if self._sender.answer_frames == self._frames_at_ping:
            self._guard.spend("ping", self._table.now)
        self._frames_at_ping = self._sender.answer_frames
        self._sender.control(frames.ping_frame(payload, flags=frames.FLAG_ACK))

    def _on_settings(self, flags: int, payload: bytes) -> None:
        """Apply the client's settings and acknowledge them (RFC 9113 6.5).

        Values are checked in order and the last of each identifier is applied, once per frame: no
        frame in between could reveal the difference.
        """
        if len(payload) % frames.SETTING.size or (flags & frames.FLAG_ACK and payload):
            text = f"SETTINGS with {len(payload)} bytes"
            raise ConnectionFaultError(Http2Code.FRAME_SIZE_ERROR, text)
        self._guard.spend("settings", self._table.now)
        if flags & frames.FLAG_ACK:
            return
        self.has_settings = True
        settings: dict[int, int] = {}
        for identifier, value in frames.SETTING.iter_unpack(payload):
            _check_setting(identifier, value)
            settings[identifier] = value
        for identifier, value in settings.items():
            self._apply(identifier, value)
        self._sender.control(frames.SETTINGS_ACK)

    def _apply(self, identifier: int, value: int) -> None:
        """Apply one setting; unknown ones are ignored."""
        match identifier:
            case frames.SETTING_HEADER_TABLE_SIZE:
                self._sender.on_table_size()
            case frames.SETTING_INITIAL_WINDOW_SIZE:
                self._apply_window(value)
            case frames.SETTING_MAX_FRAME_SIZE:
                self._sender.frame_bytes_max = value
            case _:
                pass

    def _apply_window(self, value: int) -> None:
        """Change the windows of all streams by the difference (RFC 9113 6.9.2)."""
        difference = value - self._sender.stream_window
        if not difference:
            return
        self._guard.on_new_window(len(self._table.streams), self._table.now)
        self._sender.stream_window = value
        for stream in self._table.streams.values():
            stream.window += difference
            if stream.window > frames.WINDOW_MAX:
                text = "window beyond 2^31-1 by SETTINGS"
                raise ConnectionFaultError(Http2Code.FLOW_CONTROL_ERROR, text)
            self._sender.make_ready(stream)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        """Enlarge a send window (RFC 9113 6.9)."""
        increment = int.from_bytes(payload, "big") & frames.WINDOW_MAX
        # Clients grant window when they open a call, and for received bytes.
        reasons = self._table.opened_count + self._sender.answer_frames
        self._guard.on_window_update(reasons, self._sender.data_bytes)
        if stream_id == 0:
            self._sender.window += increment
            if increment == 0 or self._sender.window > frames.WINDOW_MAX:
                code = Http2Code.FLOW_CONTROL_ERROR if increment else Http2Code.PROTOCOL_ERROR
                raise ConnectionFaultError(code, f"WINDOW_UPDATE of {increment}")
            return
        stream = self._table.streams.get(stream_id)
        if stream is None:
            self._table.require_opened(stream_id)
            return
        stream.window += increment
        if increment == 0:
            self._table.reset(stream, Http2Code.PROTOCOL_ERROR)
        elif stream.window > frames.WINDOW_MAX:
            self._table.reset(stream, Http2Code.FLOW_CONTROL_ERROR)
        else:
            self._sender.make_ready(stream)

    def _on_goaway(self, payload: bytes) -> None:
        """Record that the client opens no more streams; open ones continue."""
        if len(payload) < frames.GOAWAY_HEAD.size:
            text = f"GOAWAY with {len(payload)} bytes"
            raise ConnectionFaultError(Http2Code.FRAME_SIZE_ERROR, text)
        self.peer_goaway = frames.GOAWAY_HEAD.unpack_from(payload)[1]


def _check_setting(identifier: int, value: int) -> None:
    """Refuse values that RFC 9113 6.5.2 rules out."""
    match identifier:
        case frames.SETTING_ENABLE_PUSH if value > 1:
            text = f"SETTINGS_ENABLE_PUSH of {value}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        case frames.SETTING_INITIAL_WINDOW_SIZE if value > frames.WINDOW_MAX:
            text = f"SETTINGS_INITIAL_WINDOW_SIZE of {value}"
            raise ConnectionFaultError(Http2Code.FLOW_CONTROL_ERROR, text)
        case frames.SETTING_MAX_FRAME_SIZE if not (
            frames.FRAME_BYTES_DEFAULT <= value <= frames.FRAME_BYTES_LARGEST
        ):
            text = f"SETTINGS_MAX_FRAME_SIZE of {value}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        case _:
            pass
