"""The gRPC methods that this client calls."""

from typing import Final

from liftbridge_client.transport import Method
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2

_API: Final = "/proto.API/"
_DATA: Final = "/liftbridge.ext.v1.Data/"
_GROUPS: Final = "/liftbridge.ext.v1.Groups/"

CREATE_STREAM = Method(
    _API + "CreateStream", api_pb2.CreateStreamRequest, api_pb2.CreateStreamResponse
)
DELETE_STREAM = Method(
    _API + "DeleteStream", api_pb2.DeleteStreamRequest, api_pb2.DeleteStreamResponse
)
PAUSE_STREAM = Method(_API + "PauseStream", api_pb2.PauseStreamRequest, api_pb2.PauseStreamResponse)
SET_READONLY = Method(
    _API + "SetStreamReadonly",
    api_pb2.SetStreamReadonlyRequest,
    api_pb2.SetStreamReadonlyResponse,
)
SUBSCRIBE = Method(_API + "Subscribe", api_pb2.SubscribeRequest, api_pb2.Message)
FETCH_METADATA = Method(
    _API + "FetchMetadata", api_pb2.FetchMetadataRequest, api_pb2.FetchMetadataResponse
)
FETCH_PARTITION_METADATA = Method(
    _API + "FetchPartitionMetadata",
    api_pb2.FetchPartitionMetadataRequest,
    api_pb2.FetchPartitionMetadataResponse,
)
PUBLISH = Method(_API + "Publish", api_pb2.PublishRequest, api_pb2.PublishResponse)
PUBLISH_ASYNC = Method(_API + "PublishAsync", api_pb2.PublishRequest, api_pb2.PublishResponse)
PUBLISH_TO_SUBJECT = Method(
    _API + "PublishToSubject",
    api_pb2.PublishToSubjectRequest,
    api_pb2.PublishToSubjectResponse,
)
SET_CURSOR = Method(_API + "SetCursor", api_pb2.SetCursorRequest, api_pb2.SetCursorResponse)
FETCH_CURSOR = Method(_API + "FetchCursor", api_pb2.FetchCursorRequest, api_pb2.FetchCursorResponse)

DATA_CREATE_STREAM = Method(
    _DATA + "CreateStream", data_pb2.CreateStreamRequest, data_pb2.CreateStreamResponse
)
ALTER_STREAM = Method(
    _DATA + "AlterStream", data_pb2.AlterStreamRequest, data_pb2.AlterStreamResponse
)
INIT_PUBLISHER = Method(
    _DATA + "InitPublisher", data_pb2.InitPublisherRequest, data_pb2.InitPublisherResponse
)
LIST_STREAMS = Method(
    _DATA + "ListStreams", data_pb2.ListStreamsRequest, data_pb2.ListStreamsResponse
)
PARTITION_BOUNDS = Method(
    _DATA + "PartitionBounds",
    data_pb2.PartitionBoundsRequest,
    data_pb2.PartitionBoundsResponse,
)
AWAIT_NEWS = Method(_DATA + "AwaitNews", data_pb2.AwaitNewsRequest, data_pb2.AwaitNewsResponse)
FETCH_BATCHES = Method(
    _DATA + "FetchBatches", data_pb2.FetchBatchesRequest, data_pb2.FetchBatchesResponse
)
DATA_SET_CURSOR = Method(_DATA + "SetCursor", data_pb2.SetCursorRequest, data_pb2.SetCursorResponse)
WHO_AM_I = Method(_DATA + "WhoAmI", data_pb2.WhoAmIRequest, data_pb2.WhoAmIResponse)
PUBLISH_BATCH = Method(
    _DATA + "PublishBatch", data_pb2.PublishBatchRequest, data_pb2.PublishBatchResponse
)

REPORT_COORDINATOR = Method(
    _API + "ReportConsumerGroupCoordinator",
    api_pb2.ReportConsumerGroupCoordinatorRequest,
    api_pb2.ReportConsumerGroupCoordinatorResponse,
)
HEARTBEAT = Method(_GROUPS + "Heartbeat", groups_pb2.HeartbeatRequest, groups_pb2.HeartbeatResponse)
LEAVE_GROUP = Method(_GROUPS + "Leave", groups_pb2.LeaveRequest, groups_pb2.LeaveResponse)
COMMIT_POSITIONS = Method(
    _GROUPS + "CommitPositions",
    groups_pb2.CommitPositionsRequest,
    groups_pb2.CommitPositionsResponse,
)
LIST_GROUPS = Method(
    _GROUPS + "ListGroups", groups_pb2.ListGroupsRequest, groups_pb2.ListGroupsResponse
)
DESCRIBE_GROUP = Method(
    _GROUPS + "DescribeGroup", groups_pb2.DescribeGroupRequest, groups_pb2.DescribeGroupResponse
)
DELETE_GROUP = Method(
    _GROUPS + "DeleteGroup", groups_pb2.DeleteGroupRequest, groups_pb2.DeleteGroupResponse
)
EVICT_MEMBER = Method(
    _GROUPS + "EvictMember", groups_pb2.EvictMemberRequest, groups_pb2.EvictMemberResponse
)
GROUP_LAG = Method(_GROUPS + "GroupLag", groups_pb2.GroupLagRequest, groups_pb2.GroupLagResponse)
RESET_POSITIONS = Method(
    _GROUPS + "ResetPositions",
    groups_pb2.ResetPositionsRequest,
    groups_pb2.ResetPositionsResponse,
)
