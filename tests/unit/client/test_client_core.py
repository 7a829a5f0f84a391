"""Addresses, partitioners and errors of the client."""

import pytest
from grpc import StatusCode

from liftbridge_broker import errors as broker_errors
from liftbridge_client import errors
from liftbridge_client.core.addresses import parse_addresses, written
from liftbridge_client.core.partitioners import by_key, choose, round_robin
from liftbridge_client.core.refusals import ack_error, async_error, batch_error
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", ("a:9292",)),
        ("a:1", ("a:1",)),
        ("liftbridge://a,b:65535", ("a:9292", "b:65535")),
        ("a, a:9292", ("a:9292",)),
        ("[::1]", ("[::1]:9292",)),
        ("[::1]:80", ("[::1]:80",)),
    ],
)
def test_addresses_are_split_completed_and_made_unique(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("host", ["a", "192.0.2.1", "fd00::1"])
def test_address_that_is_written_can_be_read(host):
    text = written(host, 9292)
    assert parse_addresses(text) == (text,)
    assert text.count("[") == host.count("::")


@pytest.mark.parametrize("text", ["", "a,", ":1", "a:", "a:0", "a:65536", "a:x", "a:٣", "a:-1"])
def test_malformed_address_is_refused(text):
    with pytest.raises(errors.UsageError, match="must be HOST or HOST:PORT"):
        parse_addresses(text)


@pytest.mark.parametrize(
    # CRC-32 (IEEE) as Go's crc32.ChecksumIEEE gives it; the first is the catalogue's check value.
    ("key", "checksum"),
    [(b"123456789", 0xCBF43926), (b"a", 0xE8B7BE43), (b"\0\xff", None)],
)
def test_keys_go_where_the_go_client_sends_them(key, checksum):
    if checksum is None:
        checksum = _crc32_bit_by_bit(key)
    assert _crc32_bit_by_bit(key) == checksum
    for count in (1, 2, 3, 7, 64):
        assert by_key(key, count) == checksum % count


def _crc32_bit_by_bit(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_message_without_key_goes_to_partition_zero():
    assert by_key(b"", 7) == 0


def test_round_robin_takes_partitions_in_turn():
    partitioner = round_robin()
    assert [partitioner(b"k", 3) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_partition_asked_for_wins_over_the_partitioner():
    assert choose(by_key, b"123456789", 1, 3) == 1


@pytest.mark.parametrize("partition", [-1, 3])
def test_partition_that_does_not_exist_is_refused(partition):
    with pytest.raises(errors.UsageError, match="partitions 0 to 2"):
        choose(by_key, b"", partition, 3)


@pytest.mark.parametrize("status", list(StatusCode))
def test_every_status_has_an_error_that_keeps_the_servers_text(status):
    error = errors.error_of(status, "told so")
    assert str(error) == error.server_text == "told so"


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (StatusCode.NOT_FOUND, "no such stream", errors.NotFoundError),
        (StatusCode.ALREADY_EXISTS, "", errors.AlreadyExistsError),
        (StatusCode.UNAVAILABLE, "", errors.RetriableError),
        (StatusCode.DEADLINE_EXCEEDED, "", errors.CallTimeoutError),
        (StatusCode.RESOURCE_EXHAUSTED, "", errors.RetriableError),
        (StatusCode.RESOURCE_EXHAUSTED, "Stream is empty", errors.EndOfStreamError),
        (
            StatusCode.RESOURCE_EXHAUSTED,
            "grpc: received message larger than max (5 vs. 4)",
            errors.TooLargeError,
        ),
        (StatusCode.UNKNOWN, "incorrect expected offset", errors.IncorrectOffsetError),
        (StatusCode.INTERNAL, "no known metadata leader", errors.RetriableError),
        (StatusCode.DATA_LOSS, "", errors.ServerError),
        (StatusCode.FAILED_PRECONDITION, "partition is paused", errors.FailedPreconditionError),
        (StatusCode.FAILED_PRECONDITION, "Server not partition leader", errors.RetriableError),
        (
            StatusCode.FAILED_PRECONDITION,
            "The request should be sent to partition leader",
            errors.RetriableError,
        ),
        (
            StatusCode.FAILED_PRECONDITION,
            "Server not leader for cursors partition 3",
            errors.RetriableError,
        ),
    ],
)
def test_status_becomes_the_right_error(status, text, kind):
    assert type(errors.error_of(status, text)) is kind


def test_every_error_has_its_own_code_and_advice():
    found = _subclasses(errors.LiftbridgeError)
    assert len({kind.code for kind in found}) == len(found) > 15
    assert all(kind.advice.endswith(".") for kind in found)


def _subclasses(kind):
    return [kind, *(below for part in kind.__subclasses__() for below in _subclasses(part))]


@pytest.mark.parametrize("text", ["", "failed to connect to all addresses", "not appended: full"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (StatusCode.DEADLINE_EXCEEDED, errors.AckTimeoutError),
        (StatusCode.UNAVAILABLE, errors.OutcomeUnknownError),
        (StatusCode.INTERNAL, errors.OutcomeUnknownError),
        (StatusCode.NOT_FOUND, errors.NotFoundError),
    ],
)
def test_lost_answer_to_a_publish_is_never_a_reason_to_repeat_it(status, text, kind):
    found = errors.publish_error(errors.error_of(status, text))
    assert type(found) is kind
    assert not found.retriable
    assert found.may_be_done == (kind is not errors.NotFoundError)


@pytest.mark.parametrize("code", sorted(errors.BY_SERVER_CODE.keys() | errors.UNDONE_CODES))
def test_code_of_a_refusal_tells_whatever_the_status_and_the_words(code):
    statuses = [status for status in StatusCode if status is not StatusCode.OK]
    found = [errors.error_of(status, text, code) for status in statuses for text in ("", "broken")]
    assert code in {kind.code for kind in _subclasses(broker_errors.LiftbridgeError)}
    if code in errors.BY_SERVER_CODE:
        assert {type(error) for error in found} == {errors.BY_SERVER_CODE[code]}
    if code in errors.UNDONE_CODES:
        assert not any(error.may_be_done for error in found)


@pytest.mark.parametrize("kind", _subclasses(broker_errors.ChangeNotMadeError))
def test_change_that_a_broker_denies_is_undone_and_asked_again_when_that_may_help(kind):
    error = errors.error_of(StatusCode[kind.status.name], "why", kind.code)
    assert not error.may_be_done
    assert error.retriable == kind.retriable


@pytest.mark.parametrize("code", ["", "INTERNAL", "OF_A_LATER_VERSION"])
def test_failure_of_a_broker_that_denies_nothing_is_neither_undone_nor_asked_again(code):
    text = "Failed to initialise publisher: not the metadata leader"
    error = errors.error_of(StatusCode.INTERNAL, text, code)
    assert type(error) is errors.ServerError
    assert error.may_be_done
    assert not error.retriable


@pytest.mark.parametrize("kind", _subclasses(broker_errors.NotAppendedError))
def test_publish_that_was_not_appended_may_be_repeated(kind):
    error = errors.error_of(StatusCode.UNAVAILABLE, "", kind.code)
    assert errors.publish_error(error) is error
    assert error.retriable


def test_publish_that_was_not_sent_may_be_repeated():
    error = errors.RetriableError("no broker is known")
    assert errors.publish_error(error) is error
    assert not error.may_be_done


@pytest.mark.parametrize("who", ["", "CLIENT: Sent ", "grpc: received "])
def test_message_too_large_for_grpc_is_refused_and_not_stored(who):
    text = f"{who}message larger than max (5 vs. 4)"
    error = errors.error_of(StatusCode.RESOURCE_EXHAUSTED, text)
    assert error.may_be_done  # of other calls it may be the answer that is too large
    assert errors.publish_error(error) is error
    assert type(error) is errors.TooLargeError
    assert not error.may_be_done


def test_wrong_offset_keeps_its_name():
    error = errors.error_of(StatusCode.UNKNOWN, "incorrect expected offset")
    assert errors.publish_error(error) is error


@pytest.mark.parametrize("code", api_pb2.Ack.Error.values())
def test_every_code_of_an_ack_has_an_error(code):
    error = ack_error(api_pb2.Ack(ackError=code, refusal="why"))
    assert (error is None) == (code == api_pb2.Ack.OK)
    assert error is None or error.server_text == "why"


@pytest.mark.parametrize("code", data_pb2.PublishBatchResponse.Error.values())
def test_every_code_of_a_batch_has_an_error(code):
    error = batch_error(data_pb2.PublishBatchResponse(error=code, message="why"))
    assert (error is None) == (code == data_pb2.PublishBatchResponse.OK)
    assert error is None or error.server_text == "why"


@pytest.mark.parametrize("code", api_pb2.PublishAsyncError.Code.values())
def test_every_code_of_a_plain_publish_has_an_error(code):
    error = async_error(api_pb2.PublishAsyncError(code=code, message="why"))
    assert error.server_text == "why"
    assert (type(error) is errors.ServerError) == (
        code in (api_pb2.PublishAsyncError.INTERNAL, api_pb2.PublishAsyncError.ENCRYPTION_FAILED)
    )
