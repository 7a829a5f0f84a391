"""Bounds of an HTTP/2 connection, and the budgets of a peer."""

from dataclasses import dataclass

from liftbridge_broker.model.units import SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection. Sizes in bytes, times in nanoseconds; 0 turns a time bound off.

    Attributes:
        streams_max: Calls open at the same time (SETTINGS_MAX_CONCURRENT_STREAMS).
        stream_window_bytes: Flow-control window granted to each stream.
        connection_window_bytes: Flow-control window granted to the connection.
        frame_bytes_max: Largest frame payload accepted (SETTINGS_MAX_FRAME_SIZE).
        header_list_bytes_max: Largest header list accepted, counted as in RFC 9113 6.5.2; a list
            twice as large ends the connection.
        continuations_max: CONTINUATION frames after one HEADERS frame.
        message_bytes_max: Largest gRPC request message.
        partial_bytes_max: Bytes of incomplete request messages, and of unary requests that have not
            ended, of all streams together.
        queued_bytes_max: Bytes of responses that wait for a window or the socket, of all streams.
            It is shared among the streams; exceeding it ends the connection.
        high_mark_bytes: Queue of one stream from which its call stops being writable, unless its
            share is smaller.
        low_mark_bytes: Queue at which it is writable again, unless that is more than a quarter of
            its share.
        handshake_ns: Time to receive the client's preface and first SETTINGS.
        frame_ns: Time to complete a frame or header block once started.
        message_ns: Time to complete a request message once started, and a whole unary request.
        write_stall_ns: Time for which the socket may accept nothing while bytes wait.
        idle_ns: Time without any open call after which the connection is closed.
        keepalive_ns: Silence after which a PING is sent.
        keepalive_timeout_ns: Time after that PING within which something must be received.
        ping_interval_ns: Shortest mean time between a client's PINGs while it receives no data.
    """

    streams_max: int = 1000
    stream_window_bytes: int = 4 << 20
    connection_window_bytes: int = 16 << 20
    frame_bytes_max: int = 16 << 10
    header_list_bytes_max: int = 16 << 10
    continuations_max: int = 8
    message_bytes_max: int = 4 << 20
    partial_bytes_max: int = 64 << 20
    queued_bytes_max: int = 64 << 20
    high_mark_bytes: int = 512 << 10
    low_mark_bytes: int = 128 << 10
    handshake_ns: int = 10 * SECOND_NS
    frame_ns: int = 30 * SECOND_NS
    message_ns: int = 60 * SECOND_NS
    write_stall_ns: int = 60 * SECOND_NS
    idle_ns: int = 0
    keepalive_ns: int = 60 * SECOND_NS
    keepalive_timeout_ns: int = 20 * SECOND_NS
    ping_interval_ns: int = 5 * SECOND_NS
