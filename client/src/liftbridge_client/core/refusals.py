"""Refusals that a server sends inside a response instead of as a gRPC status."""

from typing import Final

from liftbridge_client.errors import (
    FailedPreconditionError,
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    RetriableError,
    SequenceError,
    ServerError,
    TooLargeError,
)
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_BATCH: Final[dict[int, type[LiftbridgeError]]] = {
    data_pb2.PublishBatchResponse.UNKNOWN: OutcomeUnknownError,
    data_pb2.PublishBatchResponse.BAD_REQUEST: InvalidRequestError,
    data_pb2.PublishBatchResponse.NOT_FOUND: NotFoundError,
    data_pb2.PublishBatchResponse.INTERNAL: ServerError,
    data_pb2.PublishBatchResponse.READONLY: FailedPreconditionError,
    data_pb2.PublishBatchResponse.TOO_LARGE: TooLargeError,
    data_pb2.PublishBatchResponse.NOT_LEADER: RetriableError,
    data_pb2.PublishBatchResponse.OUT_OF_ORDER: SequenceError,
    data_pb2.PublishBatchResponse.FENCED_PUBLISHER: SequenceError,
    data_pb2.PublishBatchResponse.UNAVAILABLE: RetriableError,
    data_pb2.PublishBatchResponse.PERMISSION_DENIED: PermissionDeniedError,
    data_pb2.PublishBatchResponse.PAUSED: FailedPreconditionError,
    data_pb2.PublishBatchResponse.INCORRECT_OFFSET: IncorrectOffsetError,
}

_ASYNC: Final[dict[int, type[LiftbridgeError]]] = {
    api_pb2.PublishAsyncError.UNKNOWN: OutcomeUnknownError,
    api_pb2.PublishAsyncError.BAD_REQUEST: InvalidRequestError,
    api_pb2.PublishAsyncError.NOT_FOUND: NotFoundError,
    api_pb2.PublishAsyncError.INTERNAL: ServerError,
    api_pb2.PublishAsyncError.READONLY: FailedPreconditionError,
    api_pb2.PublishAsyncError.INCORRECT_OFFSET: IncorrectOffsetError,
    api_pb2.PublishAsyncError.ENCRYPTION_FAILED: ServerError,
    api_pb2.PublishAsyncError.PERMISSION_DENIED: PermissionDeniedError,
}

_ACKS: Final[dict[int, type[LiftbridgeError]]] = {
    api_pb2.Ack.UNKNOWN: OutcomeUnknownError,
    api_pb2.Ack.INCORRECT_OFFSET: IncorrectOffsetError,
    api_pb2.Ack.TOO_LARGE: TooLargeError,
    api_pb2.Ack.ENCRYPTION: ServerError,
}


def ack_error(ack: api_pb2.Ack) -> LiftbridgeError | None:
    """Return the error of an ack over NATS, `None` if the message is stored."""
    if not ack.ackError:
        return None
    kind = _ACKS.get(ack.ackError, OutcomeUnknownError)
    text = ack.refusal or f"ack error {ack.ackError}"
    return kind(text, server_text=ack.refusal)


def batch_error(response: data_pb2.PublishBatchResponse) -> LiftbridgeError | None:
    """Return the error of a batch response, `None` for an ack; unknown codes are server errors."""
    if not response.error:
        return None
    kind = _BATCH.get(response.error, ServerError)
    return kind(response.message, server_text=response.message)


def async_error(error: api_pb2.PublishAsyncError) -> LiftbridgeError:
    """Return the error of a response to an asynchronously published message."""
    kind = _ASYNC.get(error.code, ServerError)
    return kind(error.message, server_text=error.message)
