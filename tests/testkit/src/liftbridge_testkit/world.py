"""A broker in one conformance test: calls with deadlines, separate streams.

Conformance tests share a broker, so each uses streams with unique names. Positions and codes are
those of the public API (`proto.API`).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

import grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.load import api

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEADLINE_SECONDS: Final = 10.0

_names = count()


class World:
    """Stub, a unique stream name, and common calls of tests.

    Attributes:
        api: Stub of the public API.
        name: Unique stream name; also the subject of `create`.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.api = api(channel)
        self.name = f"w{next(_names)}"

    def create(self, **fields: object) -> str:
        """Create the stream of this test and return its name."""
        request = {"name": self.name, "subject": self.name, **fields}
        self.api.CreateStream(
            api_pb2.CreateStreamRequest(**request),  # type: ignore[arg-type]  # by name
            timeout=DEADLINE_SECONDS,
        )
        return self.name

    def publish(self, **fields: object) -> api_pb2.Ack:
        """Publish one message with a deadline and return its ack."""
        request = {"stream": self.name, "value": b"v", "expectedOffset": -1, **fields}
        response: api_pb2.PublishResponse = self.api.Publish(
            api_pb2.PublishRequest(**request),  # type: ignore[arg-type]  # by name
            timeout=DEADLINE_SECONDS,
        )
        return response.ack

    def publish_many(self, values: Sequence[bytes], **fields: object) -> list[int]:
        """Publish values one after the other and return their offsets."""
        return [self.publish(value=value, **fields).offset for value in values]

    def publish_async(self, *requests: api_pb2.PublishRequest) -> list[api_pb2.PublishResponse]:
        """Send requests over one PublishAsync call, close it, and return every response."""
        return list(self.api.PublishAsync(iter(requests), timeout=DEADLINE_SECONDS))

    def subscribe(self, **fields: object) -> Iterator[api_pb2.Message]:
        """Subscribe and wait for the handshake; iterate for messages, `cancel()` to leave.

        Raises:
            grpc.RpcError: The subscription was refused.
        """
        request = {"stream": self.name, **fields}
        call: Iterator[api_pb2.Message] = self.api.Subscribe(
            api_pb2.SubscribeRequest(**request),  # type: ignore[arg-type]  # by name
            timeout=DEADLINE_SECONDS,
        )
        handshake = next(call)
        assert handshake == api_pb2.Message(), "the first message is the empty handshake"
        return call

    def read(self, **fields: object) -> tuple[list[api_pb2.Message], grpc.StatusCode, str]:
        """Subscribe and read until the server ends the call.

        Returns:
            The messages, and the status code and text.
        """
        call = self.subscribe(**fields)
        messages: list[api_pb2.Message] = []
        try:
            messages.extend(call)
        except grpc.RpcError as error:
            return messages, error.code(), error.details() or ""
        return messages, grpc.StatusCode.OK, ""

    def take(self, number: int, **fields: object) -> list[api_pb2.Message]:
        """Subscribe, take this many messages, and cancel."""
        call = self.subscribe(**fields)
        messages = [next(call) for _ in range(number)]
        call.cancel()  # type: ignore[attr-defined] # a grpcio call is an iterator and a future
        return messages

    def pause(self, **fields: object) -> None:
        """Pause the stream of this test."""
        self.api.PauseStream(
            api_pb2.PauseStreamRequest(name=self.name, **fields),  # type: ignore[arg-type]  # by name
            timeout=DEADLINE_SECONDS,
        )

    def set_readonly(self, readonly: bool = True, **fields: object) -> None:
        """Set or clear the read-only flag of the stream of this test."""
        self.api.SetStreamReadonly(
            api_pb2.SetStreamReadonlyRequest(
                name=self.name,
                readonly=readonly,
                **fields,  # type: ignore[arg-type]  # by name
            ),
            timeout=DEADLINE_SECONDS,
        )

    def delete(self) -> None:
        """Delete the stream of this test."""
        self.api.DeleteStream(api_pb2.DeleteStreamRequest(name=self.name), timeout=DEADLINE_SECONDS)

    def metadata(self) -> api_pb2.StreamMetadata:
        """Return the metadata of the stream of this test."""
        response: api_pb2.FetchMetadataResponse = self.api.FetchMetadata(
            api_pb2.FetchMetadataRequest(streams=[self.name]), timeout=DEADLINE_SECONDS
        )
        return response.streamMetadata[0]

    def partition(self, number: int = 0) -> api_pb2.PartitionMetadata:
        """Return the leader's view of a partition of the stream of this test."""
        response: api_pb2.FetchPartitionMetadataResponse = self.api.FetchPartitionMetadata(
            api_pb2.FetchPartitionMetadataRequest(stream=self.name, partition=number),
            timeout=DEADLINE_SECONDS,
        )
        return response.metadata
