"""The life of a connection: handshake, calls, idleness, drain, and its end for whatever reason."""

from typing import Final

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.control import ControlFrames
from liftbridge_broker.http2.deadlines import Deadlines
from liftbridge_broker.http2.events import ConnectionEnded
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.reader import FrameReader
from liftbridge_broker.http2.sender import Sender
from liftbridge_broker.http2.slots import ConnectionState
from liftbridge_broker.http2.table import StreamTable
from liftbridge_broker.model.units import SECOND_NS

DRAIN_NOTICE_NS: Final = SECOND_NS
_DRAIN_PING: Final = b"goodbye!"
_RESOURCE_EXHAUSTED: Final = 8


class Lifecycle:
    """State of a connection, and everything that ends it; it ends once (`StreamTable.has_ended`).

    Attributes:
        idle_since_ns: Time at which its last call ended, or the connection started.
    """

    __slots__ = (
        "_control",
        "_deadlines",
        "_has_final_goaway",
        "_is_draining",
        "_limits",
        "_reader",
        "_sender",
        "_table",
        "_was_busy",
        "idle_since_ns",
    )

    def __init__(
        self,
        limits: Limits,
        table: StreamTable,
        sender: Sender,
        control: ControlFrames,
        reader: FrameReader,
        deadlines: Deadlines,
    ) -> None:
        self._limits = limits
        self._table = table
        self._sender = sender
        self._control = control
        self._reader = reader
        self._deadlines = deadlines
        self._is_draining = False
        self._has_final_goaway = False
        self._was_busy = False
        self.idle_since_ns = table.now

    @property
    def state(self) -> ConnectionState:
        """State that decides its eviction."""
        if self._table.has_ended:
            return ConnectionState.ENDED
        if self._table.streams:
            return ConnectionState.BUSY
        if self._is_draining:
            return ConnectionState.DRAINING
        if not self._reader.has_preface:
            return ConnectionState.SILENT
        return ConnectionState.IDLE if self._control.has_settings else ConnectionState.UNSETTLED

    def begin_drain(self, now: int, text: str = "draining") -> None:
        """Ask the client to leave: GOAWAY in two steps, then the end when no stream is open.

        The first names the largest stream number, so that calls in flight are still accepted; the
        second, after an answered PING or a second, the last accepted one (RFC 9113 6.8).
        """
        if self._is_draining or self._table.has_ended:
            return
        self._is_draining = True
        goaway = frames.goaway_frame(frames.STREAM_ID_MAX, Http2Code.NO_ERROR, text)
        self._sender.control(goaway)
        self._sender.control(frames.ping_frame(_DRAIN_PING))
        self._deadlines.set("drain", now + DRAIN_NOTICE_NS)

    def end(self, text: str) -> None:
        """Close at once: GOAWAY without waiting for streams."""
        self.fail(ConnectionFaultError(Http2Code.NO_ERROR, text))

    def shed_answers(self, text: str) -> None:
        """End the connection because of its unsent output."""
        self.fail(ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="unread"))

    def shed_resets(self, text: str) -> None:
        """End the connection because of its reset streams."""
        code = Http2Code.ENHANCE_YOUR_CALM
        self.fail(ConnectionFaultError(code, text, flood="resets_of_all"))

    def evict(self, text: str) -> None:
        """Close the connection to free its slot for a new one."""
        flood = "idle_at_limit" if self.state is ConnectionState.IDLE else "unready_at_limit"
        self.fail(ConnectionFaultError(Http2Code.NO_ERROR, text, flood=flood))

    def refuse(self) -> None:
        """Close the connection because no slot is free."""
        text = "too many connections"
        self.fail(ConnectionFaultError(Http2Code.NO_ERROR, text, flood="refused_at_limit"))

    def shed_requests(self, text: str) -> None:
        """Refuse the incomplete requests, or end if they are not most of the bytes held."""
        table = self._table
        if table.partial_bytes > table.stream_bytes:
            for stream in table.streams.values():
                if stream.partial or stream.kept_bytes:
                    table.refuse_message(stream, _RESOURCE_EXHAUSTED, text)
        else:
            self.fail(ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="unended"))

    def end_if_empty(self) -> None:
        """End a draining connection when it has no stream any more."""
        table = self._table
        is_leaving = self._has_final_goaway or self._control.peer_goaway is not None
        if is_leaving and not table.streams and not table.has_ended:
            table.has_ended = True
            table.events.append(ConnectionEnded(Http2Code.NO_ERROR, "all streams have ended"))

    def watch_idleness(self) -> None:
        """Start the idle clock when the last stream is closed.

        Called where the time is known; calls that finish a stream do not pass it.
        """
        table = self._table
        if table.streams:
            self._was_busy = True
        elif self._was_busy:
            self._was_busy = False
            self.idle_since_ns = table.now
            if self._limits.idle_ns:
                self._deadlines.bring_forward("idle", table.now + self._limits.idle_ns)

    def on_pongs(self) -> None:
        """Take answered PINGs; that of a drain comes after all that the client had sent."""
        pongs = self._control.pongs
        if _DRAIN_PING in pongs:
            self.send_final_goaway()
        pongs.clear()

    def send_final_goaway(self) -> None:
        """Second step of the drain: streams opened from now on are refused."""
        if self._is_draining and not self._has_final_goaway:
            self._has_final_goaway = True
            self._table.is_refusing = True
            self._deadlines.clear("drain")
            last = self._table.last_id
            self._sender.control(frames.goaway_frame(last, Http2Code.NO_ERROR, "draining"))

    def fail(self, fault: ConnectionFaultError) -> None:
        """End the connection with a GOAWAY, or with a reply that the peer understands."""
        table = self._table
        if table.has_ended:
            return
        table.has_ended = True
        self._reader.held.clear()
        for stream in table.streams.values():
            table.let_go(stream)
        if fault.reply:
            self._sender.control(fault.reply)
        else:
            if not self._control.has_greeted:
                self._control.greet(self._limits)  # SETTINGS comes first in any case
            self._sender.control(frames.goaway_frame(table.last_id, fault.code, fault.text))
        table.events.append(ConnectionEnded(fault.code, fault.text, fault.flood))

    def abort(self, code: Http2Code, text: str, flood: str = "") -> None:
        """End the connection without a GOAWAY, which would not be read."""
        self._table.has_ended = True
        self._table.events.append(ConnectionEnded(code, text, flood, is_abrupt=True))

    def on_idle(self, now: int) -> None:
        """Ask a client without calls to leave; it reconnects when it needs to."""
        if self._table.streams:
            return
        due = self.idle_since_ns + self._limits.idle_ns
        if due <= now:
            self.begin_drain(now, "max_idle")
        else:
            self._deadlines.set("idle", due)
