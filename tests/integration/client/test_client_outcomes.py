"""What a call tells of its outcome: done, refused, or unknown; words of errors never decide it.

The calls are the public methods that change something. A method that is new belongs to one of the
two tables below, or a test fails.
"""

import asyncio
import inspect
from contextlib import AsyncExitStack
from datetime import timedelta
from time import monotonic

import grpc.aio
import pyarrow as pa
import pytest
from grpc import StatusCode

import liftbridge_client as lb
from liftbridge_client import connect, connect_admin
from liftbridge_client.admin_model import Member, PartitionName
from liftbridge_client.aio.admin.access import AccessControl
from liftbridge_client.aio.admin.api_tokens import ApiTokens
from liftbridge_client.aio.admin.client import AdminClient
from liftbridge_client.aio.admin.master_keys import MasterKeys
from liftbridge_client.aio.admin.quotas import Quotas
from liftbridge_client.aio.client import Client
from liftbridge_client.aio.groups import Groups
from liftbridge_client.aio.publisher import Publisher
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.streams import Streams
from liftbridge_client.group_model import PartitionLag, PositionChange
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2

PARTITION = PartitionName("s", 0)
PLACE = admin_pb2.PartitionRef(stream="s", partition=0)
MEMBER = Member("b", "d" * 32)
SETTINGS = lb.StreamSettings(retention_max_bytes=1)
OWN_SETTINGS = lb.StreamSettings(tombstone_retention=timedelta(seconds=1))
VALUES = pa.record_batch({"value": [b"v"]})

LAG = PartitionLag("s", 0, "", None, 0, 9, 9, timedelta(0), 0, None, "", 1, 0)
RESET = PositionChange(lag=LAG, next_offset=5)

# What is called, on what, and with what.
CHANGES = {
    "publish_to_subject": (Client, "publish_to_subject", ("s", b"v")),
    "create": (Streams, "create", ("s",)),
    "create with own settings": (Streams, "create", ("s",), {"settings": OWN_SETTINGS}),
    "delete by name": (Streams, "delete", ("s",)),
    "publish": (Stream, "publish", (b"v",)),
    "publish at an offset": (Stream, "publish", (b"v",), {"expected_offset": 0}),
    "publish_columns": (Stream, "publish_columns", ([VALUES],)),
    "pause": (Stream, "pause", ()),
    "set_readonly": (Stream, "set_readonly", ()),
    "alter": (Stream, "alter", (SETTINGS,)),
    "delete": (Stream, "delete", ()),
    "set_cursor": (Stream, "set_cursor", ("c", 0)),
    "set_cursor of an id": (Stream, "set_cursor", ("c", 0), {"stream_id": 1}),
    "publisher": (Publisher, "publish", (b"v",)),
    "publisher of batches": (Publisher, "publish_batch", ([b"v"],)),
    "reset of positions": (Groups, "reset", ("g", [RESET])),
    "delete of a group": (Groups, "delete", ("g",)),
    "evict of a member": (Groups, "evict", ("g", "m")),
    "reload": (AdminClient, "reload", ("b",)),
    "cordon": (AdminClient, "cordon", ("b",)),
    "uncordon": (AdminClient, "uncordon", ("b",)),
    "remove_broker": (AdminClient, "remove_broker", ("b",)),
    "retire": (AdminClient, "retire", ("b", "d")),
    "set_feature_level": (AdminClient, "set_feature_level", (1,)),
    "set_catch_up_rate": (AdminClient, "set_catch_up_rate", (1,)),
    "create of a token": (ApiTokens, "create", ("p",)),
    "revoke of a token": (ApiTokens, "revoke", ("a" * 12,)),
    "rotate of keys": (MasterKeys, "rotate", ("k",)),
    "rewrap of keys": (MasterKeys, "rewrap", ()),
    "set of a quota": (Quotas, "set", ("principal", "p", lb.Limits(streams=1))),
    "remove of a quota": (Quotas, "remove", ("principal", "p")),
    "set_stream_owner": (AdminClient, "set_stream_owner", ("s", "o"), {"stream_id": 1}),
    "transfer_leadership": (AdminClient, "transfer_leadership", (PARTITION,)),
    "elect_preferred": (AdminClient, "elect_preferred", (PARTITION,)),
    "elect_unclean": (AdminClient, "elect_unclean", (PARTITION, "b"), {"partition_epoch": 1}),
    "start_reassignment": (AdminClient, "start_reassignment", (PARTITION, ["b"])),
    "cancel_reassignment": (AdminClient, "cancel_reassignment", (PARTITION,)),
    "bootstrap": (AdminClient, "bootstrap", ("c", [MEMBER])),
    "transfer_metadata_leadership": (AdminClient, "transfer_metadata_leadership", ("b",)),
    "add_learner": (AdminClient, "add_learner", (MEMBER,)),
    "promote_learner": (AdminClient, "promote_learner", (MEMBER,)),
    "remove_member": (AdminClient, "remove_member", (MEMBER,)),
    "change of access rules": (AccessControl, "change", ()),
    "disable": (AccessControl, "disable", ()),
}
OTHERS = {
    Client: {"aclose", "activity", "metadata", "events", "who_am_i"},
    Streams: {"get", "list", "describe", "await_news"},
    Stream: {
        *("bounds", "fetch_arrow", "fetch_columns", "fetch_cursor", "info", "partition_info"),
        *("publisher", "column_publisher", "restorer", "subscribe"),
        "restore",  # repeats itself, by offsets
    },
    Groups: {"list", "describe", "lag", "plan_reset"},
    Publisher: {"aclose", "flush", "on_settled", "publish_nowait"},
    AdminClient: {
        *("aclose", "broker_status", "brokers", "check_restart", "cluster", "identities"),
        *("partitions", "reassignments", "settings", "verify_restart"),
    },
    ApiTokens: {"list"},
    MasterKeys: {"status"},
    Quotas: {"list"},
    AccessControl: {"check", "convert_policy", "nats_permissions", "rules"},
}

# What grpcio says, what it would say in another language or version, and nothing.
GRPCIO = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: refused",
    "Socket closed",
    "Internal error from Core",
    "",
    "соединение закрыто \x00\x7f%",
)
SERVERS = (
    "not appended: storage full",
    "no known metadata leader",
    "incorrect expected offset",
    "outcome unknown: leader changed",
    "Server not partition leader",
    "broker b does not lead the metadata group, broker b does (term 1)",
)

NEVER_OF_GRPC = {
    *(StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS),
    *(StatusCode.FAILED_PRECONDITION, StatusCode.OUT_OF_RANGE, StatusCode.UNIMPLEMENTED),
}
"""Statuses that the library of a client never makes up, and so tell of a server that refuses."""

STREAMING = {"publish_columns", "publisher", "publisher of batches"}
"""What went into a call that streams before it ended may be stored, whatever ended the call."""


def test_every_public_method_is_listed():
    for kind, others in OTHERS.items():
        names = {
            name
            for name, one in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
        changing = {change[1] for change in CHANGES.values() if change[0] is kind}
        assert names == changing | others
        assert not changing & others


class Server:
    """A cluster of one broker; what changes something fails as long as faults are left.

    Attributes:
        faults: What the next calls end with; empty for success.
        calls: Changes asked for.
        stream: The stream as it is described, or none.
        partition: The partition as it is described.
        left: What the next change makes of the partition, or none.
        brokers: Those that are described.
        blind: What a list comes to once a change was asked for: "refuses", "hangs" or an answer.
    """

    def __init__(self):
        self.faults = []
        self.calls = 0
        self.stream = None
        self.partition = admin_pb2.PartitionStatus(partition=PLACE, leader="b")
        self.left = None
        self.brokers = []
        self.blind = ""
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.answers = {
            "/liftbridge.ext.v1.Admin/Identity": lambda: admin_pb2.IdentityResponse(
                broker="b", metadata_leader="b"
            ),
            "/liftbridge.ext.v1.Data/ListStreams": lambda: data_pb2.ListStreamsResponse(
                streams=[] if self.stream is None else [self.stream]
            ),
            "/liftbridge.ext.v1.Admin/ListBrokers": lambda: admin_pb2.ListBrokersResponse(
                brokers=self.brokers
            ),
            "/liftbridge.ext.v1.Admin/ListPartitions": lambda: admin_pb2.ListPartitionsResponse(
                partitions=[self.partition]
            ),
            "/proto.API/FetchMetadata": self.metadata,
        }

    def metadata(self):
        partition = api_pb2.PartitionMetadata(leader="b", replicas=["b"], isr=["b"])
        return api_pb2.FetchMetadataResponse(
            brokers=[api_pb2.Broker(id="b", host="127.0.0.1", port=self.port)],
            streamMetadata=[
                api_pb2.StreamMetadata(name=name, subject=name, partitions={0: partition})
                for name in ("s", "__cursors")
            ],
        )

    def service(self, details):
        async def on(requests, call):
            found = self.answers.get(details.method)
            is_list = found is not None and not details.method.endswith("Identity")
            if is_list and self.calls and self.blind == "hangs":
                await asyncio.Event().wait()
            if is_list and self.calls and self.blind == "refuses":
                await call.abort(StatusCode.NOT_FOUND, "")
            if found is not None:
                await call.write(found().SerializeToString())
                return
            async for request in requests:
                await self.change(details.method, request, call)
                if not details.method.endswith(("PublishBatch", "PublishAsync")):
                    return

        return grpc.stream_stream_rpc_method_handler(on)

    async def change(self, method, request, call):
        self.calls += 1
        self.partition = self.left or self.partition
        if self.faults:
            await call.abort(*self.faults.pop(0))
        answer = b""
        if method.endswith("PublishBatch"):
            number = data_pb2.PublishBatchRequest.FromString(request).request_id
            answer = data_pb2.PublishBatchResponse(request_id=number).SerializeToString()
        await call.write(answer)


class Case:
    """A server, and the clients that a change is made with."""

    def __init__(self, change, retry_time=timedelta(seconds=2)):
        self.kind, self.name, self.arguments, *named = CHANGES[change]
        self.named = named[0] if named else {}
        self.retry_time = retry_time
        self.server = Server()

    async def __aenter__(self):
        self.stack = AsyncExitStack()
        await self.server.server.start()
        self.stack.push_async_callback(self.server.server.stop, None)
        limits = {"timeout": timedelta(seconds=5), "retry_time": self.retry_time}
        enter = self.stack.enter_async_context
        self.admin = await enter(connect_admin(self.server.address, **limits))
        self.client = await enter(connect(self.server.address, **limits))
        return self

    async def __aexit__(self, *_):
        await self.stack.aclose()

    async def error(self):
        """Make the change; the error it ends with, or none."""
        stream = self.client.streams.get("s")
        things = {Client: self.client, Streams: self.client.streams, Stream: stream}
        things[AdminClient] = self.admin
        things[AccessControl] = self.admin.access
        things[ApiTokens] = self.admin.tokens
        things[MasterKeys] = self.admin.keys
        things[Quotas] = self.admin.quotas
        things[Groups] = self.client.groups
        try:
            if self.kind is not Publisher:
                await getattr(things[self.kind], self.name)(*self.arguments, **self.named)
                return None
            async with stream.publisher() as publisher:
                results = await getattr(publisher, self.name)(*self.arguments)
        except lb.LiftbridgeError as error:
            return error
        failed = results if isinstance(results, list) else []
        return next((one for one in failed if isinstance(one, lb.LiftbridgeError)), None)


def told(error):
    if error is None:
        return "done"
    return "unknown" if error.may_be_done else "refused"


FAULTS = [status for status in StatusCode if status is not StatusCode.OK]


@pytest.mark.parametrize("change", CHANGES)
async def test_outcome_is_told_by_the_status_and_never_by_words(change):
    async with Case(change, timedelta(0)) as case:
        for status in FAULTS:
            ends = {}
            for text in (*GRPCIO, *SERVERS):
                case.server.faults = [(status, text)] * 2
                ends[text] = told(await case.error())
            refuses = status in NEVER_OF_GRPC
            expected = "refused" if refuses and change not in STREAMING else "unknown"
            assert set(ends.values()) == {expected}, (status, ends)


@pytest.mark.parametrize("change", CHANGES)
async def test_words_of_grpcio_do_not_decide_whether_a_call_is_made_again(change):
    async with Case(change) as case:
        for status in FAULTS:
            ends = set()
            for text in GRPCIO:
                case.server.faults = [(status, text)]
                before = case.server.calls
                outcome = told(await case.error())
                ends.add((outcome, case.server.calls - before))
                case.server.faults = []
            assert len(ends) == 1, (status, ends)
            is_publish = "publish" in change
            assert not is_publish or not ends & {("done", 2)}, status


LOST = (StatusCode.UNAVAILABLE, "")
REPEATED = [change for change in CHANGES if "publish" not in change]


@pytest.mark.parametrize("change", REPEATED)
async def test_refusal_after_a_lost_answer_does_not_say_that_nothing_was_done(change):
    async with Case(change) as case:
        case.server.faults = [LOST]
        assert told(await case.error()) == "done"
        for status in NEVER_OF_GRPC:
            case.server.faults = [LOST, (status, ""), (status, "")]
            assert told(await case.error()) != "refused", status


DENIED = "Failed to initialise publisher: not the metadata leader"
CODES = {"CHANGE_NOT_MADE": ("done", 3), "CHANGE_REFUSED": ("refused", 1), "": ("unknown", 1)}
"""What comes of a change, and after how many calls, when a code comes with two INTERNAL before."""


@pytest.mark.parametrize("change", REPEATED)
async def test_change_that_a_broker_denies_is_made_again_and_one_in_doubt_is_not(change):
    async with Case(change) as case:
        for code, expected in CODES.items():
            trailers = (("liftbridge-error", code),) if code else ()
            case.server.faults = [(StatusCode.INTERNAL, DENIED, trailers)] * 2
            before = case.server.calls
            outcome = told(await case.error())
            assert (outcome, case.server.calls - before) == expected, code


def described(**other):
    wanted = {"name": "s", "subject": "s", "partitions": 1, "replicationFactor": 1, **other}
    return data_pb2.StreamDescription(
        partitions=1,
        settings=api_pb2.CreateStreamRequest(**wanted),
        options=data_pb2.StreamOptions(tombstone_retention_ms=1000),
    )


# What the first attempt left, as the second one is told of it.
AS_ASKED = admin_pb2.PartitionStatus(
    partition=PLACE, leader="b", leader_epoch=2, unclean_epoch=2, target=["b"]
)
ARRIVED = admin_pb2.PartitionStatus(
    partition=PLACE, leader="b", replicas=[admin_pb2.ReplicaStatus(broker="b")]
)
OTHER = admin_pb2.PartitionStatus(
    partition=PLACE, leader="c", leader_epoch=2, unclean_epoch=2, target=["c"]
)
LEFT = [
    ("create", StatusCode.ALREADY_EXISTS, described(), "done"),
    ("create", StatusCode.ALREADY_EXISTS, described(subject="t"), "AlreadyExistsError"),
    ("create with own settings", StatusCode.ALREADY_EXISTS, described(), "done"),
    ("create with own settings", StatusCode.ALREADY_EXISTS, described(group="g"), "Already"),
    ("delete", StatusCode.NOT_FOUND, None, "done"),
    ("delete by name", StatusCode.NOT_FOUND, None, "done"),
    ("remove_broker", StatusCode.NOT_FOUND, None, "done"),
    ("start_reassignment", StatusCode.FAILED_PRECONDITION, AS_ASKED, "done"),
    ("start_reassignment", StatusCode.FAILED_PRECONDITION, ARRIVED, "done"),
    ("start_reassignment", StatusCode.FAILED_PRECONDITION, OTHER, "FailedPreconditionError"),
    ("elect_unclean", StatusCode.FAILED_PRECONDITION, AS_ASKED, "done"),
    ("elect_unclean", StatusCode.FAILED_PRECONDITION, OTHER, "FailedPreconditionError"),
    ("elect_unclean", StatusCode.FAILED_PRECONDITION, ARRIVED, "FailedPreconditionError"),
]


@pytest.mark.parametrize(("change", "status", "left", "end"), LEFT)
async def test_state_that_a_lost_attempt_left_is_compared_with_what_was_asked_for(
    change, status, left, end
):
    async with Case(change) as case:
        if isinstance(left, admin_pb2.PartitionStatus):
            case.server.partition = left
        else:
            case.server.stream = left
        case.server.faults = [(status, "")] * 2
        refusal = await case.error()
        assert told(refusal) == "refused"
        case.server.faults = [LOST, (status, ""), (status, "")]
        error = await case.error()
        assert error is None if end == "done" else type(error).__name__.startswith(end)


@pytest.mark.parametrize(
    ("before", "left", "end"),
    [
        (OTHER, ARRIVED, "done"),  # back on the former replicas
        (AS_ASKED, ARRIVED, "FailedPreconditionError"),  # it was complete before
        (AS_ASKED, AS_ASKED, "FailedPreconditionError"),
        (ARRIVED, ARRIVED, "FailedPreconditionError"),
    ],
)
async def test_reassignment_that_was_given_up_is_told_from_one_that_was_complete(before, left, end):
    async with Case("cancel_reassignment") as case:
        case.server.partition, case.server.left = before, left
        case.server.faults = [LOST, *[(StatusCode.FAILED_PRECONDITION, "")] * 2]
        error = await case.error()
        assert error is None if end == "done" else type(error).__name__ == end


LOOKING = [
    *("remove_broker", "transfer_leadership", "elect_unclean"),
    *("start_reassignment", "cancel_reassignment"),
]
"""Changes after which the client looks at what an attempt left."""


@pytest.mark.parametrize("change", LOOKING)
async def test_change_in_doubt_that_left_nothing_to_be_seen_stays_in_doubt(change):
    async with Case(change) as case:
        case.server.blind = "refuses"
        case.server.faults = [LOST, *[(StatusCode.FAILED_PRECONDITION, "")] * 2]
        assert told(await case.error()) == "unknown"


async def test_what_an_attempt_left_is_looked_at_within_the_deadline_of_the_call():
    async def seconds(change):
        async with Case(change) as case:
            case.server.blind = "hangs"
            case.server.faults = [*[LOST] * 5, *[(StatusCode.FAILED_PRECONDITION, "")] * 2]
            began = monotonic()
            assert told(await case.error()) == "unknown"
            return monotonic() - began

    assert max(await asyncio.gather(*(seconds(change) for change in LOOKING))) < 3


async def test_broker_that_is_still_there_was_not_removed():
    async with Case("remove_broker") as case:
        case.server.brokers = [admin_pb2.BrokerDescription(broker="b")]
        case.server.faults = [LOST, *[(StatusCode.FAILED_PRECONDITION, "")] * 2]
        assert isinstance(await case.error(), lb.FailedPreconditionError)
        case.server.brokers = []
        case.server.faults = [LOST, *[(StatusCode.FAILED_PRECONDITION, "")] * 2]
        assert told(await case.error()) == "done"
