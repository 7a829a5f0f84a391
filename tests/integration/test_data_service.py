"""`liftbridge.ext.v1.Data` on a real broker: each call, its options in force, each refusal."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.data_calls import TIMEOUT, Data
from liftbridge_testkit.processes import Broker

Error = data_pb2.PublishBatchResponse
TRUE = api_pb2.NullableBool(value=True)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker with small records, so that large ones are cheap."""
    config = {"clustering.replication.max.bytes": 65536, "cursors.stream.partitions": 1}
    with Broker(tmp_path_factory.mktemp("data"), config=config) as running:
        yield running


@pytest.fixture
def service(broker: Broker) -> Iterator[Data]:
    """The service as one test sees it."""
    with broker.channel() as channel:
        yield Data(channel)


# -- CreateStream, AlterStream, ListStreams -----------------------------------------------------


def test_created_stream_has_the_options_it_was_given(service: Data) -> None:
    options = data_pb2.StreamOptions(
        fsync_policy=data_pb2.FSYNC_POLICY_COMMIT,
        tombstone_retention_ms=5,
        unclean_mode=data_pb2.UNCLEAN_MODE_MANUAL,
        retention_cursor="archive",
        retention_cursor_max_bytes=1 << 40,
        ack_reply=True,
    )
    first = service.create(options, partitions=2, segmentMaxBytes=api_pb2.NullableInt64(value=2048))
    found = service.describe()
    assert (found.stream_id, found.partitions, found.settings.name) == (
        first.stream_id,
        2,
        service.name,
    )
    assert found.options == first.options == options
    assert found.settings.segmentMaxBytes.value == 2048
    assert found.settings.retentionMaxAge.value == 168 * 3_600_000
    assert found.creation_timestamp > 0


def test_option_that_a_stream_does_not_say_is_the_default_of_its_broker(tmp_path: Path) -> None:
    config = {"streams.unclean.mode": "proactive", "streams.fsync.policy": "auto"}
    with Broker(tmp_path, config=config) as broker, broker.channel() as channel:
        data = Data(channel)
        data.create()
        found = data.describe().options
    assert found.unclean_mode == data_pb2.UNCLEAN_MODE_PROACTIVE
    assert found.fsync_policy == data_pb2.FSYNC_POLICY_AUTO


def test_altered_options_are_in_force_and_survive(service: Data) -> None:
    service.create()
    service.publish(b"v" * 1000)
    altered = service.stub.AlterStream(
        data_pb2.AlterStreamRequest(
            name=service.name,
            settings=api_pb2.CreateStreamRequest(segmentMaxBytes=api_pb2.NullableInt64(value=1024)),
            options=data_pb2.StreamOptions(fsync_policy=data_pb2.FSYNC_POLICY_COMMIT),
        ),
        timeout=TIMEOUT,
    )
    for _ in range(5):
        assert service.publish(b"v" * 1000, ack_policy=api_pb2.ALL).error == Error.OK
    assert service.bounds()[0].segments >= 3
    found = service.describe()
    assert found.options == altered.options
    assert found.options.fsync_policy == data_pb2.FSYNC_POLICY_COMMIT
    assert found.settings.segmentMaxBytes.value == 1024


@pytest.mark.parametrize(
    ("stream", "options", "text"),
    [
        ({"name": ""}, {}, "name"),
        ({"subject": "a b"}, {}, "Subject is invalid"),
        ({"partitions": -1}, {}, "partitions -1"),
        ({"replicationFactor": 9}, {}, "replicationFactor 9"),
        ({"minIsr": api_pb2.NullableInt32(value=3)}, {}, "minIsr 3"),
        ({"retentionMaxBytes": api_pb2.NullableInt64(value=-4)}, {}, "retentionMaxBytes -4"),
        ({}, {"fsync_policy": 77}, "fsync_policy: unknown value 77"),
        ({}, {"unclean_mode": 78}, "unclean_mode: unknown value 78"),
        ({}, {"tombstone_retention_ms": -1}, "tombstone_retention_ms -1"),
        ({}, {"retention_cursor_max_bytes": -1}, "retention_cursor_max_bytes -1"),
    ],
)
def test_senseless_stream_is_refused_by_name_and_value(
    service: Data, stream: dict[str, object], options: dict[str, int], text: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.create(data_pb2.StreamOptions(**options), **stream)  # type: ignore[arg-type] # by name
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert text.lower() in (caught.value.details() or "").lower()


@pytest.mark.parametrize(
    ("cursor", "by", "code", "text"),
    [
        ({}, 1, StatusCode.FAILED_PRECONDITION, "cursor c is not set: stream .* was recreated"),
        ({"stream": "none"}, 0, StatusCode.FAILED_PRECONDITION, "stream none .* not exist"),
        ({"cursorId": ""}, 0, StatusCode.INVALID_ARGUMENT, "No cursorId provided"),
        ({"stream": ""}, 1, StatusCode.INVALID_ARGUMENT, "No stream provided"),
    ],
)
def test_refused_cursor_changes_nothing(
    service: Data, cursor: dict[str, object], by: int, code: StatusCode, text: str
) -> None:
    stream_id = service.create().stream_id
    given = {"stream": service.name, "cursorId": "c", "offset": 3}
    right = data_pb2.SetCursorRequest(
        cursor=api_pb2.SetCursorRequest(**given),  # type: ignore[arg-type] # by name
        stream_id=stream_id,
    )
    service.stub.SetCursor(right, timeout=TIMEOUT)
    wrong = data_pb2.SetCursorRequest(
        cursor=api_pb2.SetCursorRequest(**given | {"offset": 4} | cursor),  # type: ignore[arg-type] # by name
        stream_id=stream_id + by,
    )
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.SetCursor(wrong, timeout=TIMEOUT)
    assert caught.value.code() is code
    assert re.search(text, caught.value.details() or "")
    fetch = api_pb2.FetchCursorRequest(stream=service.name, cursorId="c")
    assert service.api.FetchCursor(fetch, timeout=TIMEOUT).offset == 3


def test_second_stream_of_a_name_is_refused(service: Data) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        service.create()
    assert caught.value.code() is StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"subject": "x"}, "settings.subject cannot be changed"),
        ({"group": "x"}, "settings.group cannot be changed"),
        ({"partitions": 2}, "settings.partitions cannot be changed"),
        ({"replicationFactor": 2}, "Invalid replicationFactor 2, cluster size 1"),
        ({"replicationFactor": -1}, "Invalid replicationFactor -1, cluster size 1"),
        ({"encryption": TRUE}, "settings.encryption cannot be changed"),
        ({"name": "other"}, "settings.name cannot be changed"),
        ({"segmentMaxBytes": api_pb2.NullableInt64(value=-1)}, "segmentMaxBytes -1"),
    ],
)
def test_what_cannot_change_is_refused(
    service: Data, settings: dict[str, object], text: str
) -> None:
    service.create()
    request = data_pb2.AlterStreamRequest(
        name=service.name,
        settings=api_pb2.CreateStreamRequest(**settings),  # type: ignore[arg-type] # by name
    )
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.AlterStream(request, timeout=TIMEOUT)
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert text in (caught.value.details() or "")


def test_unknown_stream_is_not_found_by_any_call(service: Data) -> None:
    stub, name = service.stub, service.name
    calls = [
        lambda: stub.AlterStream(data_pb2.AlterStreamRequest(name=name), timeout=TIMEOUT),
        service.init,
        service.bounds,
        lambda: list(service.fetch()),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is StatusCode.NOT_FOUND
    assert service.publish(b"v").error == Error.NOT_FOUND


def test_pages_list_every_stream_once_in_order(service: Data) -> None:
    names = [f"{service.name}-{letter}" for letter in "cadbe"]
    for name in names:
        service.create(name=name)
    found: list[str] = []
    token = ""
    for _ in range(3):
        page = service.stub.ListStreams(
            data_pb2.ListStreamsRequest(prefix=service.name, page_size=2, page_token=token),
            timeout=TIMEOUT,
        )
        found += [stream.settings.name for stream in page.streams]
        token = page.next_page_token
    assert (found, token) == (sorted(names), "")


@pytest.mark.parametrize("size", [-1, 1001])
def test_page_size_has_bounds(service: Data, size: int) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.ListStreams(data_pb2.ListStreamsRequest(page_size=size), timeout=TIMEOUT)
    assert caught.value.details() == f"page_size {size}: must be 1 to 1000"


# -- FetchBatches -------------------------------------------------------------------------------


def test_raw_batches_are_cut_to_the_range(service: Data) -> None:
    service.create()
    service.batches(service.request(b"0", b"1", b"2"), service.request(b"3", b"4"))
    assert service.values(start_offset=1, end_offset=4) == {1: b"1", 2: b"2", 3: b"3"}
    last = list(service.fetch(start_offset=1, end_offset=4))[-1]
    assert (last.next_offset, last.high_watermark, last.log_start) == (4, 5, 0)
    assert sum(response.count for response in service.fetch(end_offset=4)) == 4
    assert list(service.fetch(start_offset=99)) == []


def test_columns_are_made_by_readers(service: Data) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        next(service.fetch(format=data_pb2.BATCH_FORMAT_ARROW))
    assert caught.value.code() is StatusCode.UNIMPLEMENTED
    assert caught.value.details() == (
        "format BATCH_FORMAT_ARROW: brokers do not make columns; request BATCH_FORMAT_RAW"
    )


def test_bytes_are_bounded_with_at_least_one_batch(service: Data) -> None:
    service.create()
    service.batches(*[service.request(b"v" * 1000) for _ in range(10)])
    responses = list(service.fetch(max_bytes=1))
    assert sum(response.count for response in responses) == 1
    assert 2 <= sum(response.count for response in service.fetch(max_bytes=3000)) <= 4


def test_follower_gets_what_comes_later_until_the_stream_goes(service: Data) -> None:
    service.create()
    service.publish(b"a")
    call = service.fetch(follow=True)
    assert next(call).count == 1
    later = threading.Thread(target=service.publish, args=(b"b", b"c"))
    later.start()
    assert next(call).count == 2
    later.join()
    service.api.DeleteStream(api_pb2.DeleteStreamRequest(name=service.name), timeout=TIMEOUT)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is StatusCode.NOT_FOUND
    assert caught.value.details() == "commit log was deleted"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"start_offset": -1}, "must not be negative"),
        ({"end_offset": -1}, "must not be negative"),
        ({"max_bytes": -1}, "must not be negative"),
        ({"start_offset": 5, "end_offset": 4}, "end_offset 4 is before start_offset 5"),
        (
            {"follow": True, "end_offset": 4},
            "follow cannot be combined with end_offset or max_bytes",
        ),
        (
            {"follow": True, "max_bytes": 4},
            "follow cannot be combined with end_offset or max_bytes",
        ),
        ({"format": 7}, "format: unknown value 7"),
    ],
)
def test_senseless_range_is_refused(service: Data, fields: dict[str, object], text: str) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        list(service.fetch(**fields))
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert text in (caught.value.details() or "")


def test_strict_read_beyond_the_end_is_out_of_range(service: Data) -> None:
    service.create()
    service.publish(b"a", b"b")
    assert service.values(start_offset=1, is_strict=True) == {1: b"b"}
    with pytest.raises(grpc.RpcError) as caught:
        list(service.fetch(start_offset=3, is_strict=True))
    assert caught.value.code() is StatusCode.OUT_OF_RANGE
    assert caught.value.details() == (
        "offset 3 is out of range: the log holds offsets from 0 on, and is committed up to 2"
    )


def test_read_of_a_stream_that_was_made_anew_is_refused(service: Data) -> None:
    former = service.create().stream_id
    service.publish(b"a")
    assert service.values(stream_id=former) == {0: b"a"}
    service.api.DeleteStream(api_pb2.DeleteStreamRequest(name=service.name), timeout=TIMEOUT)
    present = service.create().stream_id
    with pytest.raises(grpc.RpcError) as caught:
        list(service.fetch(stream_id=former))
    assert caught.value.code() is StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == (
        f"stream {service.name} has id {present}, not {former}: it was recreated"
    )


def test_unknown_partition_is_not_found(service: Data) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        list(service.fetch(partition=3))
    assert caught.value.details() == "no such partition: 3"
    with pytest.raises(grpc.RpcError) as caught:
        service.bounds(partitions=[0, 3])
    assert caught.value.details() == "no such partition: 3"


# -- PartitionBounds ----------------------------------------------------------------------------


@pytest.mark.parametrize("named", [[], [0, 1], [1]])
def test_bounds_wait_until_one_goes_beyond_what_is_known(service: Data, named: list[int]) -> None:
    service.create(partitions=2)
    service.publish(b"a", partition=0)
    known = {0: 1, 1: 0}
    call = service.waiting(partitions=named, wait_ms=30_000, known_high_watermarks=known)
    service.publish(b"b", b"c", partition=1)
    found = {one.partition: one.high_watermark for one in call.result().partitions}
    assert found == {number: (1, 2)[number] for number in named or (0, 1)}


@pytest.mark.parametrize("known", [{}, {0: 0}])
def test_bounds_that_are_beyond_what_is_known_are_told_at_once(
    service: Data, known: dict[int, int]
) -> None:
    service.create()
    service.publish(b"a")
    (found,) = service.bounds(wait_ms=30_000, known_high_watermarks=known)
    assert found.high_watermark == 1


def test_bounds_are_told_at_the_end_of_the_wait(service: Data) -> None:
    service.create()
    (found,) = service.bounds(wait_ms=20, known_high_watermarks={0: 0})
    assert found.high_watermark == 0


def test_bounds_that_wait_tell_that_the_stream_has_gone(service: Data) -> None:
    service.create()
    call = service.waiting(wait_ms=30_000, known_high_watermarks={0: 0})
    service.api.DeleteStream(api_pb2.DeleteStreamRequest(name=service.name), timeout=TIMEOUT)
    with pytest.raises(grpc.RpcError) as caught:
        call.result(timeout=TIMEOUT)
    assert caught.value.code() is StatusCode.NOT_FOUND


# -- AwaitNews ----------------------------------------------------------------------------------


@pytest.fixture
def other(service: Data) -> str:
    """Another stream, with two partitions."""
    name = f"{service.name}.other"
    request = api_pb2.CreateStreamRequest(name=name, subject=name, partitions=2)
    service.api.CreateStream(request, timeout=TIMEOUT)
    return name


def test_one_call_waits_for_news_in_any_of_its_streams(service: Data, other: str) -> None:
    service.create()
    known = {service.name: {0: 0}, other: {0: 0, 1: 0}}
    for name, partition in ((other, 1), (service.name, 0)):
        call = service.following(known, wait_ms=30_000)
        request = api_pb2.PublishRequest(stream=name, partition=partition, value=b"news")
        service.api.Publish(request, timeout=TIMEOUT)
        assert call.result(timeout=TIMEOUT).streams == [name]
        known[name][partition] = 1


def test_all_streams_with_news_are_told_at_once(service: Data, other: str) -> None:
    service.create()
    service.publish(b"a")
    known = {service.name: {0: 0}, other: {0: 0}, f"{other}.gone": {0: 0}}
    told = service.following(known, wait_ms=30_000).result(timeout=TIMEOUT).streams
    assert told == [service.name, f"{other}.gone"]
    known = {service.name: {0: 1}, other: {0: 0, 2: 0}}
    assert service.following(known, wait_ms=30_000).result(timeout=TIMEOUT).streams == [other]


def test_a_wait_without_news_ends_with_none(service: Data, other: str) -> None:
    for wait_ms in (0, 20):
        assert (
            not service.following({other: {0: 0}}, wait_ms=wait_ms).result(timeout=TIMEOUT).streams
        )
    assert not service.following({}, wait_ms=30_000).result(timeout=TIMEOUT).streams


def test_a_stream_that_is_deleted_meanwhile_is_news(service: Data, other: str) -> None:
    service.create()
    call = service.following({service.name: {0: 0}, other: {0: 0}}, wait_ms=30_000)
    service.api.DeleteStream(api_pb2.DeleteStreamRequest(name=other), timeout=TIMEOUT)
    assert call.result(timeout=TIMEOUT).streams == [other]


def test_an_answer_about_news_has_bounds(service: Data, other: str) -> None:
    """What is left out ends the next wait at once."""
    gone = {f"{other}.gone.{one}": {0: 0} for one in range(1_500)}
    told = service.following(gone, wait_ms=30_000).result(timeout=TIMEOUT).streams
    assert told == list(gone)[:1_000]
    rest = {name: marks for name, marks in gone.items() if name not in set(told)}
    told = service.following(rest, wait_ms=30_000).result(timeout=TIMEOUT).streams
    assert told == list(rest)


def test_a_wait_for_many_partitions_counts_as_several_subscriptions(tmp_path: Path) -> None:
    with Broker(tmp_path, config={"subscriptions.max": 3}) as broker, broker.channel() as channel:
        service = Data(channel)
        service.create(partitions=40)
        for partitions in (31, 40):
            known = {service.name: dict.fromkeys(range(partitions), 0)}
            with pytest.raises(grpc.RpcError) as caught:
                service.following(known, wait_ms=30_000).result(timeout=TIMEOUT)
            assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        open_call = service.following({service.name: dict.fromkeys(range(30), 0)}, wait_ms=30_000)
        broker.wait_until(lambda: broker.metric("liftbridge_subscriptions ") == 30, "waiting")
        with pytest.raises(grpc.RpcError, match=r"subscriptions\.max"):
            service.following({service.name: {0: 0}}, wait_ms=30_000).result(timeout=TIMEOUT)
        request = api_pb2.PublishRequest(stream=service.name, partition=7, value=b"news")
        service.api.Publish(request, timeout=TIMEOUT)
        assert open_call.result(timeout=TIMEOUT).streams == [service.name]
        broker.wait_until(lambda: broker.metric("liftbridge_subscriptions ") == 0, "free again")


@pytest.mark.parametrize("wait_ms", [-1, 30_001])
def test_wait_for_news_has_bounds(service: Data, wait_ms: int) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.following({service.name: {0: 0}}, wait_ms=wait_ms).result(timeout=TIMEOUT)
    assert caught.value.details() == f"wait_ms {wait_ms}: must be 0 to 30000"


@pytest.mark.parametrize("wait_ms", [-1, 30_001])
def test_wait_of_bounds_has_bounds(service: Data, wait_ms: int) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        service.bounds(wait_ms=wait_ms)
    assert caught.value.details() == f"wait_ms {wait_ms}: must be 0 to 30000"


def test_bounds_tell_offsets_sizes_epochs_and_times(service: Data) -> None:
    service.create(partitions=2)
    service.publish(b"a", b"b", timestamps=[100, 200])
    full, empty = service.bounds(timestamp=150)
    assert (full.log_start, full.high_watermark, full.log_end) == (0, 2, 2)
    assert (full.timestamp_offset, full.first_timestamp, full.last_timestamp) == (1, 100, 200)
    assert full.bytes > 0
    assert full.segments == 1
    assert [epoch.start_offset for epoch in full.epochs] == [0]
    assert (empty.partition, empty.log_end, empty.timestamp_offset) == (1, 0, 0)
    assert (empty.first_timestamp, empty.last_timestamp) == (0, 0)
    assert not service.bounds(partitions=[1])[0].HasField("timestamp_offset")
    assert service.bounds(timestamp=201)[0].timestamp_offset == 2
    assert service.bounds(timestamp=-5)[0].timestamp_offset == 0


def test_clients_cannot_make_the_broker_speak_on_reserved_subjects(service: Data) -> None:
    service.create()
    for inbox in ("a b", "x.*", "liftbridge-default.internal", "a\r\nPUB b 0\r\n\r\n"):
        request = api_pb2.PublishRequest(stream=service.name, value=b"v", ackInbox=inbox)
        with pytest.raises(grpc.RpcError) as caught:
            service.api.Publish(request, timeout=TIMEOUT)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    for subject in ("", "a b", "liftbridge-default.x", "a\r\nPUB b 0\r\n\r\n"):
        to_subject = api_pb2.PublishToSubjectRequest(subject=subject, value=b"v")
        with pytest.raises(grpc.RpcError) as caught:
            service.api.PublishToSubject(to_subject, timeout=TIMEOUT)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert service.bounds()[0].log_end == 0


def test_stamped_publishes_over_the_public_api_are_stored_once(service: Data) -> None:
    service.create()
    known = service.init()
    headers = {
        "Liftbridge-Publisher-Id": b"%d" % known.publisher_id,
        "Liftbridge-Publisher-Epoch": b"%d" % known.publisher_epoch,
        "Liftbridge-Sequence": b"0",
    }
    request = api_pb2.PublishRequest(stream=service.name, value=b"v", headers=headers)
    offsets = [service.api.Publish(request, timeout=TIMEOUT).ack.offset for _ in range(2)]
    responses = list(service.api.PublishAsync(iter([request] * 3), timeout=TIMEOUT))
    assert offsets + [response.ack.offset for response in responses] == [0] * 5
    assert service.values() == {0: b"v"}
    headers["Liftbridge-Sequence"] = b"x"
    bad = api_pb2.PublishRequest(stream=service.name, value=b"v", headers=headers)
    with pytest.raises(grpc.RpcError) as caught:
        service.api.Publish(bad, timeout=TIMEOUT)
    assert "Liftbridge-Sequence" in (caught.value.details() or "")
    refused = list(service.api.PublishAsync(iter([bad]), timeout=TIMEOUT))
    assert refused[0].asyncError.code == api_pb2.PublishAsyncError.BAD_REQUEST
