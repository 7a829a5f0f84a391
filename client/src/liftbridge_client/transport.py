"""Calls to brokers: grpcio, raw methods by path."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_client.bearer import Bearer, Metadata
from liftbridge_client.channels import Announcer, Channels, Link, Listener
from liftbridge_client.core.forks import Opener
from liftbridge_client.errors import CallTimeoutError, LiftbridgeError, UsageError, error_of
from liftbridge_client.model import TlsFiles, Token
from liftbridge_client.resolving import targets_of
from liftbridge_client.strangers import PORT_ADVICE, SURE, certainty

_Request = TypeVar("_Request", bound=ProtoMessage)
_Response = TypeVar("_Response", bound=ProtoMessage)

_END: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs

CONNECT_SECONDS: Final = 3.0
ADDRESSES_MAX: Final = 8
"""Addresses of one name that are probed one by one for the cause of a failure."""

ADDRESSES_SECONDS: Final = 1.0
"""Limit for these probes.

A client that has another broker to try must not wait for a lost packet.
"""

_TIME_IS_OVER: Final = "Deadline Exceeded"
_NO_STATUS: Final = "No status received"

_ERROR_CODE: Final = "liftbridge-error"
"""Trailer with the code of a refusal."""


class Method(NamedTuple, Generic[_Request, _Response]):
    """Path of a gRPC method, with its message types."""

    path: str
    request: type[_Request]
    response: type[_Response]


def translated(error: grpc.aio.AioRpcError) -> LiftbridgeError:
    """Convert the error of a failed call to the client's."""
    return error_of(error.code(), error.details() or "", _refusal_code(error.trailing_metadata()))


def _placed(error: LiftbridgeError, what: str, address: str, timeout: float | None) -> None:
    """Add the address and the duration to an error whose text, of gRPC itself, has neither."""
    if timeout is not None and str(error) == _TIME_IS_OVER:
        error.args = (f"{what} {address} within {timeout:.3g} s",)
    elif str(error) == _NO_STATUS:
        error.args = (f"{address} speaks HTTP/2, not gRPC",)
        error.advice = PORT_ADVICE


def _refusal_code(trailers: Any) -> str:
    """Return the refusal code in the trailers of a call, empty if the server sent none."""
    fields: Iterable[tuple[str, Any]] = trailers or ()
    return next((str(value) for key, value in fields if key == _ERROR_CODE), "")


class Transport:
    """Calls of one client; bound to the loop that is running at `open`."""

    def __init__(
        self,
        tls: TlsFiles | None,
        announcer: Announcer,
        resolve: Callable[[str], Awaitable[Sequence[str]]] = targets_of,
        *,
        token: Token | None = None,
    ) -> None:
        """Store the arguments without I/O; `resolve` returns the addresses of a name."""
        self._server_name = "" if tls is None else tls.server_name
        self._bearer = Bearer(token, is_encrypted=tls is not None)
        self._resolve = resolve
        self._channels = Channels(tls, announcer)
        self._opener = Opener()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Read the TLS files and the token.

        Raises:
            UsageError: A file cannot be read, or has the wrong content; or the token would be sent
                over plaintext.
        """
        self._bearer.open()
        self._channels.open()
        self._opener.open()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Close all channels and cancel running calls; no-op in another process."""
        if self._opener.is_other:
            return
        await self._channels.close()

    def watch(self, listener: Listener) -> None:
        """Watch all channels, and report the existing connections to a new listener."""
        self._channels.watch(listener)

    def check_loop(self) -> None:
        """Refuse use in another event loop, which responses would not wake.

        Raises:
            UsageError: The running loop is another one.
        """
        if self._loop not in (None, asyncio.get_running_loop()):
            raise UsageError(
                "another event loop opened this client: open one in this loop, or use "
                "`connect_sync`, which any thread may call"
            )

    def proof(self) -> tuple[int, Metadata | None]:
        """Return a value that differs once a file of the credentials has changed.

        A call keeps what it began with, and fails when that ends.
        """
        return self._channels.look(), self._bearer.metadata()

    def _link(self, address: str) -> Link:
        self._opener.check()
        self.check_loop()
        return self._channels.at(address)

    async def unary(
        self,
        address: str,
        method: Method[_Request, _Response],
        request: _Request,
        timeout: float | None,  # noqa: ASYNC109 - travels to the server as the deadline
    ) -> _Response:
        """Send one request and return its response.

        Raises:
            LiftbridgeError: As `error_of` maps the status; without a connection nothing was sent.
        """
        link = self._link(address)
        if link.channel.get_state() is not grpc.ChannelConnectivity.READY:
            timeout = await self._connect(address, method, timeout)
            link = self._link(address)  # another one, if a TLS file has changed
        call = link.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: _Response = await link.began(
                call(request, timeout=timeout, metadata=self._bearer.metadata())
            )
        except grpc.aio.AioRpcError as error:
            fault = translated(error)
            _placed(fault, "no answer from", address, timeout)
            raise fault from error
        return response

    async def _connect(
        self,
        address: str,
        method: Method[_Request, _Response],
        timeout: float | None,  # noqa: ASYNC109 - ends the attempt at the same time as the call
    ) -> float | None:
        """Wait for a connection; return the rest of the timeout.

        A streaming call reports when it is connected, or why not, before it sends any request.
        """
        began = monotonic()
        call = self.duplex(address, method, timeout)
        try:
            await call.connected()
        except LiftbridgeError as error:
            if isinstance(error, CallTimeoutError):
                error.advice = "Check that the address is that of a broker, or raise the timeout."
            _placed(error, "no connection with", address, timeout)
            left = CONNECT_SECONDS if timeout is None else timeout - (monotonic() - began)
            clearest = await self._most_specific(
                error, address, method, min(left, ADDRESSES_SECONDS)
            )
            if clearest is error:
                raise
            raise clearest from error
        finally:
            call.cancel()
        return None if timeout is None else max(timeout - (monotonic() - began), 0.0)

    async def _most_specific(
        self,
        error: LiftbridgeError,
        address: str,
        method: Method[_Request, _Response],
        seconds: float,
    ) -> LiftbridgeError:
        """Return the most specific error of all addresses of a name; for TLS only.

        gRPC reports only the address that it tried last: `localhost` refused, from ::1, although
        127.0.0.1 had an untrusted certificate.
        """
        if not self._channels.is_encrypted or certainty(error.server_text) == SURE:
            return error
        began = monotonic()
        targets: Sequence[str] = ()
        with contextlib.suppress(OSError, UnicodeError):  # timeout, or an unknown name
            async with asyncio.timeout(seconds):
                targets = (await self._resolve(address))[:ADDRESSES_MAX]
        if len(targets) < 2:
            return error
        left = seconds - (monotonic() - began)
        faults = await asyncio.gather(
            *(self._fault_at(target, address, method, left) for target in targets)
        )
        candidates = [error, *(fault for fault in faults if fault is not None)]
        return max(candidates, key=lambda one: certainty(one.server_text))

    async def _fault_at(
        self, target: str, address: str, method: Method[_Request, _Response], seconds: float
    ) -> LiftbridgeError | None:
        """Return why one target of an address cannot be connected to; `None` if it can."""
        name = self._server_name or address.rpartition(":")[0]
        async with self._channels.made(target, name) as channel:
            call = _duplex(Link(channel), method, seconds)
            try:
                await call.connected()
            except LiftbridgeError as error:
                return error
            finally:
                call.cancel()
        return None

    def server_stream(
        self, address: str, method: Method[_Request, _Response], request: _Request
    ) -> "Reading[_Response]":
        """Send one request; return the call, to read its responses."""
        link = self._link(address)
        call = link.channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return Reading(link.began(call(request, metadata=self._bearer.metadata())))

    def duplex(
        self,
        address: str,
        method: Method[_Request, _Response],
        timeout: float | None = None,
    ) -> "Duplex[_Request, _Response]":
        """Start a call with many requests and many responses."""
        return _duplex(self._link(address), method, timeout, self._bearer.metadata())


class Reading(Generic[_Response]):
    """A call whose responses are read one at a time."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._is_broken = False

    def _error(self, code: grpc.StatusCode, text: str, trailers: Any) -> LiftbridgeError:
        """Convert a status to an error; after a failed write, the status may be grpcio's own."""
        if self._is_broken and code is grpc.StatusCode.INTERNAL:
            return error_of(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return error_of(code, text, _refusal_code(trailers))

    async def read(self) -> _Response | None:
        """Read the next response; `None` at the end of the call.

        Raises:
            LiftbridgeError: The call failed.
        """
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._error(
                error.code(), error.details() or "", error.trailing_metadata()
            ) from error
        if response is _END:
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                text = await self._call.details() or ""
                raise self._error(code, text, await self._call.trailing_metadata())
            return None
        answer: _Response = response
        return answer

    async def metadata(self) -> Mapping[str, str | bytes]:
        """Return the metadata that the server sent before the first response.

        Raises:
            LiftbridgeError: The call failed.
        """
        try:
            return dict(await self._call.initial_metadata() or ())
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error

    async def __aiter__(self) -> AsyncIterator[_Response]:
        while (response := await self.read()) is not None:
            yield response

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class Duplex(Reading[_Response], Generic[_Request, _Response]):
    """A call that is written to and read from."""

    async def connected(self) -> None:
        """Wait until the call has a connection; until then, nothing is sent.

        Raises:
            LiftbridgeError: There is no connection, so nothing was sent.
        """
        try:
            await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            unsent = translated(error)
            unsent.may_be_done = False
            raise unsent from error

    async def write(self, request: _Request) -> None:
        """Send a request; waits for flow control.

        Raises:
            LiftbridgeError: The call has ended.
        """
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            self._is_broken = True  # the call had not ended before, and no status has arrived yet
            raise self._error(
                error.code(), error.details() or "", error.trailing_metadata()
            ) from error
        except asyncio.InvalidStateError as error:
            raise error_of(grpc.StatusCode.UNAVAILABLE, "the call has ended") from error

    async def done_writing(self) -> None:
        """Half-close the call: no more requests follow."""
        await self._call.done_writing()


def _duplex(
    link: Link,
    method: Method[_Request, _Response],
    timeout: float | None,
    metadata: Metadata | None = None,
) -> Duplex[_Request, _Response]:
    call = link.channel.stream_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    began = call(timeout=timeout, metadata=metadata)  # type: ignore[call-arg]  # the stubs demand an iterator
    return Duplex(link.began(began))
