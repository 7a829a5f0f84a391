"""The token of a restart: state of a broker at the time of `CheckRestart`.

An operator keeps it, so it contains its own integrity check, and the metadata must confirm each
decision based on it.
"""

from hashlib import sha256
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, MetadataIndex, Offset, PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_proto.internal.v1 import restart_pb2

CHECK_SIZE: Final = 8
TOKEN_BYTES_MAX: Final = MIB


class HeldReplica(NamedTuple):
    """A replica before the restart.

    Attributes:
        partition_id: Its partition.
        high_watermark: First offset that was not committed.
        was_in_sync: Whether it was a member of the in-sync set.
        unclean_epoch: Leader epoch of the last election that may have lost records; 0 for never.
    """

    partition_id: PartitionId
    high_watermark: Offset
    was_in_sync: bool
    unclean_epoch: LeaderEpoch


class RestartRecord(NamedTuple):
    """A broker before the restart.

    Attributes:
        cluster_id: Its cluster.
        broker: The broker.
        data_dir_id: Its data directory.
        start_id: Its process.
        broker_epoch: Its registration.
        expires: Latest start of the restart, nanoseconds since 1970.
        replicas: Its replicas.
    """

    cluster_id: str
    broker: BrokerId
    data_dir_id: str
    start_id: str
    broker_epoch: MetadataIndex
    expires: int
    replicas: tuple[HeldReplica, ...]


def encode_restart(record: RestartRecord) -> bytes:
    """Encode the token."""
    message = restart_pb2.RestartRecord(
        cluster_id=record.cluster_id,
        broker=record.broker,
        data_dir_id=record.data_dir_id,
        start_id=record.start_id,
        broker_epoch=record.broker_epoch,
        expires=record.expires,
    )
    for held in record.replicas:
        message.partitions.add(
            partition_id=held.partition_id,
            high_watermark=held.high_watermark,
            was_in_sync=held.was_in_sync,
            unclean_epoch=held.unclean_epoch,
        )
    data = message.SerializeToString(deterministic=True)
    return data + _check(data)


def decode_restart(token: bytes) -> RestartRecord:
    """Decode a token.

    Raises:
        InvalidRequestError: The text is not a token, or is incomplete.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidRequestError(f"token: {len(token)} bytes, limit {TOKEN_BYTES_MAX}")
    data, check = token[:-CHECK_SIZE], token[-CHECK_SIZE:]
    if len(check) < CHECK_SIZE or check != _check(data):
        raise InvalidRequestError("token: not from CheckRestart, or truncated")
    try:
        message = restart_pb2.RestartRecord.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(
            "token: from a broker of another version, get a new token from this broker"
        ) from error
    return RestartRecord(
        message.cluster_id,
        BrokerId(message.broker),
        message.data_dir_id,
        message.start_id,
        MetadataIndex(message.broker_epoch),
        message.expires,
        tuple(
            HeldReplica(
                PartitionId(held.partition_id),
                Offset(held.high_watermark),
                held.was_in_sync,
                LeaderEpoch(held.unclean_epoch),
            )
            for held in message.partitions
        ),
    )


def _check(data: bytes) -> bytes:
    return sha256(data).digest()[:CHECK_SIZE]
