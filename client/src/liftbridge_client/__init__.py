"""Client of Liftbridge: durable message streams on NATS.

    async with connect("127.0.0.1:9292") as lb:
        stream = await lb.streams.create("orders", subject="orders")
        ack = await stream.publish(b"hello", key=b"42")
        async for message in stream.subscribe(start=Start.earliest()):
            ...

`connect_sync` offers the same names without `await`. `connect_admin` is for cluster
administration. The public API is here, in `events`, `admin_model`, `access_model` and
`group_model`; the other modules are internal.
"""

from liftbridge_client import access_model, admin_model, events, group_model
from liftbridge_client.activity import ActivityEvent, lost_before
from liftbridge_client.admin_model import Member, PartitionName
from liftbridge_client.aio import Client, Publisher, Stream, Streams, Subscription, connect
from liftbridge_client.aio.admin.access import AccessControl
from liftbridge_client.aio.admin.client import AdminClient, connect_admin
from liftbridge_client.aio.consumers.consumer import Consumer
from liftbridge_client.aio.consumers.consumers import Consumers
from liftbridge_client.aio.listening import Events
from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.aio.session import ClientStats
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
    FencedError,
    FullError,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    OutOfRangeError,
    PermissionDeniedError,
    RefusedError,
    RetriableError,
    SequenceError,
    ServerError,
    TooLargeError,
    TruncatedError,
    UnimplementedError,
    UsageError,
)
from liftbridge_client.group_model import ResetTo
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
from liftbridge_client.quota_model import Limits, Quota, QuotaKind
from liftbridge_client.sync import (
    SyncClient,
    SyncConsumer,
    SyncConsumers,
    SyncEvents,
    SyncPublisher,
    SyncStream,
    SyncStreams,
    SyncSubscription,
    connect_sync,
)
from liftbridge_client.sync.admin import (
    SyncAccessControl,
    SyncAdminClient,
    connect_admin_sync,
)

__all__ = [
    "AccessControl",
    "Ack",
    "AckTimeoutError",
    "ActivityEvent",
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
    "Consumer",
    "Consumers",
    "EndOfStreamError",
    "Events",
    "FailedPreconditionError",
    "FencedError",
    "FullError",
    "IncorrectOffsetError",
    "InvalidRequestError",
    "JsonCodec",
    "LiftbridgeError",
    "Limits",
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
    "PermissionDeniedError",
    "ProtobufCodec",
    "PublishResult",
    "Published",
    "Publisher",
    "Quota",
    "QuotaKind",
    "RefusedError",
    "ResetTo",
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
    "SyncAccessControl",
    "SyncAdminClient",
    "SyncClient",
    "SyncConsumer",
    "SyncConsumers",
    "SyncEvents",
    "SyncPublisher",
    "SyncStream",
    "SyncStreams",
    "SyncSubscription",
    "TextCodec",
    "TlsFiles",
    "Token",
    "TooLargeError",
    "TruncatedError",
    "UnimplementedError",
    "UsageError",
    "access_model",
    "admin_model",
    "by_key",
    "connect",
    "connect_admin",
    "connect_admin_sync",
    "connect_sync",
    "events",
    "group_model",
    "lost_before",
    "round_robin",
]
