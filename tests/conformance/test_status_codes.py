"""Every refusal of the public API that one broker can show: code and text, row by row.

Codes and texts are those of the original (docs/reference/compatibility.md). `{name}` stands for the
name of the stream in the test; a text that ends in `...` is a beginning.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc import StatusCode

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.world import DEADLINE_SECONDS, World

AsyncError = api_pb2.PublishAsyncError
LARGE = b"x" * (1_048_576 + 1)
TRUE = api_pb2.NullableBool(value=True)


class Case(NamedTuple):
    """One row: what is done, and how it is refused."""

    row: str
    act: Callable[[World], object]
    code: StatusCode
    text: str


def create(**fields: object) -> Callable[[World], object]:
    return lambda world: world.create(**fields)


def after(*steps: Callable[[World], object]) -> Callable[[World], object]:
    """All steps in turn; the last one is expected to be refused."""

    def act(world: World) -> None:
        for step in steps:
            step(world)

    return act


def read(**fields: object) -> Callable[[World], object]:
    """Subscribe and read to the end, which is an error."""
    return lambda world: list(world.subscribe(**fields))


def publish(**fields: object) -> Callable[[World], object]:
    return lambda world: world.publish(**fields)


def three(world: World) -> None:
    world.create()
    world.publish_many([b"0", b"1", b"2"])


CREATE = [
    Case("name empty", create(name=""), StatusCode.INVALID_ARGUMENT, "Name cannot be empty"),
    *(
        Case(f"subject {subject!r}", create(subject=subject), StatusCode.INVALID_ARGUMENT,
             "Subject is invalid")
        for subject in ("", "a b", "a\tb", "a\rb", "a\nb", "a..b", ".a", "a.")
    ),
    *(
        Case(f"name {name}", create(name=name), StatusCode.INVALID_ARGUMENT, "Stream is reserved")
        for name in ("__activity", "__cursors")
    ),
    *(
        Case(f"name {name!r}", create(name=name), StatusCode.INVALID_ARGUMENT, "...")
        for name in ("..", ".", "a b", "a\tb", "a\x00b", "a.*", "a.>", "x" * 1_000)
    ),
    Case("encryption without a key", create(encryption=TRUE), StatusCode.FAILED_PRECONDITION,
         "Failed on preconditions for stream's encryption handler: ..."),
    Case("partitions negative", create(partitions=-1), StatusCode.INVALID_ARGUMENT, "..."),
    Case("factor below -1", create(replicationFactor=-2), StatusCode.INVALID_ARGUMENT,
         "Invalid replicationFactor -2"),
    Case("factor above the cluster", create(replicationFactor=2), StatusCode.INVALID_ARGUMENT,
         "Invalid replicationFactor 2, cluster size 1"),
    Case("name exists", after(create(), create()), StatusCode.ALREADY_EXISTS,
         "stream already exists"),
    Case("name empty comes before subject", create(name="", subject=""),
         StatusCode.INVALID_ARGUMENT, "Name cannot be empty"),
    Case("subject comes before reserved", create(name="__cursors", subject=""),
         StatusCode.INVALID_ARGUMENT, "Subject is invalid"),
    Case("factor comes before exists", after(create(), create(replicationFactor=5)),
         StatusCode.INVALID_ARGUMENT, "Invalid replicationFactor 5, cluster size 1"),
]  # fmt: skip

MANAGE = [
    *(
        Case(f"delete {name}",
             lambda w, name=name: w.api.DeleteStream(  # type: ignore[misc]  # typed by the table
                 api_pb2.DeleteStreamRequest(name=name), timeout=DEADLINE_SECONDS),
             StatusCode.INVALID_ARGUMENT, "Stream is reserved")
        for name in ("__activity", "__cursors")
    ),
    Case("delete unknown", World.delete, StatusCode.NOT_FOUND, "stream does not exist"),
    Case("delete twice", after(create(), World.delete, World.delete), StatusCode.NOT_FOUND,
         "stream does not exist"),
    Case("pause unknown, all", World.pause, StatusCode.NOT_FOUND, "stream not found"),
    Case("pause unknown, one", lambda w: w.pause(partitions=[0]), StatusCode.NOT_FOUND,
         "stream does not exist"),
    Case("pause unknown partition", after(create(), lambda w: w.pause(partitions=[0, 3])),
         StatusCode.NOT_FOUND, "partition does not exist"),
    Case("readonly unknown, all", World.set_readonly, StatusCode.NOT_FOUND, "stream not found"),
    Case("readonly unknown, one", lambda w: w.set_readonly(partitions=[0]), StatusCode.NOT_FOUND,
         "stream does not exist"),
    Case("readonly unknown partition",
         after(create(), lambda w: w.set_readonly(partitions=[0, 3])),
         StatusCode.NOT_FOUND, "partition does not exist"),
]  # fmt: skip

SUBSCRIBE = [
    Case("group without consumer id", after(create(), read(consumer=api_pb2.Consumer(groupId="g"))),
         StatusCode.INVALID_ARGUMENT,
         "Consumer id cannot be empty when group id is provided"),
    Case("unknown stream", read(), StatusCode.NOT_FOUND, "No such partition"),
    Case("unknown partition", after(create(), read(partition=1)), StatusCode.NOT_FOUND,
         "No such partition"),
    Case("negative partition", after(create(), read(partition=-1)), StatusCode.NOT_FOUND,
         "No such partition"),
    Case("unknown start position", after(create(), read(startPosition=99)),
         StatusCode.INVALID_ARGUMENT, "Unknown StartPosition 99"),
    Case("unknown stop position", after(create(), read(stopPosition=99)),
         StatusCode.INVALID_ARGUMENT, "Unknown StopPosition 99"),
    Case("stop latest, empty log", after(create(), read(stopPosition=api_pb2.STOP_LATEST)),
         StatusCode.RESOURCE_EXHAUSTED, "Stream is empty"),
    Case("stop before start",
         after(three, read(startPosition=api_pb2.OFFSET, startOffset=2,
                           stopPosition=api_pb2.STOP_OFFSET, stopOffset=1)),
         StatusCode.INVALID_ARGUMENT, "Stop offset is before start offset: 1 < 2"),
    Case("stop timestamp, empty log",
         after(create(), read(stopPosition=api_pb2.STOP_TIMESTAMP, stopTimestamp=1)),
         StatusCode.INTERNAL, "Failed to lookup offset for timestamp: ..."),
    Case("stop timestamp before the first message",
         after(three, read(startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_TIMESTAMP,
                           stopTimestamp=1)),
         StatusCode.INTERNAL, "Failed to lookup offset for timestamp: ..."),
    Case("stop offset reached",
         after(three, read(startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_OFFSET,
                           stopOffset=1)),
         StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached"),
    Case("stop latest reached",
         after(three, read(startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST)),
         StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached"),
    Case("end of readonly partition",
         after(three, World.set_readonly, read(startPosition=api_pb2.EARLIEST)),
         StatusCode.RESOURCE_EXHAUSTED, "..."),
    Case("end of empty readonly partition", after(create(), World.set_readonly, read()),
         StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition"),
    Case("new only on a readonly partition", after(three, World.set_readonly, read()),
         StatusCode.INVALID_ARGUMENT, "Stop offset is before start offset: 2 < 3"),
    Case("paused, not resumed",
         after(three, World.pause, read(startPosition=api_pb2.EARLIEST)),
         StatusCode.FAILED_PRECONDITION, "commit log was closed"),
]  # fmt: skip

PUBLISH = [
    Case("stream empty", publish(stream=""), StatusCode.INVALID_ARGUMENT, "no stream provided"),
    Case("unknown stream", publish(), StatusCode.NOT_FOUND, "no such stream: {name}"),
    Case("unknown partition", after(create(), publish(partition=7)), StatusCode.NOT_FOUND,
         "no such partition: 7"),
    Case("readonly", after(create(), World.set_readonly, publish()),
         StatusCode.FAILED_PRECONDITION, "readonly partition: 0"),
    Case("concurrency control without ack",
         after(create(optimisticConcurrencyControl=TRUE), publish(ackPolicy=api_pb2.NONE)),
         StatusCode.INVALID_ARGUMENT,
         "stream with concurrency control must have AckPolicy set"),
    Case("incorrect offset",
         after(create(optimisticConcurrencyControl=TRUE), publish(expectedOffset=3)),
         StatusCode.UNKNOWN, "incorrect expected offset"),
    Case("too large", after(create(), publish(value=LARGE)), StatusCode.INVALID_ARGUMENT,
         "message exceeds max replication size"),
]  # fmt: skip

METADATA = [
    Case("partition metadata of an unknown stream", World.partition, StatusCode.NOT_FOUND,
         "partition not found"),
    Case("partition metadata of an unknown partition",
         after(create(), lambda w: w.partition(4)), StatusCode.NOT_FOUND, "partition not found"),
    Case("partition metadata of a paused partition",
         after(create(), World.pause, World.partition), StatusCode.FAILED_PRECONDITION,
         "The request should be sent to partition leader"),
]  # fmt: skip


def set_cursor(**fields: object) -> Callable[[World], object]:
    return lambda world: world.api.SetCursor(
        api_pb2.SetCursorRequest(**fields),  # type: ignore[arg-type]  # by name
        timeout=DEADLINE_SECONDS,
    )


def fetch_cursor(**fields: object) -> Callable[[World], object]:
    return lambda world: world.api.FetchCursor(
        api_pb2.FetchCursorRequest(**fields),  # type: ignore[arg-type]  # by name
        timeout=DEADLINE_SECONDS,
    )


CURSORS = [
    Case("set without stream", set_cursor(cursorId="c"), StatusCode.INVALID_ARGUMENT,
         "No stream provided"),
    Case("set without id", set_cursor(stream="s"), StatusCode.INVALID_ARGUMENT,
         "No cursorId provided"),
    Case("fetch without stream", fetch_cursor(cursorId="c"), StatusCode.INVALID_ARGUMENT,
         "No stream provided"),
    Case("fetch without id", fetch_cursor(stream="s"), StatusCode.INVALID_ARGUMENT,
         "No cursorId provided"),
]  # fmt: skip


def join(**fields: object) -> Callable[[World], object]:
    request = {"groupId": "g", "consumerId": "c", **fields}
    return lambda world: world.api.JoinConsumerGroup(
        api_pb2.JoinConsumerGroupRequest(**{"streams": [world.name], **request}),  # type: ignore[arg-type]  # by name
        timeout=DEADLINE_SECONDS,
    )


def leave(**fields: object) -> Callable[[World], object]:
    request = api_pb2.LeaveConsumerGroupRequest(**fields)  # type: ignore[arg-type]  # by name
    return lambda world: world.api.LeaveConsumerGroup(request, timeout=DEADLINE_SECONDS)


def assignments(**fields: object) -> Callable[[World], object]:
    request = api_pb2.FetchConsumerGroupAssignmentsRequest(**fields)  # type: ignore[arg-type]  # by name
    return lambda world: world.api.FetchConsumerGroupAssignments(request, timeout=DEADLINE_SECONDS)


def report(**fields: object) -> Callable[[World], object]:
    request = api_pb2.ReportConsumerGroupCoordinatorRequest(**fields)  # type: ignore[arg-type]  # by name
    return lambda world: world.api.ReportConsumerGroupCoordinator(request, timeout=DEADLINE_SECONDS)


BAD, FAILED = StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION
GROUPS = [
    Case("join without group", join(groupId=""), BAD, "No groupId provided"),
    Case("join without id", join(consumerId=""), BAD, "No consumerId provided"),
    Case("join without streams", join(streams=[]), BAD, "No streams provided"),
    Case("join to unknown stream", join(streams=["nowhere"]), FAILED, "stream does not exist"),
    Case("join twice", after(create(), join(groupId="twice"), join(groupId="twice")), FAILED,
         "consumer is already a member of the consumer group"),
    Case("leave unknown group", leave(groupId="none", consumerId="c"), StatusCode.NOT_FOUND,
         "consumer group does not exist"),
    Case("leave as stranger", after(create(), join(groupId="strange"),
                                    leave(groupId="strange", consumerId="d")), FAILED,
         "consumer is not a member of the consumer group"),
    Case("assignments of unknown group", assignments(groupId="none", consumerId="c"),
         StatusCode.NOT_FOUND, "consumer group does not exist"),
    Case("assignments in another epoch", after(create(), join(groupId="epoch"),
                                               assignments(groupId="epoch", consumerId="c")),
         FAILED, "client-provided group epoch differs from broker group epoch"),
    Case("report without coordinator", report(groupId="none", consumerId="c"), BAD,
         "No coordinator provided"),
    Case("report on unknown group", report(groupId="none", consumerId="c", coordinator="b"),
         FAILED, "No such consumer group none"),
    Case("report in another epoch", after(create(), join(groupId="late"),
                                          report(groupId="late", consumerId="c", coordinator="b")),
         FAILED, "Coordinator generation mismatch, current coordinator: ..."),
]  # fmt: skip


def cases() -> Iterator[object]:
    sections = {
        "create": CREATE,
        "manage": MANAGE,
        "subscribe": SUBSCRIBE,
        "publish": PUBLISH,
        "metadata": METADATA,
        "cursors": CURSORS,
        "groups": GROUPS,
    }
    for section, rows in sections.items():
        for case in rows:
            yield pytest.param(case, id=f"{section}-{case.row}".replace(" ", "-"))


def assert_text(seen: str | None, wanted: str) -> None:
    if wanted.endswith("..."):
        assert (seen or "").startswith(wanted[:-3])
        assert len(seen or "") > len(wanted) - 3, "the text says more"
    else:
        assert seen == wanted


@pytest.mark.parametrize("case", list(cases()))
def test_refusal_has_code_and_text(world: World, case: Case) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        case.act(world)
    assert caught.value.code() is case.code, caught.value.details()
    assert_text(caught.value.details(), case.text.replace("{name}", world.name))
    (told,) = (
        str(one.value) for one in caught.value.trailing_metadata() if one.key == "liftbridge-error"
    )
    assert told in {kind.code for kind in kinds() if kind.status.name == case.code.name}


def kinds() -> list[type[LiftbridgeError]]:
    """Every refusal that the broker knows."""
    found = [LiftbridgeError]
    for kind in found:
        found += kind.__subclasses__()
    return found


# Ends of a running subscription


def test_delete_ends_a_running_subscription(world: World) -> None:
    world.create()
    call = world.subscribe()
    world.delete()
    assert_ends(call, StatusCode.NOT_FOUND, "commit log was deleted")


def test_pause_ends_a_running_subscription(world: World) -> None:
    world.create()
    call = world.subscribe()
    world.pause()
    assert_ends(call, StatusCode.FAILED_PRECONDITION, "commit log was closed")


def test_readonly_ends_a_running_subscription_at_its_end(world: World) -> None:
    three(world)
    call = world.subscribe(startPosition=api_pb2.EARLIEST)
    assert [next(call).offset for _ in range(3)] == [0, 1, 2]
    world.set_readonly()
    assert_ends(call, StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")


def assert_ends(call: Iterator[api_pb2.Message], code: StatusCode, text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is code
    assert caught.value.details() == text


# PublishAsync: a refusal is a response with the correlation id, and the call goes on


def request(world: World, **fields: object) -> api_pb2.PublishRequest:
    values = {"stream": world.name, "value": b"v", "expectedOffset": -1, "correlationId": "id"}
    return api_pb2.PublishRequest(**{**values, **fields})  # type: ignore[arg-type]  # by name


class AsyncCase(NamedTuple):
    row: str
    fields: dict[str, object]
    code: "api_pb2.PublishAsyncError.Code"
    text: str
    create: dict[str, object] | None = None


ASYNC = [
    AsyncCase("unknown stream", {"stream": "nowhere"}, AsyncError.NOT_FOUND,
              "no such stream: nowhere"),
    AsyncCase("stream empty", {"stream": ""}, AsyncError.NOT_FOUND, "no such stream: "),
    AsyncCase("unknown partition", {"partition": 9}, AsyncError.NOT_FOUND,
              "no such partition: 9"),
    AsyncCase("too large", {"value": LARGE}, AsyncError.BAD_REQUEST,
              "message exceeds max replication size"),
    AsyncCase("concurrency control without ack", {"ackPolicy": api_pb2.NONE},
              AsyncError.BAD_REQUEST,
              "stream with concurrency control must have AckPolicy set",
              {"optimisticConcurrencyControl": TRUE}),
    AsyncCase("incorrect offset", {"expectedOffset": 3}, AsyncError.INCORRECT_OFFSET,
              "incorrect expected offset", {"optimisticConcurrencyControl": TRUE}),
]  # fmt: skip


@pytest.mark.parametrize("case", ASYNC, ids=lambda case: case.row.replace(" ", "-"))
def test_async_refusal_has_code_and_text_and_the_call_goes_on(
    world: World, case: AsyncCase
) -> None:
    world.create(**(case.create or {}))
    bad, good = request(world, **case.fields), request(world, correlationId="good")
    refused, accepted = world.publish_async(bad, good)
    assert refused.asyncError.code == case.code
    assert refused.asyncError.message == case.text
    assert refused.correlationId == "id"
    assert refused.ack.correlationId == ""
    assert (accepted.ack.correlationId, accepted.ack.offset) == ("good", 0)


def test_async_publish_to_a_readonly_partition(world: World) -> None:
    world.create()
    world.set_readonly()
    (refused,) = world.publish_async(request(world))
    assert refused.asyncError.code == AsyncError.READONLY
    assert refused.asyncError.message == "readonly partition: 0"


# What is answered with OK although something is missing


def test_pause_and_readonly_are_idempotent(world: World) -> None:
    world.create()
    world.set_readonly()
    world.set_readonly()
    assert world.metadata().partitions[0].readonly
    world.pause()
    world.pause()
    assert world.metadata().partitions[0].paused


def test_unknown_names_in_metadata_are_entries(world: World) -> None:
    response = world.api.FetchMetadata(
        api_pb2.FetchMetadataRequest(streams=["nowhere"], groups=["nobody"]),
        timeout=DEADLINE_SECONDS,
    )
    (stream,) = response.streamMetadata
    (group,) = response.groupMetadata
    assert (stream.name, stream.error) == ("nowhere", api_pb2.StreamMetadata.UNKNOWN_STREAM)
    assert (group.groupId, group.error) == ("nobody", api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP)


def test_publish_to_subject_without_a_stream_runs_into_the_deadline(world: World) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        world.api.PublishToSubject(
            api_pb2.PublishToSubjectRequest(subject=world.name, value=b"v"), timeout=0.5
        )
    assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED


def test_publish_to_subject_returns_a_refusal_as_an_ack(world: World) -> None:
    world.create(optimisticConcurrencyControl=TRUE)
    world.publish()
    response = world.api.PublishToSubject(
        api_pb2.PublishToSubjectRequest(subject=world.name, value=b"v"), timeout=DEADLINE_SECONDS
    )
    assert response.ack.ackError == api_pb2.Ack.INCORRECT_OFFSET


def test_unknown_cursor_is_minus_one(world: World) -> None:
    response = world.api.FetchCursor(
        api_pb2.FetchCursorRequest(stream=world.name, cursorId="c"), timeout=DEADLINE_SECONDS
    )
    assert response.offset == -1


def test_cursors_that_are_off_are_internal_errors(tmp_path: Path) -> None:
    with Broker(tmp_path) as plain, plain.channel() as channel:
        world = World(channel)
        for act in (set_cursor, fetch_cursor):
            with pytest.raises(grpc.RpcError) as caught:
                act(stream="s", cursorId="c")(world)
            assert caught.value.code() is StatusCode.INTERNAL
            assert caught.value.details() == "Cursors stream does not exist"
