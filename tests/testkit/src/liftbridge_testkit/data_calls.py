"""Calls of `liftbridge.ext.v1.Data`, with what a test of one of them needs."""

from collections.abc import Iterator, Mapping
from itertools import count

import grpc

from liftbridge_broker.logformat.batch import HEADER_SIZE, walk
from liftbridge_broker.logformat.frames import Frame, decode_frame, iter_frames
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, data_pb2_grpc
from liftbridge_testkit.load import api, data

TIMEOUT = 10.0

_names = count()


class Data:
    """Calls of the `Data` service about a stream of the caller's own."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.api = api(channel)
        self.stub: data_pb2_grpc.DataStub = data(channel)
        self.name = f"d{next(_names)}"
        self.ids = count(1)

    def create(
        self, options: data_pb2.StreamOptions | None = None, **fields: object
    ) -> data_pb2.CreateStreamResponse:
        stream = api_pb2.CreateStreamRequest(
            **{"name": self.name, "subject": self.name, **fields}  # type: ignore[arg-type] # by name
        )
        response: data_pb2.CreateStreamResponse = self.stub.CreateStream(
            data_pb2.CreateStreamRequest(stream=stream, options=options), timeout=TIMEOUT
        )
        return response

    def describe(self) -> data_pb2.StreamDescription:
        response = self.stub.ListStreams(
            data_pb2.ListStreamsRequest(prefix=self.name, page_size=1), timeout=TIMEOUT
        )
        found: data_pb2.StreamDescription = response.streams[0]
        return found

    def request(self, *values: bytes, **fields: object) -> data_pb2.PublishBatchRequest:
        request = {"request_id": next(self.ids), "stream": self.name, "values": values, **fields}
        return data_pb2.PublishBatchRequest(**request)  # type: ignore[arg-type] # by name

    def batches(
        self, *requests: data_pb2.PublishBatchRequest
    ) -> list[data_pb2.PublishBatchResponse]:
        return list(self.stub.PublishBatch(iter(requests), timeout=TIMEOUT))

    def publish(self, *values: bytes, **fields: object) -> data_pb2.PublishBatchResponse:
        """Publish one batch over a call of its own."""
        return self.batches(self.request(*values, **fields))[0]

    def init(self, publisher: str = "p") -> data_pb2.InitPublisherResponse:
        response: data_pb2.InitPublisherResponse = self.stub.InitPublisher(
            data_pb2.InitPublisherRequest(stream=self.name, publisher=publisher), timeout=TIMEOUT
        )
        return response

    def bounds(self, **fields: object) -> list[data_pb2.PartitionBounds]:
        request = data_pb2.PartitionBoundsRequest(stream=self.name, **fields)  # type: ignore[arg-type] # by name
        return list(self.stub.PartitionBounds(request, timeout=TIMEOUT).partitions)

    def waiting(self, **fields: object) -> "grpc.Future[data_pb2.PartitionBoundsResponse]":
        """Return a call for bounds that waits."""
        request = data_pb2.PartitionBoundsRequest(stream=self.name, **fields)  # type: ignore[arg-type] # by name
        call: grpc.Future[data_pb2.PartitionBoundsResponse] = self.stub.PartitionBounds.future(
            request, timeout=TIMEOUT
        )
        return call

    def following(
        self, known: Mapping[str, Mapping[int, int]], **fields: object
    ) -> "grpc.Future[data_pb2.AwaitNewsResponse]":
        """Return a call that waits for news in streams."""
        streams = [
            data_pb2.KnownStream(name=name, high_watermarks=marks) for name, marks in known.items()
        ]
        request = data_pb2.AwaitNewsRequest(streams=streams, **fields)  # type: ignore[arg-type] # by name
        call: grpc.Future[data_pb2.AwaitNewsResponse] = self.stub.AwaitNews.future(
            request, timeout=TIMEOUT
        )
        return call

    def fetch(self, **fields: object) -> Iterator[data_pb2.FetchBatchesResponse]:
        request = data_pb2.FetchBatchesRequest(stream=self.name, **fields)  # type: ignore[arg-type] # by name
        responses: Iterator[data_pb2.FetchBatchesResponse] = self.stub.FetchBatches(
            request, timeout=TIMEOUT
        )
        return responses

    def frames(self, **fields: object) -> list[Frame]:
        """Return the records of a range, from stored batches."""
        return [
            decode_frame(response.data, at, end)
            for response in self.fetch(**fields)
            for start, header in walk(response.data, 0, len(response.data))
            for at, end, _ in iter_frames(response.data, start + HEADER_SIZE, start + header.size)
        ]

    def values(self, **fields: object) -> dict[int, bytes]:
        """Return the values of a range by offset."""
        return {int(frame.offset): frame.value for frame in self.frames(**fields)}
