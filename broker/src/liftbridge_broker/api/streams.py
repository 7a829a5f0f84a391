"""Stream management: requests become commands of the controller (C14 to C18)."""

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.texts import check_texts
from liftbridge_broker.controller.commands import (
    Command,
    CreateStream,
    DeleteStream,
    PauseStream,
    SetReadonly,
)
from liftbridge_broker.errors import GrpcStatus, InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_proto import api_pb2

_Request = TypeVar("_Request", bound=Message)

NAMES_MAX: Final = 100_000
"""Maximum number of streams, groups or partitions that a request names."""

REQUEST_BYTES_MAX: Final = 2 << 20
"""Maximum size of a request without records: reading 4 MiB of empty names takes 60 ms."""

OVERRIDE_FIELDS = {
    "retentionMaxBytes": "retention_bytes_max",
    "retentionMaxMessages": "retention_messages_max",
    "retentionMaxAge": "retention_age_ms_max",
    "cleanerInterval": "cleaner_interval_ms",
    "segmentMaxBytes": "segment_bytes_max",
    "segmentMaxAge": "segment_age_ms_max",
    "compactMaxGoroutines": "compact_goroutines_max",
    "compactEnabled": "compact_enabled",
    "autoPauseTime": "auto_pause_ms",
    "autoPauseDisableIfSubscribers": "auto_pause_disable_if_subscribers",
    "minIsr": "min_isr",
    "optimisticConcurrencyControl": "optimistic_concurrency",
    "encryption": "encryption",
}
"""Field of `proto.CreateStreamRequest` -> field of `StreamOverrides`; same values and units."""


def overrides_of(request: api_pb2.CreateStreamRequest) -> dict[str, int | bool]:
    """Return the settings in a request, by field of `StreamOverrides`."""
    return {
        ours: getattr(request, theirs).value
        for theirs, ours in OVERRIDE_FIELDS.items()
        if request.HasField(theirs)
    }


def decode(call: Call, kind: type[_Request], raw: bytes) -> _Request | None:
    """Decode a request that the caller may make; return `None` after ending it if malformed.

    Raises:
        PermissionDeniedError: The access rules forbid the call.
        InvalidRequestError: The request is larger than `REQUEST_BYTES_MAX`, or a text in it is too
            long.
    """
    if len(raw) > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"request: {len(raw)} bytes, at most {REQUEST_BYTES_MAX} without records; "
            "list fewer items in one request"
        )
    try:
        request = kind.FromString(raw)
    except DecodeError:
        call.finish(GrpcStatus.INTERNAL, "failed to unmarshal the received message")
        return None
    check_texts(request)
    call.authorize(request)
    return request


def check_named(what: str, count: int, count_max: int = NAMES_MAX) -> None:
    """Refuse a request with too many names, before the names are processed.

    Raises:
        InvalidRequestError: There are more names than `count_max`.
    """
    if count > count_max:
        raise InvalidRequestError(f"{what}: {count} listed, at most {count_max}")


class StreamService:
    """Creates, deletes, pauses streams and sets them read-only."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, call: Call, raw: bytes) -> None:
        """Serve `CreateStream`."""
        request = decode(call, api_pb2.CreateStreamRequest, raw)
        if request is None:
            return
        self._context.reserved.check_stream(request.subject, request.partitions)
        command = CreateStream(
            name=StreamName(request.name),
            subject=request.subject,
            group=request.group,
            replication_factor=request.replicationFactor,
            partitions=request.partitions,
            overrides=StreamOverrides(**overrides_of(request)),  # type: ignore[arg-type] # by table
            creation_timestamp=self._context.clock.wall_ns(),
            streams_max=self._context.streams_max,
            partitions_max=self._context.partitions_max,
            created_by=self._context.creator(call),
        )
        command = command.with_defaults(self._context.node.context.options.defaults)
        self._propose(call, command, api_pb2.CreateStreamResponse())

    def delete(self, call: Call, raw: bytes) -> None:
        """Serve `DeleteStream`."""
        request = decode(call, api_pb2.DeleteStreamRequest, raw)
        if request is not None:
            command = DeleteStream(name=StreamName(request.name))
            self._propose(call, command, api_pb2.DeleteStreamResponse())

    def pause(self, call: Call, raw: bytes) -> None:
        """Serve `PauseStream`."""
        request = decode(call, api_pb2.PauseStreamRequest, raw)
        if request is not None:
            check_named("partitions", len(request.partitions))
            command = PauseStream(
                name=StreamName(request.name),
                partitions=tuple(dict.fromkeys(request.partitions)),
                resume_all=request.resumeAll,
            )
            self._propose(call, command, api_pb2.PauseStreamResponse())

    def set_readonly(self, call: Call, raw: bytes) -> None:
        """Serve `SetStreamReadonly`."""
        request = decode(call, api_pb2.SetStreamReadonlyRequest, raw)
        if request is not None:
            check_named("partitions", len(request.partitions))
            command = SetReadonly(
                name=StreamName(request.name),
                partitions=tuple(dict.fromkeys(request.partitions)),
                readonly=request.readonly,
            )
            self._propose(call, command, api_pb2.SetStreamReadonlyResponse())

    def _propose(self, call: Call, command: Command, response: Message) -> None:
        node = self._context.node
        node.propose(command, self._context.clock.now(), answer_with(call, response))


def answer_with(call: Call, response: Message) -> Callable[[object], None]:
    """Return a callback that ends the call with `response`, or with the refusal it receives."""

    def answered(outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            refuse(call, outcome)
        else:
            call.reply(response.SerializeToString())

    return answered
