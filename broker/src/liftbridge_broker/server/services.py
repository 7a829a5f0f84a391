"""The methods of the API and the services that implement them."""

from typing import Final, NamedTuple

from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.batches import FetchBatchesCall, PublishBatchCall
from liftbridge_broker.api.bounds import BoundsService
from liftbridge_broker.api.caller import CallerService
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.cursors import CursorService
from liftbridge_broker.api.data import DataService
from liftbridge_broker.api.groups.classic import GroupService
from liftbridge_broker.api.groups.lag import GroupLagService
from liftbridge_broker.api.groups.members import GroupMemberService
from liftbridge_broker.api.groups.positions import PositionService
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.api.grpc.reflection import Reflection
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.grpc.turns import Turns
from liftbridge_broker.api.metadata import MetadataService
from liftbridge_broker.api.publish import PublishService
from liftbridge_broker.api.publish_async import PublishAsyncCall
from liftbridge_broker.api.streams import StreamService
from liftbridge_broker.api.subscribe import SubscribeCall
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.authenticator import Authenticator
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.limits import client_files_max
from liftbridge_broker.server.wiring import grpc_limits

API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
GROUPS: Final = "/liftbridge.ext.v1.Groups/"


class Api(NamedTuple):
    """The client API; not listening yet.

    Attributes:
        server: Serves every method.
        context: Context that all services share.
        metadata: The owner must set its `port` once the server listens.
    """

    server: GrpcServer
    context: Context
    metadata: MetadataService


def make_api(
    options: BrokerOptions,
    node: Node,
    clock: Clock,
    observer: Observer,
    health: Health,
    *,
    access: AccessControl | None = None,
    authenticator: Authenticator | None = None,
) -> Api:
    """Create a server with every method registered; without access control, everybody may call."""
    grpc, access = options.grpc, access or AccessControl()
    server = GrpcServer(
        grpc_limits(grpc),
        connections_max=grpc.connections_max,
        receive_bytes_max=grpc.receive_bytes_max,
        send_bytes_max=grpc.send_bytes_max,
        files_max=client_files_max(),
        observer=observer,
        authenticator=authenticator,
        authorize=access.authorize,
    )
    context = make_context(options, node, clock, server.turns, access)
    access.do_later = context.do_later
    metadata = MetadataService(context, host=options.listen.advertised_host)
    _register_api(server, context, metadata)
    _register_data(server, context)
    _register_groups(server, context)
    health.register(server)
    if grpc.has_reflection:
        Reflection(server)
    return Api(server, context, metadata)


def make_context(
    options: BrokerOptions, node: Node, clock: Clock, turns: Turns, access: AccessControl
) -> Context:
    """Create the context of the stream services."""
    limits = options.limits
    return Context(
        node,
        clock,
        options.clustering.record_bytes_max,
        limits.streams_max,
        limits.stream_partitions_max,
        limits.subscriptions_max,
        access=access,
        turns=turns,
    )


def register_streams(server: GrpcServer, context: Context) -> None:
    """Register the methods that manage streams and cursors, but none for messages."""
    data, streams = DataService(context), StreamService(context)
    server.unary(DATA + "CreateStream", data.create)
    server.unary(DATA + "AlterStream", data.alter)
    server.unary(DATA + "ListStreams", data.list_streams)
    server.unary(DATA + "PartitionBounds", BoundsService(context).bounds)
    server.unary(API + "DeleteStream", streams.delete)
    server.unary(API + "SetStreamReadonly", streams.set_readonly)
    server.unary(API + "FetchCursor", CursorService(context).fetch)


def _register_api(server: GrpcServer, context: Context, metadata: MetadataService) -> None:
    streams = StreamService(context)
    server.unary(API + "CreateStream", streams.create)
    server.unary(API + "DeleteStream", streams.delete)
    server.unary(API + "PauseStream", streams.pause)
    server.unary(API + "SetStreamReadonly", streams.set_readonly)
    server.unary(API + "FetchMetadata", metadata.fetch)
    server.unary(API + "FetchPartitionMetadata", metadata.fetch_partition)
    publish = PublishService(context)
    server.unary(API + "Publish", publish.publish)
    server.unary(API + "PublishToSubject", publish.publish_to_subject)
    server.streaming(API + "PublishAsync", lambda call: _take(PublishAsyncCall(context, call)))
    server.streaming(
        API + "Subscribe", lambda call: _take(SubscribeCall(context, call, server.turns))
    )
    cursors = CursorService(context)
    server.unary(API + "SetCursor", cursors.set)
    server.unary(API + "FetchCursor", cursors.fetch)
    groups = GroupService(context)
    server.unary(API + "JoinConsumerGroup", groups.join)
    server.unary(API + "LeaveConsumerGroup", groups.leave)
    server.unary(API + "FetchConsumerGroupAssignments", groups.fetch_assignments)
    server.unary(API + "ReportConsumerGroupCoordinator", groups.report_coordinator)


def _register_data(server: GrpcServer, context: Context) -> None:
    data = DataService(context)
    server.unary(DATA + "CreateStream", data.create)
    server.unary(DATA + "AlterStream", data.alter)
    server.unary(DATA + "InitPublisher", data.init_publisher)
    server.unary(DATA + "ListStreams", data.list_streams)
    bounds = BoundsService(context)
    server.unary(DATA + "PartitionBounds", bounds.bounds)
    server.unary(DATA + "AwaitNews", bounds.await_news)
    server.unary(DATA + "SetCursor", CursorService(context).set_of_stream)
    server.unary(DATA + "WhoAmI", CallerService(context).who_am_i)
    server.streaming(DATA + "PublishBatch", lambda call: _take(PublishBatchCall(context, call)))
    server.streaming(
        DATA + "FetchBatches", lambda call: _take(FetchBatchesCall(context, call, server.turns))
    )


def _register_groups(server: GrpcServer, context: Context) -> None:
    members, positions = GroupMemberService(context), PositionService(context)
    server.unary(GROUPS + "Heartbeat", members.heartbeat)
    server.unary(GROUPS + "Leave", members.leave)
    server.unary(GROUPS + "CommitPositions", positions.commit)
    server.unary(GROUPS + "ResetPositions", positions.reset)
    server.unary(GROUPS + "GroupLag", GroupLagService(context).lag)
    server.unary(GROUPS + "ListGroups", members.list_groups)
    server.unary(GROUPS + "DescribeGroup", members.describe)
    server.unary(GROUPS + "DeleteGroup", members.delete)
    server.unary(GROUPS + "EvictMember", members.evict)


def _take(_owner: object) -> None:
    """The call keeps its owner alive by the callbacks it installed."""
