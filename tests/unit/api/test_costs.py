"""No call does much at once, whatever it asks for and however much the cluster holds.

Every method of every service is called with the most that it takes, on a broker of a cluster with
very many streams. What it does between two turns is counted in lines of Python, so that the time of
the machine says nothing: some 10 million lines are a second. What native code does within a line
(sorting, protobuf) is bounded by the size of a request, of a page and of a step.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from liftbridge_broker.access.rule_set import PATTERNS_MAX, RULES_MAX
from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    super_rules,
)
from liftbridge_broker.api.batch_run import RECORD_COUNT_MAX
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.calls import MESSAGES_MAX
from liftbridge_broker.api.grpc.fields import REQUEST_BYTES_MAX
from liftbridge_broker.api.grpc.health import HEALTH_SERVICE, WATCHERS_MAX, Health
from liftbridge_broker.api.grpc.reflection import REFLECTION_SERVICES
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.config.options import BrokerOptions, GrpcOptions
from liftbridge_broker.controller.callers.access import CHANGES_MAX
from liftbridge_broker.controller.commands import FEATURE_LEVEL, SetFeatureLevel
from liftbridge_broker.controller.consumer_groups.commands import JoinGroup
from liftbridge_broker.controller.records import MemberAnswer
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionNumber,
    StreamId,
    StreamName,
    partition_id,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.server.admin import ACCESS, register_admin, register_quotas, register_tokens
from liftbridge_broker.server.services import make_api
from liftbridge_broker.wire.fields import bytes_field, varint_field
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import (
    access_pb2,
    admin_pb2,
    data_pb2,
    groups_pb2,
    quotas_pb2,
    tokens_pb2,
)
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.lines import LINES_MAX, Lines
from liftbridge_testkit.served_calls import Port, Served

STREAMS: Final = 100_000
WIDE: Final = BrokerOptions().limits.stream_partitions_max
"""Partitions of the widest streams."""

WIDE_COUNT: Final = 3
OWN: Final = BrokerId("b1")
ME: Final = "b1"
LONG: Final = Limits().message_bytes_max


def _elsewhere(index: int) -> StreamState:
    """A stream whose only replica another broker has, which is gone."""
    stream_id = StreamId(index)
    partition = PartitionState(
        partition_id=partition_id(stream_id, PartitionNumber(0)),
        replicas=(BrokerId("b9"),),
        isr=(BrokerId("b9"),),
        leader=None,
        leader_epoch=LeaderEpoch(index),
        partition_epoch=MetadataIndex(index),
        replica_epochs=(MetadataIndex(index),),
    )
    return StreamState(
        stream_id=stream_id,
        name=StreamName(f"n{index}"),
        subject=f"n{index}",
        group="",
        creation_timestamp=1,
        overrides=StreamOverrides(),
        partitions=[partition],
    )


GROUPED: Final = tuple(f"wide{number}" for number in range(WIDE_COUNT))
GROUPS: Final = "/liftbridge.ext.v1.Groups"


def _add_groups(world: ClusterWorld) -> None:
    """Add a group of each kind, whose members read all partitions."""
    world.propose(SetFeatureLevel(feature_level=FEATURE_LEVEL))
    for name in ("classic", "incremental"):
        for number in range(20):
            join = JoinGroup(
                group_id=name,
                member_id=f"m{number}",
                streams=GROUPED,
                is_incremental=name == "incremental",
            )
            outcome = world.propose(join)
            assert isinstance(outcome, MemberAnswer)


@dataclass
class Changing(Served):
    """A broker whose access rules change before each call, which then puts rights together too."""

    change: Callable[[], None]

    def call(self, *arguments: Any, **named: Any) -> Port:
        self.change()
        return super().call(*arguments, **named)


@pytest.fixture(scope="module")
def cluster() -> Served:
    world = ClusterWorld(1)
    for number in range(WIDE_COUNT):
        world.create(f"wide{number}", partitions=WIDE, factor=1)
    world.create("s", factor=1)
    world.until(lambda: len(world[1].node.partitions) == WIDE_COUNT * WIDE + 1)
    state = world[1].node.state
    _add_groups(world)
    for index in range(1 << 30, (1 << 30) + STREAMS):
        state.add_stream(_elsewhere(index))
    options = BrokerOptions(grpc=GrpcOptions(has_reflection=True))
    api = make_api(options, world[1].node, WorldClock(world), world[1], Health())
    api.context.turns, api.context.streams_max = None, 1 << 30
    admin = admin_of(world, 1).context
    register_admin(api.server, admin)
    register_tokens(api.server, admin)
    register_quotas(api.server, admin)
    rules = state.access.rules
    for rule in (*super_rules("*"), *_rules()):
        rules.put(rule)
    return Changing(world, api.server, lambda: api.context.access.gate.enforce([rules]))


def _rules() -> Iterator[AccessRule]:
    """As many access rules as there may be, all for everyone, as many patterns as may be first."""
    for number in range(RULES_MAX - len(ResourceKind)):
        is_pattern = number < PATTERNS_MAX
        yield AccessRule(
            principal="*",
            is_group=False,
            kind=ResourceKind.STREAM,
            match=NameMatch.PATTERN if is_pattern else NameMatch.EXACT,
            name=f"x*{number}".replace("*", ".*." if is_pattern else ""),
            is_denied=number % 2 == 0,
            operations=int(Operation.READ),
        )


# -- the most that each method takes ------------------------------------------------------------

NAMES = [f"n{number}" for number in range(1 << 30, (1 << 30) + 100_000)]
WIDE_MARKS = dict.fromkeys(range(WIDE), 1 << 40)
MEMBER = admin_pb2.Member(broker=ME, data_dir_id="disk-1")
FIRST = admin_pb2.PartitionRef(stream="wide0", partition=0)
LISTED = [admin_pb2.PartitionRef(stream="wide0", partition=number) for number in range(WIDE)][
    :1_000
]
HEADERS = {f"{number}": b"" for number in range(1_000)}
RECORDS = data_pb2.PublishBatchRequest(stream="s", values=[b""] * RECORD_COUNT_MAX)


def _publish(**more: object) -> api_pb2.PublishRequest:
    return api_pb2.PublishRequest(stream="s", value=b"v", headers=HEADERS, **more)  # type: ignore[arg-type]  # by name


Requests = Sequence[Message | bytes]
API_FILE: Final = bytes_field(4, b"proto.API")
"""Asks reflection for the file that defines it, and all that this one imports."""

JUNK: Final = (varint_field(2, 1) * (LONG // 2), bytes_field(1, b"x" * (LONG - 8)))
"""Of the services that read protobuf by hand: as many fields, and as long a one, as may be."""

BY_HAND: Final = (
    *(f"/{HEALTH_SERVICE}/{name}" for name in ("Check", "List", "Watch")),
    *(f"/{one}/ServerReflectionInfo" for one in REFLECTION_SERVICES),
)

RULES = [
    access_pb2.AccessRule(
        principal="*",
        kind=access_pb2.RESOURCE_KIND_STREAM,
        match=access_pb2.NAME_MATCH_EXACT,
        name=f"x{number}",
        operations=[access_pb2.OPERATION_READ],
    )
    for number in range(PATTERNS_MAX, PATTERNS_MAX + CHANGES_MAX)
]
POLICY = "".join(f"p, a{number}, s, Publish\n" for number in range(RULES_MAX // 2))
MODEL = (
    "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub, obj, act\n"
    "[policy_effect]\ne = some(where (p.eft == allow))\n"
    "[matchers]\nm = r.sub == p.sub && r.obj == p.obj && r.act == p.act\n"
)
REQUESTS: Final[Mapping[str, Requests]] = {
    # One change of the metadata, of all partitions of one stream.
    "/proto.API/CreateStream": (
        api_pb2.CreateStreamRequest(name="new", subject="new", partitions=WIDE),
    ),
    "/proto.API/PauseStream": (api_pb2.PauseStreamRequest(name="wide2", partitions=range(WIDE)),),
    "/proto.API/SetStreamReadonly": (
        api_pb2.SetStreamReadonlyRequest(name="wide2", partitions=range(WIDE), readonly=True),
    ),
    "/proto.API/DeleteStream": (api_pb2.DeleteStreamRequest(name="wide2"),),
    "/liftbridge.ext.v1.Data/CreateStream": (
        data_pb2.CreateStreamRequest(
            stream=api_pb2.CreateStreamRequest(name="newer", subject="newer", partitions=WIDE)
        ),
    ),
    "/liftbridge.ext.v1.Data/AlterStream": (
        data_pb2.AlterStreamRequest(
            name="wide1", settings=api_pb2.CreateStreamRequest(minIsr={"value": 1})
        ),
    ),
    # One record, or as many as a request may have.
    "/proto.API/Publish": (_publish(),),
    "/proto.API/PublishAsync": (_publish(),) * 100,
    "/proto.API/PublishToSubject": (
        api_pb2.PublishToSubjectRequest(subject="x", value=b"v", headers=HEADERS),
    ),
    "/liftbridge.ext.v1.Data/PublishBatch": (RECORDS,) * 4,
    "/proto.API/SetCursor": (api_pb2.SetCursorRequest(stream="s", cursorId="c"),),
    "/proto.API/FetchCursor": (api_pb2.FetchCursorRequest(stream="s", cursorId="c"),),
    "/liftbridge.ext.v1.Data/SetCursor": (
        data_pb2.SetCursorRequest(cursor=api_pb2.SetCursorRequest(stream="s", cursorId="c")),
    ),
    "/liftbridge.ext.v1.Data/InitPublisher": (
        data_pb2.InitPublisherRequest(stream="wide0", publisher="p"),
    ),
    # Slices of stored bytes.
    "/proto.API/Subscribe": (api_pb2.SubscribeRequest(stream="s", startPosition=api_pb2.EARLIEST),),
    "/liftbridge.ext.v1.Data/FetchBatches": (data_pb2.FetchBatchesRequest(stream="s"),),
    # What is told of streams and partitions: some of them in a step.
    "/proto.API/FetchMetadata": (api_pb2.FetchMetadataRequest(),),
    "/proto.API/FetchPartitionMetadata": (api_pb2.FetchPartitionMetadataRequest(stream="s"),),
    "/liftbridge.ext.v1.Data/WhoAmI": (data_pb2.WhoAmIRequest(),),
    "/liftbridge.ext.v1.Data/ListStreams": (data_pb2.ListStreamsRequest(page_size=1_000),),
    "/liftbridge.ext.v1.Data/PartitionBounds": (
        data_pb2.PartitionBoundsRequest(
            stream="wide0", known_high_watermarks=WIDE_MARKS, wait_ms=30_000
        ),
    ),
    "/liftbridge.ext.v1.Data/AwaitNews": (
        data_pb2.AwaitNewsRequest(
            wait_ms=30_000,
            streams=[
                data_pb2.KnownStream(name=f"wide{one}", high_watermarks=WIDE_MARKS)
                for one in range(2)
            ],
        ),
    ),
    # One change of a group that reads the most partitions, or what is told of it: some in a step.
    "/proto.API/JoinConsumerGroup": (
        api_pb2.JoinConsumerGroupRequest(groupId="classic", consumerId="new", streams=GROUPED),
    ),
    "/proto.API/LeaveConsumerGroup": (
        api_pb2.LeaveConsumerGroupRequest(groupId="classic", consumerId="new"),
    ),
    "/proto.API/FetchConsumerGroupAssignments": (
        api_pb2.FetchConsumerGroupAssignmentsRequest(groupId="classic", consumerId="m0"),
    ),
    "/proto.API/ReportConsumerGroupCoordinator": (
        api_pb2.ReportConsumerGroupCoordinatorRequest(
            groupId="classic", consumerId="m0", coordinator="b1"
        ),
    ),
    f"{GROUPS}/Heartbeat": (
        groups_pb2.HeartbeatRequest(
            group_id="incremental",
            member_id="new",
            streams=(*GROUPED, "n1.>", "*.n2", "n3.*.>", "*.*.*"),
        ),
    ),
    f"{GROUPS}/Leave": (groups_pb2.LeaveRequest(group_id="incremental", member_id="new"),),
    f"{GROUPS}/CommitPositions": (
        groups_pb2.CommitPositionsRequest(
            group_id="incremental",
            member_id="m0",
            positions=[
                groups_pb2.CommitPositionsRequest.Position(stream="wide0", partition=number)
                for number in range(1_000)
            ],
        ),
    ),
    f"{GROUPS}/ResetPositions": (
        groups_pb2.ResetPositionsRequest(
            group_id="incremental",
            positions=[
                groups_pb2.ResetPositionsRequest.Position(stream="wide0", partition=number)
                for number in range(1_000)
            ],
        ),
    ),
    f"{GROUPS}/GroupLag": (
        groups_pb2.GroupLagRequest(group_id="incremental", stream="wide0", partitions=range(1_000)),
    ),
    f"{GROUPS}/ListGroups": (groups_pb2.ListGroupsRequest(),),
    f"{GROUPS}/DescribeGroup": (groups_pb2.DescribeGroupRequest(group_id="incremental"),),
    f"{GROUPS}/EvictMember": (
        groups_pb2.EvictMemberRequest(group_id="incremental", member_id="m0"),
    ),
    f"{GROUPS}/DeleteGroup": (groups_pb2.DeleteGroupRequest(group_id="incremental"),),
    # Constant, or by the number of brokers, settings or members.
    "Identity": (admin_pb2.IdentityRequest(),),
    "Bootstrap": (admin_pb2.BootstrapRequest(cluster_id="c", members=[MEMBER]),),
    "ClusterStatus": (admin_pb2.ClusterStatusRequest(),),
    "ListSettings": (admin_pb2.ListSettingsRequest(),),
    "ReloadSettings": (admin_pb2.ReloadSettingsRequest(),),
    "CordonBroker": (admin_pb2.CordonBrokerRequest(broker=ME),),
    "UncordonBroker": (admin_pb2.UncordonBrokerRequest(broker=ME),),
    "RemoveBroker": (admin_pb2.RemoveBrokerRequest(broker=ME),),
    "Retire": (admin_pb2.RetireRequest(data_dir_id="disk-1"),),
    "SetFeatureLevel": (admin_pb2.SetFeatureLevelRequest(feature_level=1),),
    "KeysStatus": (admin_pb2.KeysStatusRequest(),),
    "RotateKeys": (admin_pb2.RotateKeysRequest(master_key="k"),),
    "RewrapKeys": (admin_pb2.RewrapKeysRequest(),),
    "SetCatchUpRate": (admin_pb2.SetCatchUpRateRequest(bytes_per_second=1),),
    "SetStreamOwner": (admin_pb2.SetStreamOwnerRequest(stream="s", stream_id=1, owner="o"),),
    "TransferMetadataLeadership": (admin_pb2.TransferMetadataLeadershipRequest(),),
    "AddLearner": (admin_pb2.AddLearnerRequest(member=MEMBER),),
    "PromoteLearner": (admin_pb2.PromoteLearnerRequest(member=MEMBER),),
    "RemoveMember": (admin_pb2.RemoveMemberRequest(member=MEMBER),),
    "/liftbridge.ext.v1.Tokens/CreateToken": (
        tokens_pb2.CreateTokenRequest(principal="p", groups=[f"g{one}" for one in range(64)]),
    ),
    "/liftbridge.ext.v1.Tokens/RevokeToken": (tokens_pb2.RevokeTokenRequest(id="a" * 12),),
    "/liftbridge.ext.v1.Quotas/SetQuota": (
        quotas_pb2.SetQuotaRequest(
            quota=quotas_pb2.Quota(
                kind=quotas_pb2.QUOTA_KIND_STREAM,
                name="s",
                limits=quotas_pb2.Limits(publish_bytes=1),
            )
        ),
    ),
    "/liftbridge.ext.v1.Quotas/ListQuotas": (quotas_pb2.ListQuotasRequest(page_size=1_000),),
    "/liftbridge.ext.v1.Tokens/ListTokens": (tokens_pb2.ListTokensRequest(page_size=1_000),),
    # One partition, or a thousand that are listed.
    "StartReassignment": (admin_pb2.StartReassignmentRequest(partition=FIRST, target=[ME]),),
    "CancelReassignment": (admin_pb2.CancelReassignmentRequest(partition=FIRST),),
    "ElectUnclean": (admin_pb2.ElectUncleanRequest(partition=FIRST, broker=ME, partition_epoch=1),),
    # All brokers, partitions or replicas: some of them in a step.
    "ElectPreferred": (admin_pb2.ElectPreferredRequest(),),
    "TransferLeadership": (admin_pb2.TransferLeadershipRequest(**{"from": ME}),),  # type: ignore[arg-type]  # a word of Python
    "ListBrokers": (admin_pb2.ListBrokersRequest(is_confirmed=True),),
    "BrokerStatus": (admin_pb2.BrokerStatusRequest(),),
    "ListPartitions": (admin_pb2.ListPartitionsRequest(streams=NAMES[:50_000]),),
    "ListReassignments": (admin_pb2.ListReassignmentsRequest(),),
    "CheckRestart": (admin_pb2.CheckRestartRequest(broker=ME),),
    "VerifyRestart": (admin_pb2.VerifyRestartRequest(token=b"t" * LONG),),
    # Access rules: all of them, or a thousand in a change.
    ACCESS + "ListRules": (access_pb2.ListRulesRequest(page_size=1_000),),
    ACCESS + "ChangeRules": (access_pb2.ChangeRulesRequest(revoked=RULES),),
    ACCESS + "DisableAccess": (access_pb2.DisableAccessRequest(),),
    ACCESS + "CheckAccess": (
        access_pb2.CheckAccessRequest(
            principal="p",
            operation=access_pb2.OPERATION_READ,
            kind=access_pb2.RESOURCE_KIND_STREAM,
            name="s",
        ),
    ),
    ACCESS + "ConvertPolicy": (
        access_pb2.ConvertPolicyRequest(model=MODEL.encode(), policy=POLICY.encode()),
    ),
    ACCESS + "NatsPermissions": (access_pb2.NatsPermissionsRequest(principal="p"),),
    "/grpc.health.v1.Health/Check": (bytes_field(1, b"x" * LONG),),
    "/grpc.health.v1.Health/List": (b"",),
    "/grpc.health.v1.Health/Watch": (b"",),
    **{f"/{one}/ServerReflectionInfo": (API_FILE,) * MESSAGES_MAX for one in REFLECTION_SERVICES},
}
"""By path, or by the name of a method of Admin."""

MORE: Final[Sequence[tuple[str, Requests]]] = (
    (
        "/proto.API/PublishAsync",
        [
            api_pb2.PublishRequest(stream=f"wide{number % WIDE_COUNT}", partition=number % WIDE)
            for number in range(MESSAGES_MAX)
        ],
    ),
    ("/proto.API/FetchMetadata", (api_pb2.FetchMetadataRequest(streams=NAMES),)),
    ("/proto.API/PauseStream", (api_pb2.PauseStreamRequest(name="wide1"),)),
    (
        "/liftbridge.ext.v1.Data/PartitionBounds",
        (data_pb2.PartitionBoundsRequest(stream="wide0", timestamp=1),),
    ),
    (
        "/liftbridge.ext.v1.Data/AwaitNews",
        (
            data_pb2.AwaitNewsRequest(
                wait_ms=1,
                streams=[data_pb2.KnownStream(name=one) for one in NAMES[:10_000]],
            ),
        ),
    ),
    ("TransferLeadership", (admin_pb2.TransferLeadershipRequest(partitions=LISTED),)),
    ("ElectPreferred", (admin_pb2.ElectPreferredRequest(partitions=LISTED),)),
    ("ListPartitions", (admin_pb2.ListPartitionsRequest(only_degraded=True),)),
    ("ListPartitions", (admin_pb2.ListPartitionsRequest(broker=ME),)),
    ("CheckRestart", (admin_pb2.CheckRestartRequest(broker=ME, allow_unavailable=True),)),
    *((path, (one,)) for path in BY_HAND for one in JUNK),
)
"""Further ways to ask for much."""

METHODS: Final[Sequence[MethodDescriptor]] = [
    method
    for file in (api_pb2, data_pb2, groups_pb2, admin_pb2, access_pb2, tokens_pb2, quotas_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _full(name: str) -> str:
    return name if name.startswith("/") else f"/liftbridge.ext.v1.Admin/{name}"


def test_every_method_has_a_request_that_asks_for_the_most(cluster: Served) -> None:
    asked = {_full(name) for name in REQUESTS}
    assert {_path(method) for method in METHODS} - asked == set()
    assert set(cluster.server._methods) == asked
    assert {path for path in asked if path.startswith("/grpc.")} == set(BY_HAND)


CALLS = [*REQUESTS.items(), *MORE]
ORDER = sorted(CALLS, key=lambda one: "Delete" in one[0])
"""What deletes a stream or a group that others ask for comes last."""


@pytest.mark.parametrize(("name", "requests"), ORDER, ids=[name for name, _ in ORDER])
async def test_no_call_does_much_between_two_turns(
    cluster: Served, name: str, requests: Requests
) -> None:
    raw = [one if isinstance(one, bytes) else one.SerializeToString() for one in requests]
    lines = Lines()
    cluster.call(_full(name), raw, lines)
    await asyncio.sleep(0)
    assert lines.most <= LINES_MAX, name


@pytest.mark.parametrize("path", [path for path in BY_HAND if not path.endswith("/List")])
@pytest.mark.parametrize("size", [REQUEST_BYTES_MAX, REQUEST_BYTES_MAX + 1])
def test_requests_that_are_read_by_hand_have_a_bound(cluster: Served, path: str, size: int) -> None:
    port = cluster.call(path, [bytes_field(2, b"x" * (size - 3))])
    text = f"request of {size} bytes, this method takes at most {REQUEST_BYTES_MAX}"
    assert (port.end == (GrpcStatus.INVALID_ARGUMENT, text)) == (size > REQUEST_BYTES_MAX)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_one_request_is_waited_for_only_so_long(cluster: Served, method: MethodDescriptor) -> None:
    port = Port()
    handler = cluster.server.method(_path(method))
    assert handler is not None
    call = Call(port, 1, method="", peer="", deadline=None)
    handler(call)
    assert port.is_awaiting is not method.client_streaming
    call.cancel()


def test_watchers_of_health_have_a_bound_and_are_told_quickly() -> None:
    health, server = Health(), GrpcServer()
    health.register(server)
    watch = server.method(f"/{HEALTH_SERVICE}/Watch")
    assert watch is not None
    calls, ports = [], [Port() for _ in range(WATCHERS_MAX + 1)]
    for port in ports:
        calls.append(Call(port, 1, method="", peer="", deadline=None))
        watch(calls[-1])
        Served._do(Lines(), calls[-1], partial(calls[-1].on_messages, [b""]))
    assert [port.end for port in ports[:-1]] == [None] * WATCHERS_MAX
    assert ports[-1].end is not None
    assert ports[-1].end[0] == GrpcStatus.RESOURCE_EXHAUSTED
    lines = Lines()
    with lines:
        health.set_serving(is_serving=True)
    assert lines.most <= LINES_MAX
    one = len(ports[0].sent) // 2
    assert [len(port.sent) for port in ports] == [2 * one] * WATCHERS_MAX + [0]
    calls[0].cancel()
    again, port = Call(ports[-1], 1, method="", peer="", deadline=None), ports[-1]
    watch(again)
    again.on_messages([b""])
    assert len(port.sent) == one > 0
    for call in (*calls[1:], again):
        call.cancel()
    assert health._watchers == {}


def test_lines_are_counted() -> None:
    lines = Lines()
    with lines:
        sum(one for one in chain(range(1_000)))
    assert 1_000 <= lines.most < 3_000
