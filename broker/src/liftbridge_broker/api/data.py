"""`liftbridge.ext.v1.Data`: additional stream options, listing, idempotent publishers."""

from collections.abc import Generator, Iterator, Sequence

from google.protobuf.message import Message

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import OVERRIDE_FIELDS, decode, overrides_of
from liftbridge_broker.controller.checks import check_not_reserved, check_readable
from liftbridge_broker.controller.commands import AlterStream, CreateStream, InitPublisher
from liftbridge_broker.controller.state import PublisherState, StreamState
from liftbridge_broker.errors import (
    InvalidRequestError,
    LiftbridgeError,
)
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import (
    FsyncPolicy,
    StreamOptions,
    StreamOverrides,
    UncleanMode,
)
from liftbridge_broker.node.publishing.publisher_sequences import PublisherSequences, Sequences
from liftbridge_broker.node.scheduling.steps import in_steps
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1000

NAMES_STEP = 100
"""Number of stream names checked in a step."""

_FSYNC = {
    data_pb2.FSYNC_POLICY_NEVER: FsyncPolicy.NEVER,
    data_pb2.FSYNC_POLICY_INTERVAL: FsyncPolicy.INTERVAL,
    data_pb2.FSYNC_POLICY_COMMIT: FsyncPolicy.COMMIT,
    data_pb2.FSYNC_POLICY_AUTO: FsyncPolicy.AUTO,
}
_UNCLEAN = {
    data_pb2.UNCLEAN_MODE_MANUAL: UncleanMode.MANUAL,
    data_pb2.UNCLEAN_MODE_BALANCED: UncleanMode.BALANCED,
    data_pb2.UNCLEAN_MODE_PROACTIVE: UncleanMode.PROACTIVE,
}
_OTHER_NAMES = {"retention_cursor_max_bytes": "retention_cursor_bytes_max"}
_OPTION_FIELDS = {
    field.name: _OTHER_NAMES.get(field.name, field.name)
    for field in data_pb2.StreamOptions.DESCRIPTOR.fields
    if field.enum_type is None
}
"""Field of `StreamOptions` -> field of `StreamOverrides`; same values and units."""


def _overrides(
    settings: api_pb2.CreateStreamRequest, options: data_pb2.StreamOptions
) -> StreamOverrides:
    """Convert all settings of a request, those of the original and those of this project.

    Raises:
        InvalidRequestError: An enum has a value this version does not know.
    """
    if options.fsync_policy and options.fsync_policy not in _FSYNC:
        raise InvalidRequestError(f"fsync_policy: unknown value {options.fsync_policy}")
    if options.unclean_mode and options.unclean_mode not in _UNCLEAN:
        raise InvalidRequestError(f"unclean_mode: unknown value {options.unclean_mode}")
    given = {
        ours: getattr(options, theirs)
        for theirs, ours in _OPTION_FIELDS.items()
        if options.HasField(theirs)
    }
    return StreamOverrides(
        **overrides_of(settings),  # type: ignore[arg-type] # types agree by the table of fields
        **given,
        fsync_policy=_FSYNC.get(options.fsync_policy),
        unclean_mode=_UNCLEAN.get(options.unclean_mode),
    )


class DataService:
    """Stream options, listing and publishers; see also `api.batches` and `api.bounds`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, call: Call, raw: bytes) -> None:
        """Serve `CreateStream`."""
        request = decode(call, data_pb2.CreateStreamRequest, raw)
        if request is None:
            return
        stream = request.stream
        self._context.reserved.check_stream(stream.subject, stream.partitions)
        command = CreateStream(
            name=StreamName(stream.name),
            subject=stream.subject,
            group=stream.group,
            replication_factor=stream.replicationFactor,
            partitions=stream.partitions,
            overrides=_overrides(stream, request.options),
            creation_timestamp=self._context.clock.wall_ns(),
            streams_max=self._context.streams_max,
            partitions_max=self._context.partitions_max,
            created_by=self._context.creator(call),
        )
        node = self._context.node
        check_readable(command.overrides, node.state.brokers.values())
        command = command.with_defaults(node.context.options.defaults)

        def answered(outcome: object) -> None:
            created = node.state.stream(stream.name)
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
            else:
                response = data_pb2.CreateStreamResponse()
                if created is not None:
                    response.stream_id = created.stream_id
                    _describe_options(node.context.options_of(created), response.options)
                _reply(call, response)

        node.propose(command, self._context.clock.now(), answered)

    def alter(self, call: Call, raw: bytes) -> None:
        """Serve `AlterStream`; what cannot change is refused, not ignored."""
        request = decode(call, data_pb2.AlterStreamRequest, raw)
        if request is None:
            return
        fixed = ("subject", "group", "partitions", "encryption")
        for name in fixed:
            given = request.settings
            if given.HasField(name) if name == "encryption" else getattr(given, name):
                raise InvalidRequestError(f"settings.{name} cannot be changed")
        if request.settings.name not in ("", request.name):
            raise InvalidRequestError("settings.name cannot be changed")
        command = AlterStream(
            name=StreamName(request.name),
            overrides=_overrides(request.settings, request.options),
            replication_factor=request.settings.replicationFactor,
        )
        node = self._context.node
        check_readable(command.overrides, node.state.brokers.values())

        def answered(outcome: object) -> None:
            altered = node.state.stream(request.name)
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
            else:
                response = data_pb2.AlterStreamResponse()
                if altered is not None:
                    _describe_options(node.context.options_of(altered), response.options)
                _reply(call, response)

        node.propose(command, self._context.clock.now(), answered)

    def init_publisher(self, call: Call, raw: bytes) -> None:
        """Serve `InitPublisher`."""
        request = decode(call, data_pb2.InitPublisherRequest, raw)
        if request is None:
            return
        check_not_reserved(request.stream, is_internal=False)
        node = self._context.node
        stream = StreamName(request.stream)
        command = InitPublisher(stream=stream, publisher=request.publisher)

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
                return
            assert isinstance(outcome, PublisherState)
            response = data_pb2.InitPublisherResponse(
                publisher_id=outcome.publisher_id, publisher_epoch=outcome.publisher_epoch
            )

            def found(sequences: Sequences | LiftbridgeError) -> None:
                if isinstance(sequences, LiftbridgeError):
                    refuse(call, sequences)
                    return
                for number, sequence in sequences.items():
                    response.next_sequence[number] = sequence
                _reply(call, response)

            cluster = node.cluster
            asking = (
                PublisherSequences(node.context, node.partitions, None)
                if cluster is None
                else cluster.sequences
            )
            asking.find(stream, outcome, found, self._context.clock.now())

        node.propose(command, self._context.clock.now(), answered)

    def list_streams(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListStreams`; the token is the last name of the previous page."""
        request = decode(call, data_pb2.ListStreamsRequest, raw)
        if request is None:
            return
        size = request.page_size or PAGE_SIZE_DEFAULT
        if not 0 < size <= PAGE_SIZE_MAX:
            raise InvalidRequestError(f"page_size {size}: must be 1 to {PAGE_SIZE_MAX}")
        names = yield from self._names(call.principal, request, size + 1)
        response = data_pb2.ListStreamsResponse()

        def add(name: StreamName) -> None:
            stream = self._context.node.state.stream(name)
            if stream is not None:  # otherwise it was deleted since
                self._describe(stream, response.streams.add())

        yield from in_steps(names[:size], add)
        if len(names) > size:
            response.next_page_token = names[size - 1]
        _reply(call, response)

    def _names(
        self, principal: Principal, request: data_pb2.ListStreamsRequest, count: int
    ) -> Generator[None, None, Sequence[StreamName]]:
        """Return the first `count` names from a page on that a principal may see, in order."""
        prefix, after, shows = request.prefix, request.page_token, self._context.access.shows
        names = list(self._context.node.state.stream_ids)
        first: list[StreamName] = []
        for begin in range(0, len(names), NAMES_STEP):
            some = names[begin : begin + NAMES_STEP]
            found = [
                one
                for one in some
                if one.startswith(prefix) and one > after and shows(principal, one)
            ]
            first = sorted(first + found)[:count]
            yield
        return first

    def _describe(self, stream: StreamState, target: data_pb2.StreamDescription) -> None:
        target.stream_id = stream.stream_id
        target.creation_timestamp = stream.creation_timestamp
        target.partitions = len(stream.partitions)
        target.owner = stream.owner
        options = self._context.node.context.options_of(stream)
        settings = target.settings
        settings.name = stream.name
        settings.subject = stream.subject
        settings.group = stream.group
        settings.replicationFactor = stream.replication_factor
        settings.partitions = len(stream.partitions)
        for theirs, ours in OVERRIDE_FIELDS.items():
            getattr(settings, theirs).value = getattr(options, ours)
        _describe_options(options, target.options)


def _describe_options(options: StreamOptions, target: data_pb2.StreamOptions) -> None:
    target.fsync_policy = next(
        wire for wire, ours in _FSYNC.items() if ours is options.fsync_policy
    )
    target.unclean_mode = next(
        wire for wire, ours in _UNCLEAN.items() if ours is options.unclean_mode
    )
    for theirs, ours in _OPTION_FIELDS.items():
        setattr(target, theirs, getattr(options, ours))


def _reply(call: Call, response: Message) -> None:
    call.reply(response.SerializeToString())
