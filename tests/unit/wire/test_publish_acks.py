"""Acks in the form of JetStream are JSON of one line in a `PUB` frame, whatever they tell."""

import json

import pytest
from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, ServiceUnavailableError

from liftbridge_broker.adapters.memory.messaging import parse_frames
from liftbridge_broker.errors import (
    IncorrectOffsetError,
    LiftbridgeError,
    OutcomeUnknownError,
    ReadonlyError,
    TooLargeError,
)
from liftbridge_broker.model.ids import OFFSET_MAX, Offset, PartitionNumber
from liftbridge_broker.wire.publish_acks import PublishAckEncoder

NAMES = ("orders", "a.b/c", 'quo"te\\', "grüße", "\N{SNOWMAN}")


def told(frame: bytes) -> dict[str, object]:
    """The JSON of one frame."""
    (sent,) = parse_frames(frame, is_quiet=False)
    assert sent.subject == "_INBOX.x"
    assert not set(sent.payload) & set(b"\r\n")
    found = json.loads(sent.payload)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offset", [0, 41, OFFSET_MAX - 1])
@pytest.mark.parametrize("is_duplicate", [False, True])
def test_stored_message_is_read_by_a_client_of_jetstream(
    name: str, offset: int, is_duplicate: bool
) -> None:
    encoder = PublishAckEncoder(name, PartitionNumber(7))
    ack = told(encoder.stored(b"_INBOX.x", Offset(offset), is_duplicate=is_duplicate))
    assert (ack["partition"], ack["offset"]) == (7, offset)
    found = PubAck.from_response(ack)
    assert (found.stream, found.seq) == (name, offset + 1)
    assert bool(found.duplicate) is is_duplicate


@pytest.mark.parametrize(
    ("error", "kind", "err_code"),
    [
        (ReadonlyError('readonly "partition": 0\r\nPUB x 0'), ServiceUnavailableError, 10077),
        (OutcomeUnknownError("outcome unknown: ü"), ServiceUnavailableError, 10077),
        (TooLargeError("too large"), BadRequestError, 10054),
        (IncorrectOffsetError("incorrect expected offset"), BadRequestError, 10071),
    ],
)
def test_refusal_is_read_by_a_client_of_jetstream(
    error: LiftbridgeError, kind: type[APIError], err_code: int
) -> None:
    ack = told(PublishAckEncoder("s", PartitionNumber(2)).refused(b"_INBOX.x", error))
    assert (ack["stream"], ack["partition"]) == ("s", 2)
    fields = ack["error"]
    assert isinstance(fields, dict)
    with pytest.raises(kind) as caught:
        APIError.from_error(fields)
    assert (caught.value.err_code, caught.value.description) == (err_code, error.text)
