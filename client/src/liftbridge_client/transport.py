"""Channels to brokers: grpcio, one channel an address, raw methods by path."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_client.errors import LiftbridgeError, UsageError, error_of
from liftbridge_client.model import TlsFiles

_Request = TypeVar("_Request", bound=ProtoMessage)
_Response = TypeVar("_Response", bound=ProtoMessage)

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 5.0

_END: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
)

_LOST_IN_CORE: Final = "Internal error from Core"
"""grpcio's INTERNAL for a write to a connection that is gone; no server says this."""


class Method(NamedTuple, Generic[_Request, _Response]):
    """A method by its path, with the types that travel."""

    path: str
    request: type[_Request]
    response: type[_Response]


def translated(error: grpc.aio.AioRpcError) -> LiftbridgeError:
    """The client's error for a failed call."""
    return _status_error(error.code(), error.details() or "")


def _status_error(code: grpc.StatusCode, details: str) -> LiftbridgeError:
    if details.startswith(_LOST_IN_CORE):
        return error_of(grpc.StatusCode.UNAVAILABLE, "the connection broke")
    return error_of(code, details)


class Transport:
    """Channels of one client; bound to the loop that is running at `open`.

    Attributes:
        retry_count: Calls made again, counted by the owner.
    """

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._credentials: grpc.ChannelCredentials | None = None

    def open(self) -> None:
        """Read the TLS files.

        Raises:
            UsageError: A file cannot be read.
        """
        if self._tls is not None:
            self._credentials = _credentials(self._tls)

    async def close(self) -> None:
        """Close all channels; calls that run are cancelled."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            options: list[tuple[str, int | str]] = list(_OPTIONS)
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(address, options)
            else:
                if self._tls is not None and self._tls.server_name:
                    options.append(("grpc.ssl_target_name_override", self._tls.server_name))
                channel = grpc.aio.secure_channel(address, self._credentials, options)
            self._channels[address] = channel
        return channel

    async def unary(
        self,
        address: str,
        method: Method[_Request, _Response],
        request: _Request,
        timeout: float | None,  # noqa: ASYNC109 - travels to the server as the deadline
    ) -> _Response:
        """One request, one response.

        Raises:
            LiftbridgeError: As `error_of` sorts the status.
        """
        call = self._channel(address).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: _Response = await call(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error
        return response

    def server_stream(
        self, address: str, method: Method[_Request, _Response], request: _Request
    ) -> "Reading[_Response]":
        """One request, many responses."""
        call = self._channel(address).unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return Reading(call(request))

    def duplex(
        self, address: str, method: Method[_Request, _Response]
    ) -> "Duplex[_Request, _Response]":
        """Many requests, many responses."""
        call = self._channel(address).stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return Duplex(call())  # type: ignore[call-arg]  # the stubs demand an iterator


class Reading(Generic[_Response]):
    """Responses of a call, read one at a time."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> _Response | None:
        """The next response; `None` at the end of the call.

        Raises:
            LiftbridgeError: The call failed.
        """
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error
        if response is _END:
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                raise _status_error(code, await self._call.details() or "")
            return None
        answer: _Response = response
        return answer

    async def __aiter__(self) -> AsyncIterator[_Response]:
        while (response := await self.read()) is not None:
            yield response

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()


class Duplex(Reading[_Response], Generic[_Request, _Response]):
    """A call that is written to and read from."""

    async def write(self, request: _Request) -> None:
        """Send a request; waits while the server takes none.

        Raises:
            LiftbridgeError: The call has ended.
        """
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error
        except asyncio.InvalidStateError as error:
            raise error_of(grpc.StatusCode.UNAVAILABLE, "the call has ended") from error

    async def done_writing(self) -> None:
        """Tell the server that nothing more comes."""
        await self._call.done_writing()


def _credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    try:
        return grpc.ssl_channel_credentials(
            tls.ca.read_bytes() if tls.ca is not None else None,
            tls.key.read_bytes() if tls.key is not None else None,
            tls.cert.read_bytes() if tls.cert is not None else None,
        )
    except OSError as error:
        raise UsageError(f"TLS: cannot read {error.filename}: {error.strerror}") from error
