"""A broker of an older version, for streams only: it ignores unknown fields."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_DATA: Final = "/liftbridge.ext.v1.Data/"


class _Older(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic when it runs
    """Answers the calls to create and alter streams; other calls are UNIMPLEMENTED."""

    def __init__(self) -> None:
        self.port = 0
        self._answers: dict[str, Callable[[], Message]] = {
            "/proto.API/FetchMetadata": self._metadata,
            _DATA + "ListStreams": data_pb2.ListStreamsResponse,
            _DATA + "CreateStream": lambda: data_pb2.CreateStreamResponse(stream_id=1),
            _DATA + "AlterStream": data_pb2.AlterStreamResponse,
        }

    def service(self, details: Any) -> Any:
        """Find a broker that answers."""
        answer = self._answers.get(details.method)
        if answer is None:
            return None

        async def respond(_request: bytes, _context: object) -> bytes:
            return answer().SerializeToString()

        return grpc.unary_unary_rpc_method_handler(respond)

    def _metadata(self) -> Message:
        response = api_pb2.FetchMetadataResponse()
        response.brokers.add(id="older", host="127.0.0.1", port=self.port)
        return response


@asynccontextmanager
async def older_broker() -> AsyncIterator[str]:
    """Run an older broker on loopback; yield its address."""
    server, handler = grpc.aio.server(), _Older()
    server.add_generic_rpc_handlers([handler])
    handler.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{handler.port}"
    finally:
        await server.stop(None)
