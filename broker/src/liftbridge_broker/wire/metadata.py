"""Commands and snapshots of the metadata log <-> bytes (`internal/v1/metadata.proto`).

There is one encoding of each value: protobuf in field order with defaults left out. Decoding takes
nothing else, so that a field, an entry or an enum value of a newer version stops the node with a
`CorruptionError` instead of being skipped, which would let its state drift from the others'.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Final, TypeVar, assert_never

from google.protobuf.message import DecodeError, Message

from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    InitPublisher,
    PauseStream,
    RegisterBroker,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

_Message = TypeVar("_Message", bound=Message)

_FSYNC_VALUES: Final[Mapping[FsyncPolicy | None, pb.FsyncPolicy]] = {
    None: pb.FSYNC_POLICY_UNSPECIFIED,
    FsyncPolicy.NEVER: pb.FSYNC_POLICY_NEVER,
    FsyncPolicy.INTERVAL: pb.FSYNC_POLICY_INTERVAL,
    FsyncPolicy.COMMIT: pb.FSYNC_POLICY_COMMIT,
    FsyncPolicy.AUTO: pb.FSYNC_POLICY_AUTO,
}
_UNCLEAN_VALUES: Final[Mapping[UncleanMode | None, pb.UncleanMode]] = {
    None: pb.UNCLEAN_MODE_UNSPECIFIED,
    UncleanMode.MANUAL: pb.UNCLEAN_MODE_MANUAL,
    UncleanMode.BALANCED: pb.UNCLEAN_MODE_BALANCED,
    UncleanMode.PROACTIVE: pb.UNCLEAN_MODE_PROACTIVE,
}
_FSYNC_POLICIES: Final = tuple(_FSYNC_VALUES)
_UNCLEAN_MODES: Final = tuple(_UNCLEAN_VALUES)
_PLAIN_OVERRIDES: Final = tuple(
    field.name
    for field in fields(StreamOverrides)
    if field.name not in ("fsync_policy", "unclean_mode")
)
"""Settings that have the same name, type and unit in the message; absent stands for `None`."""


def encode_command(command: Command) -> bytes:
    """Bytes of a log entry.

    Raises:
        ValueError: A number is outside the range of its field (`metadata.proto`).
    """
    message = pb.Command()
    match command:
        case RegisterBroker():
            _fill_registration(message.register_broker, command)
        case CreateStream():
            _fill_creation(message.create_stream, command)
        case DeleteStream():
            message.delete_stream.name = command.name
            message.delete_stream.is_internal = command.is_internal
        case AlterStream():
            message.alter_stream.name = command.name
            message.alter_stream.overrides.CopyFrom(overrides_message(command.overrides))
            message.alter_stream.is_internal = command.is_internal
        case PauseStream():
            _fill_pause(message.pause_stream, command)
        case ResumeStream():
            message.resume_stream.name = command.name
            message.resume_stream.partitions.extend(command.partitions)
        case SetReadonly():
            _fill_readonly(message.set_readonly, command)
        case InitPublisher():
            message.init_publisher.stream = command.stream
            message.init_publisher.publisher = command.publisher
        case _:
            assert_never(command)
    return message.SerializeToString(deterministic=True)


def _fill_registration(target: pb.RegisterBroker, command: RegisterBroker) -> None:
    target.broker = command.broker
    target.incarnation_id = command.incarnation_id
    target.data_dir_id = command.data_dir_id
    target.host = command.host
    target.port = command.port
    target.previous_broker_epoch = command.previous_broker_epoch
    target.clean_partitions.extend(command.clean_partitions)


def _fill_creation(target: pb.CreateStream, command: CreateStream) -> None:
    target.name = command.name
    target.subject = command.subject
    target.group = command.group
    target.replication_factor = command.replication_factor
    target.partitions = command.partitions
    target.overrides.CopyFrom(overrides_message(command.overrides))
    target.creation_timestamp = command.creation_timestamp
    target.is_internal = command.is_internal
    target.partitions_max = command.partitions_max
    target.streams_max = command.streams_max


def _fill_pause(target: pb.PauseStream, command: PauseStream) -> None:
    target.name = command.name
    target.partitions.extend(command.partitions)
    target.resume_all = command.resume_all
    target.is_automatic = command.is_automatic
    target.is_internal = command.is_internal


def _fill_readonly(target: pb.SetReadonly, command: SetReadonly) -> None:
    target.name = command.name
    target.partitions.extend(command.partitions)
    target.readonly = command.readonly
    target.is_internal = command.is_internal


def overrides_message(overrides: StreamOverrides) -> pb.StreamOverrides:
    """Settings of a stream as a message; what is `None` is left out."""
    message = pb.StreamOverrides(
        fsync_policy=fsync_policy_value(overrides.fsync_policy),
        unclean_mode=unclean_mode_value(overrides.unclean_mode),
    )
    for name in _PLAIN_OVERRIDES:
        value = getattr(overrides, name)
        if value is not None:
            setattr(message, name, value)
    return message


def overrides_of(holder: pb.CreateStream | pb.AlterStream | pb.Stream) -> StreamOverrides:
    """Settings of a stream from the message that holds them, which always has them.

    Raises:
        CorruptionError: They are missing, or an enum value is not known to this version.
    """
    if not holder.HasField("overrides"):
        raise CorruptionError("metadata: a stream without settings")
    message = holder.overrides
    given = {name: getattr(message, name) for name in _PLAIN_OVERRIDES if message.HasField(name)}
    return StreamOverrides(
        **given,
        fsync_policy=fsync_policy_of(message.fsync_policy),
        unclean_mode=unclean_mode_of(message.unclean_mode),
    )


def fsync_policy_of(value: int) -> FsyncPolicy | None:
    """Policy of an enum value; `None` for the default.

    Raises:
        CorruptionError: The value is not known to this version.
    """
    if not 0 <= value < len(_FSYNC_POLICIES):
        raise CorruptionError(f"metadata: fsync policy {value} is not known")
    return _FSYNC_POLICIES[value]


def unclean_mode_of(value: int) -> UncleanMode | None:
    """Mode of an enum value; `None` for the default.

    Raises:
        CorruptionError: The value is not known to this version.
    """
    if not 0 <= value < len(_UNCLEAN_MODES):
        raise CorruptionError(f"metadata: unclean mode {value} is not known")
    return _UNCLEAN_MODES[value]


def fsync_policy_value(policy: FsyncPolicy | None) -> pb.FsyncPolicy:
    """Enum value of a policy."""
    return _FSYNC_VALUES[policy]


def unclean_mode_value(mode: UncleanMode | None) -> pb.UncleanMode:
    """Enum value of a mode."""
    return _UNCLEAN_VALUES[mode]


def decode_command(data: bytes) -> Command:
    """Command of a log entry.

    Raises:
        CorruptionError: The bytes are no command of this version.
    """
    message = parse_canonical(pb.Command, data)
    match message.WhichOneof("command"):
        case "register_broker":
            return _registration(message.register_broker)
        case "create_stream":
            return _creation(message.create_stream)
        case None:
            raise CorruptionError("metadata: a command that this version does not know")
        case _:
            return _change(message)


def _change(message: pb.Command) -> Command:
    """Command about a stream that exists."""
    match message.WhichOneof("command"):
        case "delete_stream":
            deletion = message.delete_stream
            return DeleteStream(name=StreamName(deletion.name), is_internal=deletion.is_internal)
        case "alter_stream":
            return AlterStream(
                name=StreamName(message.alter_stream.name),
                overrides=overrides_of(message.alter_stream),
                is_internal=message.alter_stream.is_internal,
            )
        case "pause_stream":
            return _pause(message.pause_stream)
        case "resume_stream":
            return ResumeStream(
                name=StreamName(message.resume_stream.name),
                partitions=tuple(message.resume_stream.partitions),
            )
        case "set_readonly":
            return SetReadonly(
                name=StreamName(message.set_readonly.name),
                partitions=tuple(message.set_readonly.partitions),
                readonly=message.set_readonly.readonly,
                is_internal=message.set_readonly.is_internal,
            )
        case "init_publisher":
            return InitPublisher(
                stream=StreamName(message.init_publisher.stream),
                publisher=message.init_publisher.publisher,
            )
        case _:
            raise CorruptionError("metadata: a command that this version does not know")


def _registration(message: pb.RegisterBroker) -> RegisterBroker:
    return RegisterBroker(
        broker=BrokerId(message.broker),
        incarnation_id=message.incarnation_id,
        data_dir_id=message.data_dir_id,
        host=message.host,
        port=message.port,
        previous_broker_epoch=message.previous_broker_epoch,
        clean_partitions=tuple(PartitionId(one) for one in message.clean_partitions),
    )


def _creation(message: pb.CreateStream) -> CreateStream:
    return CreateStream(
        name=StreamName(message.name),
        subject=message.subject,
        group=message.group,
        replication_factor=message.replication_factor,
        partitions=message.partitions,
        overrides=overrides_of(message),
        creation_timestamp=message.creation_timestamp,
        is_internal=message.is_internal,
        partitions_max=message.partitions_max,
        streams_max=message.streams_max,
    )


def _pause(message: pb.PauseStream) -> PauseStream:
    return PauseStream(
        name=StreamName(message.name),
        partitions=tuple(message.partitions),
        resume_all=message.resume_all,
        is_automatic=message.is_automatic,
        is_internal=message.is_internal,
    )


def parse_canonical(kind: type[_Message], data: bytes) -> _Message:
    """A message whose one encoding is `data`.

    Raises:
        CorruptionError: The bytes are no such message, or not in its only encoding, which is how
            fields of a newer version show.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise CorruptionError(f"metadata: {error}") from error
    # Unknown fields are kept by the parser and would be written again; without them bytes differ.
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        raise CorruptionError(
            f"metadata: {kind.DESCRIPTOR.name} with fields that this version does not know"
        )
    return message
