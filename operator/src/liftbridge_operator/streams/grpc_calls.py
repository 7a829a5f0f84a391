"""Calls to the admin ports of the brokers of one cluster.

After a broker does not answer, the next call goes to the next broker.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_operator.cluster.brokers.channels import open_channel
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.streams.port import ChangedError, RefusedError, SilentError

_Response = TypeVar("_Response", bound=ProtoMessage)

ADMIN: Final = "/liftbridge.ext.v1.Admin/"
CALL_SECONDS: Final = 5.0
_CHANGED: Final = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS})


class GrpcCalls:
    """Connections to all brokers of a cluster; its creator closes it.

    Attributes:
        refusals: Codes of requests that brokers would refuse again.
        endpoints: All brokers of the cluster.
    """

    refusals: ClassVar[frozenset[grpc.StatusCode]] = frozenset(
        {
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.OUT_OF_RANGE,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNIMPLEMENTED,
        }
    )

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Start without connections.

        Args:
            endpoints: All brokers of the cluster, at least one.
            credentials: CA and client certificate; None for plaintext, which brokers offer on
                loopback only.
        """
        assert endpoints, "a cluster has at least one broker"
        self.endpoints = tuple(endpoints)
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._first = 0

    async def close(self) -> None:
        """Close all connections."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = open_channel(address, self._credentials)
            self._channels[address] = channel
        return channel

    async def _ask(
        self,
        at: Endpoint,
        service: str,
        request: ProtoMessage,
        response: type[_Response],
        seconds: float = CALL_SECONDS,
    ) -> _Response:
        """Make one call; the method is the name of the request.

        Raises:
            SilentError: No broker that could answer did.
            RefusedError: The brokers refused the request.
            ChangedError: What it is about does not exist, exists already, or was changed.
        """
        method = type(request).__name__.removesuffix("Request")
        call: Any = self._channel(at.address).unary_unary(
            service + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer: _Response = await call(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            text = f"{at.broker}, {method}: {error.details() or error.code().name}"
            if error.code() in _CHANGED:
                raise ChangedError(text) from error
            if error.code() in self.refusals:
                raise RefusedError(error.details() or error.code().name) from error
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and service == ADMIN:
                raise ChangedError(text) from error
            self._first = (self._first + 1) % len(self.endpoints)
            raise SilentError(text) from error
        return answer

    @property
    def _preferred(self) -> Endpoint:
        return self.endpoints[self._first]
