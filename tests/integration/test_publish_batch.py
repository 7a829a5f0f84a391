"""`InitPublisher` and `PublishBatch` on a real broker: what is stored, where, and each refusal."""

from collections.abc import Iterator

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
    config = {"clustering.replication.max.bytes": 65536}
    with Broker(tmp_path_factory.mktemp("data"), config=config) as running:
        yield running


@pytest.fixture
def service(broker: Broker) -> Iterator[Data]:
    """The service as one test sees it."""
    with broker.channel() as channel:
        yield Data(channel)


# -- InitPublisher ------------------------------------------------------------------------------


def test_publisher_starts_anew_and_fences_its_former_self(service: Data) -> None:
    service.create(partitions=2)
    old = service.init()
    stamp = {"publisher_id": old.publisher_id, "publisher_epoch": old.publisher_epoch}
    assert service.publish(b"a", b"b", first_sequence=0, **stamp).base_offset == 0
    new = service.init()
    assert (new.publisher_id, new.publisher_epoch) == (old.publisher_id, old.publisher_epoch + 1)
    assert new.next_sequence[0] == 2
    fenced = service.publish(b"c", first_sequence=2, **stamp)
    assert fenced.error == Error.FENCED_PUBLISHER
    stamp["publisher_epoch"] = new.publisher_epoch
    assert service.publish(b"c", first_sequence=2, **stamp).base_offset == 2


@pytest.mark.parametrize("publisher", ["", "p" * 256, "a\nb"])
def test_names_of_publishers_have_rules(service: Data, publisher: str) -> None:
    service.create()
    with pytest.raises(grpc.RpcError) as caught:
        service.init(publisher)
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "Invalid publisher, must be 1 to 255 bytes of printable text"


# -- PublishBatch -------------------------------------------------------------------------------


def test_batches_are_answered_in_order_and_the_call_ends_after_the_last(service: Data) -> None:
    service.create(data_pb2.StreamOptions(fsync_policy=data_pb2.FSYNC_POLICY_COMMIT))
    requests = [service.request(b"%d" % number, b"x") for number in range(50)]
    answers = service.batches(*requests)
    assert [answer.request_id for answer in answers] == [request.request_id for request in requests]
    assert [answer.base_offset for answer in answers] == list(range(0, 100, 2))
    assert all(answer.error == Error.OK and answer.timestamp > 0 for answer in answers)
    assert len(service.values()) == 100


def test_duplicate_and_gap_are_told_apart(service: Data) -> None:
    service.create()
    known = service.init()
    stamp = {"publisher_id": known.publisher_id, "publisher_epoch": known.publisher_epoch}
    first, again, gap = service.batches(
        service.request(b"a", b"b", first_sequence=0, **stamp),
        service.request(b"a", b"b", first_sequence=0, **stamp),
        service.request(b"z", first_sequence=7, **stamp),
    )
    assert (first.duplicate, again.duplicate, again.base_offset) == (False, True, 0)
    assert gap.error == Error.OUT_OF_ORDER
    assert "expected 2" in gap.message
    assert first.leader_epoch > 0
    assert {again.leader_epoch, gap.leader_epoch} == {first.leader_epoch}
    assert service.values() == {0: b"a", 1: b"b"}


def test_batch_that_is_stored_in_part_is_completed_and_its_pieces_are_told(service: Data) -> None:
    service.create()
    known = service.init()
    stamp = {"publisher_id": known.publisher_id, "publisher_epoch": known.publisher_epoch}
    *_, whole, again = service.batches(
        service.request(b"a", first_sequence=0, **stamp),
        service.request(b"of another"),
        service.request(b"a", b"b", b"c", first_sequence=0, **stamp),
        service.request(b"a", b"b", b"c", first_sequence=0, **stamp),
    )
    assert (whole.base_offset, whole.duplicate, again.duplicate) == (0, False, True)
    for answer in (whole, again):
        pieces = [(piece.base_offset, piece.record_count) for piece in answer.pieces]
        assert pieces == [(0, 1), (2, 2)]
    assert service.values() == {0: b"a", 1: b"of another", 2: b"b", 3: b"c"}


def test_restore_puts_records_at_their_offsets_and_times(service: Data) -> None:
    service.create()
    answer = service.publish(
        b"a",
        b"b",
        target_offset=10,
        timestamps=[5, 6],
        keys=[b"k", b""],
        headers=[data_pb2.RecordHeaders(headers={"h": b"1"}), data_pb2.RecordHeaders()],
    )
    assert (answer.error, answer.base_offset, answer.timestamp) == (Error.OK, 10, 5)
    bounds = service.bounds(timestamp=6)[0]
    assert (bounds.log_end, bounds.timestamp_offset) == (12, 11)
    assert (bounds.first_timestamp, bounds.last_timestamp) == (5, 6)
    assert service.values() == {10: b"a", 11: b"b"}


def test_restore_of_a_compacted_wildcard_stream_keeps_subjects_and_gaps(service: Data) -> None:
    service.create(subject=f"{service.name}.*")
    answer = service.publish(
        b"a",
        b"b",
        b"c",
        offsets=[3, 4, 900],
        timestamps=[7, 7, 8],
        subjects=["orders.1", "orders.1", "orders.2"],
        reply_subjects=["", "$JS.ACK.1", ""],
    )
    assert (answer.error, answer.base_offset, answer.timestamp) == (Error.OK, 3, 7)
    found = service.frames(is_strict=True)
    assert [(one.offset, one.subject, one.reply_subject) for one in found] == [
        (3, "orders.1", ""),
        (4, "orders.1", "$JS.ACK.1"),
        (900, "orders.2", ""),
    ]
    assert [one.value for one in found] == [b"a", b"b", b"c"]
    below = service.publish(b"d", offsets=[900])
    assert below.message == "offset 900 is below the log end offset 901"


def test_sequences_that_were_never_sent_may_be_skipped(service: Data) -> None:
    service.create()
    known = service.init()
    stamp = {"publisher_id": known.publisher_id, "publisher_epoch": known.publisher_epoch}
    refused = service.publish(b"a", first_sequence=5, **stamp)
    first = service.publish(b"a", b"b", first_sequence=5, may_skip=True, **stamp)
    again = service.publish(b"a", b"b", first_sequence=5, may_skip=True, **stamp)
    later = service.publish(b"c", first_sequence=1 << 40, may_skip=True, **stamp)
    assert refused.error == Error.OUT_OF_ORDER
    assert (first.base_offset, again.base_offset, again.duplicate) == (0, 0, True)
    assert (later.error, later.base_offset) == (Error.OK, 2)
    assert service.init().next_sequence[0] == (1 << 40) + 1


REFUSED: list[tuple[str, tuple[bytes, ...], dict[str, object], int, str]] = [
    ("no values", (), {}, Error.BAD_REQUEST, "values: 0 records, must be 1 to 8192"),
    ("too many", (b"",) * 65_537, {}, Error.BAD_REQUEST, "values: 65537 records"),
    ("keys", (b"a", b"b"), {"keys": [b"k"]}, Error.BAD_REQUEST, "keys: 1 entries for 2 values"),
    (
        "headers",
        (b"a",),
        {"headers": [data_pb2.RecordHeaders()] * 2},
        Error.BAD_REQUEST,
        "headers: 2 entries for 1 values",
    ),
    ("times", (b"a",), {"timestamps": [1, 2]}, Error.BAD_REQUEST, "timestamps: 2 entries"),
    ("times fall", (b"a", b"b"), {"timestamps": [2, 1]}, Error.BAD_REQUEST, "neither decrease"),
    ("times < 0", (b"a",), {"timestamps": [-1]}, Error.BAD_REQUEST, "nor be negative"),
    ("large", (b"v" * 65_537,), {}, Error.TOO_LARGE, "message exceeds max replication size"),
    ("target < 0", (b"a",), {"target_offset": -1}, Error.BAD_REQUEST, "target_offset -1"),
    ("target", (b"a",), {"target_offset": 2**62}, Error.BAD_REQUEST, "must be 0 to"),
    (
        "two targets",
        (b"a",),
        {"target_offset": 1, "offsets": [1]},
        Error.BAD_REQUEST,
        "offsets and target_offset: only one",
    ),
    (
        "offsets of a publisher",
        (b"a",),
        {"publisher_id": 1, "offsets": [1]},
        Error.BAD_REQUEST,
        "offsets and publisher_id: only one",
    ),
    ("offsets", (b"a", b"b"), {"offsets": [1]}, Error.BAD_REQUEST, "offsets: 1 entries"),
    ("offset < 0", (b"a",), {"offsets": [-1]}, Error.BAD_REQUEST, "offsets: must increase"),
    ("offset", (b"a",), {"offsets": [2**62]}, Error.BAD_REQUEST, "offsets: must increase"),
    (
        "offsets fall",
        (b"a", b"b"),
        {"offsets": [3, 3]},
        Error.BAD_REQUEST,
        "offsets: must increase and be 0 to 4611686018427387903",
    ),
    (
        "subject of no restore",
        (b"a",),
        {"subjects": ["s"]},
        Error.BAD_REQUEST,
        "subjects and reply_subjects: allowed only with offsets or target_offset",
    ),
    (
        "reply of no restore",
        (b"a",),
        {"reply_subjects": ["s"]},
        Error.BAD_REQUEST,
        "subjects and reply_subjects: allowed only with offsets or target_offset",
    ),
    (
        "no subject",
        (b"a",),
        {"subjects": [""], "target_offset": 0},
        Error.BAD_REQUEST,
        "subjects: '' is not a subject for messages",
    ),
    (
        "blank in a reply",
        (b"a",),
        {"reply_subjects": ["a b"], "target_offset": 0},
        Error.BAD_REQUEST,
        "reply_subjects: 'a b' is not a subject for messages",
    ),
    (
        "long subject",
        (b"a",),
        {"subjects": ["s" * 4_097], "target_offset": 0},
        Error.BAD_REQUEST,
        "1 to 4096 bytes",
    ),
    (
        "large headers",
        (b"v" * 60_000,),
        {"headers": [data_pb2.RecordHeaders(headers={"h": b"v" * 6_000})]},
        Error.TOO_LARGE,
        "message exceeds max replication size",
    ),
    (
        "large with its key",
        (b"v" * 60_000, b""),
        {"keys": [b"k" * 6_000, b""]},
        Error.TOO_LARGE,
        "message exceeds max replication size",
    ),
    ("partition", (b"a",), {"partition": 9}, Error.NOT_FOUND, "no such partition: 9"),
    ("publisher", (b"a",), {"publisher_id": 1}, Error.FENCED_PUBLISHER, "not registered"),
]


@pytest.mark.parametrize(
    ("values", "fields", "code", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused_batch_has_code_and_text_and_the_call_goes_on(
    service: Data, values: tuple[bytes, ...], fields: dict[str, object], code: int, text: str
) -> None:
    service.create()
    refused, taken = service.batches(service.request(*values, **fields), service.request(b"ok"))
    assert refused.error == code
    assert text in refused.message
    assert (taken.error, taken.base_offset) == (Error.OK, 0)


def test_target_below_the_end_is_refused(service: Data) -> None:
    service.create()
    service.publish(b"a", b"b")
    answer = service.publish(b"c", target_offset=1)
    assert answer.error == Error.BAD_REQUEST
    assert answer.message == "offset 1 is below the log end offset 2"


def test_readonly_partition_refuses_batches(service: Data) -> None:
    service.create()
    request = api_pb2.SetStreamReadonlyRequest(name=service.name, readonly=True)
    service.api.SetStreamReadonly(request, timeout=TIMEOUT)
    assert service.publish(b"a").error == Error.READONLY


def test_paused_partition_is_resumed_by_a_batch(service: Data) -> None:
    service.create()
    service.api.PauseStream(api_pb2.PauseStreamRequest(name=service.name), timeout=TIMEOUT)
    assert service.publish(b"a").base_offset == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"optimisticConcurrencyControl": TRUE}, "optimistic concurrency control"),
        ({"group": "g"}, "load-balance group"),
    ],
)
def test_streams_that_decide_on_each_message_take_no_batches(
    service: Data, fields: dict[str, object], text: str
) -> None:
    service.create(None, **fields)
    answer = service.publish(b"a", b"b")
    assert (answer.error, text in answer.message) == (Error.BAD_REQUEST, True)


def test_bytes_that_are_no_request_end_the_call(broker: Broker) -> None:
    def raw(data: bytes) -> bytes:
        return data

    with broker.channel() as channel:
        call = channel.stream_stream("/liftbridge.ext.v1.Data/PublishBatch", raw, raw)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b"\xff\xff"]), timeout=TIMEOUT))
    assert caught.value.code() is StatusCode.INTERNAL
