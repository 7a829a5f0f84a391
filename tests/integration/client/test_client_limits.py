"""What a broker refuses for a limit, or sheds, is told as that, never as the end of a stream."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any, Self

import grpc.aio
import pytest
from grpc import StatusCode

from liftbridge_client import (
    EndOfStreamError,
    LiftbridgeError,
    RefusedError,
    RetriableError,
    Start,
    connect,
)
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import Broker

STATED = ("Stop offset reached", "Stream is empty", "End of readonly partition")
TEXTS = ("", "too many bytes in incomplete messages on this connection", *STATED)
CODES = ("", "END_OF_STREAM", "LIMIT")


async def test_subscription_beyond_the_limit_is_refused_and_does_not_end_empty(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, config={"subscriptions.max": 1}) as broker:
        async with connect(broker.address) as client:
            stream = await client.streams.create("s", partitions=2)
            await stream.publish(b"first", partition=0)
            await stream.publish(b"second", partition=1)
            held = aiter(stream.subscribe(partition=0, start=Start.earliest()))
            assert (await anext(held)).value == b"first"

            refused = aiter(stream.subscribe(partition=1, start=Start.earliest()))
            with pytest.raises(RefusedError, match=r"limit 1 \(subscriptions.max\)") as caught:
                await anext(refused)
            assert not isinstance(caught.value, EndOfStreamError)


class Server:
    """A cluster of one broker whose subscriptions give a message each and end.

    Attributes:
        ends: What the next ones end with: status, text, code.
        starts: The offsets they began with.
        address: Where it serves.
    """

    def __init__(self) -> None:
        self.ends: list[tuple[StatusCode, str, str]] = []
        self.starts: list[int] = []
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]  # has what is called
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def service(self, details: Any) -> Any:
        handlers = {"FetchMetadata": self._metadata, "Subscribe": self._subscribe}
        on = handlers.get(details.method.rpartition("/")[2])
        return on and grpc.unary_stream_rpc_method_handler(on)

    async def _metadata(self, _request: bytes, _call: object) -> AsyncIterator[bytes]:
        partition = api_pb2.PartitionMetadata(leader="b", replicas=["b"], isr=["b"])
        yield api_pb2.FetchMetadataResponse(
            brokers=[api_pb2.Broker(id="b", host="127.0.0.1", port=self._port)],
            streamMetadata=[
                api_pb2.StreamMetadata(name="s", subject="s", partitions={0: partition})
            ],
        ).SerializeToString()

    async def _subscribe(self, request: bytes, call: Any) -> AsyncIterator[bytes]:
        start = api_pb2.SubscribeRequest.FromString(request).startOffset
        self.starts.append(start)
        yield b""
        yield api_pb2.Message(stream="s", offset=start, value=b"v").SerializeToString()
        status, text, code = self.ends.pop(0)
        if code:
            call.set_trailing_metadata((("liftbridge-error", code),))
        if status is not StatusCode.OK:
            await call.abort(status, text)


def is_stated(status: StatusCode, text: str, code: str) -> bool:
    """Whether the end of a call states that nothing more comes."""
    if status is StatusCode.OK:
        return False
    if code:
        return code == "END_OF_STREAM"
    return status is StatusCode.RESOURCE_EXHAUSTED and text in STATED


@pytest.mark.parametrize("status", list(StatusCode))
async def test_subscription_ends_only_by_a_statement_that_nothing_more_comes(
    status: StatusCode,
) -> None:
    """Otherwise it goes on behind what it gave, or tells why it does not."""
    async with Server() as server, connect(server.address) as client:
        for text, code in product(TEXTS, CODES):
            server.ends = [(status, text, code), (StatusCode.RESOURCE_EXHAUSTED, STATED[0], "")]
            server.starts.clear()
            seen: list[int] = []
            error: LiftbridgeError | None = None
            try:
                subscription = client.streams.get("s").subscribe(start=Start.at(5))
                seen.extend([message.offset async for message in subscription])
            except LiftbridgeError as caught:
                error = caught
            case = (text, code, error)
            if error is not None:
                assert not isinstance(error, EndOfStreamError | RetriableError), case
                assert not is_stated(status, text, code), case
            elif is_stated(status, text, code):
                assert (seen, server.starts) == ([5], [5]), case
            else:
                assert (seen, server.starts) == ([5, 6], [5, 6]), case
