"""Client of Liftbridge: durable message streams on NATS.

    async with connect("127.0.0.1:9292") as lb:
        stream = await lb.streams.create("orders", subject="orders")
        ack = await stream.publish(b"hello", key=b"42")
        async for message in stream.subscribe(start=Start.earliest()):
            ...

`connect_sync` offers the same names without `await`. `connect_admin` is for cluster
administration. The public API is here, in `events` and in `admin_model`; the other modules are
internal.
"""

from liftbridge_client import admin_model, events
from liftbridge_client.admin_model import Member, PartitionName
from liftbridge_client.aio import Client, Publisher, Stream, Streams, Subscription, connect
from liftbridge_client.aio.admin import AdminClient, connect_admin
from liftbridge_client.aio.listening import Events
from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.aio.session import ClientStats
from liftbridge_client.aio.tokens import Tokens
from liftbridge_client.codecs import Codec, JsonCodec, ProtobufCodec, TextCodec
from liftbridge_client.core.partitioners import by_key, round_robin
from liftbridge_client.errors import (
    AckTimeoutError,
    AlreadyExistsError,
    CallTimeoutError,
    ClosedError,
    CodecError,
    EndOfStreamError,
    FailedPreconditionError,
    FullError,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    OutOfRangeError,
    RefusedError,
    RetriableError,
    SequenceError,
    ServerError,
    TooLargeError,
    TruncatedError,
    UnauthenticatedError,
    UnimplementedError,
    UsageError,
)
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import (
    Ack,
    BrokerInfo,
    Caller,
    ClientCertificate,
    ColumnBatch,
    Message,
    Metadata,
    Numbering,
    PartitionBounds,
    PartitionInfo,
    Published,
    PublishResult,
    Start,
    Stop,
    StreamDescription,
    StreamInfo,
    StreamSettings,
    TlsFiles,
    Token,
)
from liftbridge_client.sync import (
    SyncClient,
    SyncEvents,
    SyncPublisher,
    SyncStream,
    SyncStreams,
    SyncSubscription,
    connect_sync,
)
from liftbridge_client.sync.admin import SyncAdminClient, SyncTokens, connect_admin_sync

__all__ = [
    "Ack",
    "AckTimeoutError",
    "AdminClient",
    "AlreadyExistsError",
    "BrokerInfo",
    "CallTimeoutError",
    "Caller",
    "Client",
    "ClientCertificate",
    "ClientStats",
    "ClosedError",
    "Codec",
    "CodecError",
    "ColumnBatch",
    "EndOfStreamError",
    "Events",
    "FailedPreconditionError",
    "FullError",
    "IncorrectOffsetError",
    "InvalidRequestError",
    "JsonCodec",
    "LiftbridgeError",
    "Member",
    "Message",
    "MessageBatch",
    "Metadata",
    "NotFoundError",
    "Numbering",
    "OutOfRangeError",
    "OutcomeUnknownError",
    "Outgoing",
    "PartitionBounds",
    "PartitionInfo",
    "PartitionName",
    "ProtobufCodec",
    "PublishResult",
    "Published",
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
    "SyncAdminClient",
    "SyncClient",
    "SyncEvents",
    "SyncPublisher",
    "SyncStream",
    "SyncStreams",
    "SyncSubscription",
    "SyncTokens",
    "TextCodec",
    "TlsFiles",
    "Token",
    "Tokens",
    "TooLargeError",
    "TruncatedError",
    "UnauthenticatedError",
    "UnimplementedError",
    "UsageError",
    "admin_model",
    "by_key",
    "connect",
    "connect_admin",
    "connect_admin_sync",
    "connect_sync",
    "events",
    "round_robin",
]
