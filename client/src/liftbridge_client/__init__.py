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
from liftbridge_client.errors import (
    AckTimeoutError,
    AlreadyExistsError,
    ClosedError,
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    RetriableError,
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
    "Client",
    "ClosedError",
    "FailedPreconditionError",
    "LiftbridgeError",
    "Message",
    "MessageBatch",
    "Metadata",
    "NotFoundError",
    "OutcomeUnknownError",
    "PartitionBounds",
    "PartitionInfo",
    "PublishResult",
    "Publisher",
    "RefusedError",
    "RetriableError",
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
    "UsageError",
    "connect",
    "connect_sync",
]
