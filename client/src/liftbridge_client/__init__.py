"""Client of Liftbridge: durable message streams on NATS.

    async with connect("127.0.0.1:9292") as lb:
        stream = await lb.streams.create("orders", subject="orders")
        ack = await stream.publish(b"hello", key=b"42")
        async for message in stream.subscribe(start=Start.earliest()):
            ...

`connect_sync` gives the same names without `await`. Everything public is here; the modules below
are internal.
"""

from liftbridge_client.aio import Client, Publisher, Stream, Streams, Subscription, connect
from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.core.partitioners import by_key, round_robin
from liftbridge_client.errors import (
    AckTimeoutError,
    AlreadyExistsError,
    CallTimeoutError,
    ClosedError,
    EndOfStreamError,
    FailedPreconditionError,
    FullError,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    RetriableError,
    SequenceError,
    ServerError,
    TooLargeError,
    UnimplementedError,
    UsageError,
)
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import (
    Ack,
    BrokerInfo,
    Message,
    Metadata,
    PartitionBounds,
    PartitionInfo,
    PublishResult,
    Start,
    Stop,
    StreamDescription,
    StreamInfo,
    StreamSettings,
    TlsFiles,
)
from liftbridge_client.sync import SyncClient, connect_sync

__all__ = [
    "Ack",
    "AckTimeoutError",
    "AlreadyExistsError",
    "BrokerInfo",
    "CallTimeoutError",
    "Client",
    "ClosedError",
    "EndOfStreamError",
    "FailedPreconditionError",
    "FullError",
    "IncorrectOffsetError",
    "InvalidRequestError",
    "LiftbridgeError",
    "Message",
    "MessageBatch",
    "Metadata",
    "NotFoundError",
    "OutcomeUnknownError",
    "Outgoing",
    "PartitionBounds",
    "PartitionInfo",
    "PublishResult",
    "Publisher",
    "RefusedError",
    "RetriableError",
    "SequenceError",
    "ServerError",
    "Start",
    "Stop",
    "Stream",
    "StreamDescription",
    "StreamInfo",
    "StreamSettings",
    "Streams",
    "Subscription",
    "SyncClient",
    "TlsFiles",
    "TooLargeError",
    "UnimplementedError",
    "UsageError",
    "by_key",
    "connect",
    "connect_sync",
    "round_robin",
]
