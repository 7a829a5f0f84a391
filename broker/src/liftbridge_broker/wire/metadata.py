"""Commands and snapshots of the metadata log <-> bytes (`internal/v1/metadata.proto`).

Each value has exactly one encoding: protobuf in field order with defaults omitted. Decoding accepts
nothing else, so that a field, an entry or an enum value of a newer version stops the node with a
`CorruptionError` instead of being skipped, which would let its state diverge from other brokers'.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final, NamedTuple, TypeVar, get_args

from google.protobuf.message import DecodeError, Message

from liftbridge_broker.access.rules import AccessRule, NameMatch, ResourceKind
from liftbridge_broker.controller.commands import (
    BrokerLoad,
    Command,
    CreateStream,
    IsrMember,
    LeaderChange,
    Leadership,
    ReplicaAnswer,
    RewrappedKey,
)
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
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
"""Settings with the same name, type and unit in the message; absent means `None`."""
_COMMANDS: Final[Mapping[str, Callable[..., Command]]] = {
    kind.__name__: kind for kind in get_args(Command)
}
_PARTS: Final[Mapping[str, Callable[..., object]]] = {
    kind.__name__: kind
    for kind in (
        AccessRule,
        BrokerLoad,
        CreateStream,
        DataKey,
        IsrMember,
        LeaderChange,
        Leadership,
        ListenerAddress,
        MasterKey,
        ReplicaAnswer,
        RewrappedKey,
    )
}
"""Values of messages in commands. Like commands, they have the name and the field names of their
message, so that one pair of functions below handles all of them."""


class _Field(NamedTuple):
    """A field of a message: the names of its enum or message are empty for plain values."""

    name: str
    enum: str
    message: str
    is_repeated: bool


_FIELDS: Final[Mapping[str, tuple[_Field, ...]]] = {
    message.name: tuple(
        _Field(
            field.name,
            "" if field.enum_type is None else field.enum_type.name,
            "" if field.message_type is None else field.message_type.name,
            field.is_repeated,
        )
        for field in message.fields
    )
    for message in pb.DESCRIPTOR.message_types_by_name.values()
}
_FSYNC_POLICY: Final = "FsyncPolicy"
_NUMBERED: Final[Mapping[str, type[ResourceKind | NameMatch]]] = {
    kind.__name__: kind for kind in (ResourceKind, NameMatch)
}
"""Enums whose values are the numbers of the message."""
_OVERRIDES: Final = "StreamOverrides"
_ONEOF_NAMES: Final = {field.message: field.name for field in _FIELDS["Command"]}


def encode_command(command: Command) -> bytes:
    """Encode a command as a log entry.

    Raises:
        ValueError: A number is outside the range of its field (`metadata.proto`).
    """
    message = pb.Command()
    _fill(getattr(message, _ONEOF_NAMES[type(command).__name__]), command)
    return message.SerializeToString(deterministic=True)


def fill_rule(target: pb.AccessRule, rule: AccessRule) -> None:
    """Write an access rule into its message."""
    _fill(target, rule)


def rule_of(message: pb.AccessRule) -> AccessRule:
    """Convert an access rule from its message.

    Raises:
        CorruptionError: This version does not know its kind or match.
    """
    return AccessRule(**_values(message))  # type: ignore[arg-type] # by the names of fields


def _fill(target: Message, value: object) -> None:
    """Write every field of a value into its message, which is present even if all are empty."""
    target.SetInParent()
    for field in _FIELDS[target.DESCRIPTOR.name]:
        given = getattr(value, field.name)
        if isinstance(given, StreamOverrides):
            getattr(target, field.name).CopyFrom(overrides_message(given))
        elif field.enum in _NUMBERED:
            setattr(target, field.name, int(given))
        elif field.enum:
            is_policy = field.enum == _FSYNC_POLICY
            values = fsync_policy_value(given) if is_policy else unclean_mode_value(given)
            setattr(target, field.name, values)
        elif field.is_repeated and field.message:
            for item in given:
                _fill(getattr(target, field.name).add(), item)
        elif field.message:
            _fill(getattr(target, field.name), given)
        elif field.is_repeated:
            getattr(target, field.name).extend(given)
        else:
            setattr(target, field.name, given)


def overrides_message(overrides: StreamOverrides) -> pb.StreamOverrides:
    """Convert the settings of a stream to a message; `None` values are omitted."""
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
    """Convert the settings of a stream from their message, which must be present.

    Raises:
        CorruptionError: They are missing, or this version does not know an enum value.
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
    """Return the policy of an enum value; `None` for the default.

    Raises:
        CorruptionError: This version does not know the value.
    """
    if not 0 <= value < len(_FSYNC_POLICIES):
        raise CorruptionError(f"metadata: fsync policy {value} is not known")
    return _FSYNC_POLICIES[value]


def unclean_mode_of(value: int) -> UncleanMode | None:
    """Return the mode of an enum value; `None` for the default.

    Raises:
        CorruptionError: This version does not know the value.
    """
    if not 0 <= value < len(_UNCLEAN_MODES):
        raise CorruptionError(f"metadata: unclean mode {value} is not known")
    return _UNCLEAN_MODES[value]


def fsync_policy_value(policy: FsyncPolicy | None) -> pb.FsyncPolicy:
    """Return the enum value of a policy."""
    return _FSYNC_VALUES[policy]


def unclean_mode_value(mode: UncleanMode | None) -> pb.UncleanMode:
    """Return the enum value of a mode."""
    return _UNCLEAN_VALUES[mode]


def decode_command(data: bytes) -> Command:
    """Decode the command of a log entry.

    Raises:
        CorruptionError: The bytes are not a command of this version.
    """
    message = parse_canonical(pb.Command, data)
    name = message.WhichOneof("command")
    if name is None:
        raise CorruptionError("metadata: a command that this version does not know")
    found = getattr(message, name)
    return _COMMANDS[found.DESCRIPTOR.name](**_values(found))


def _values(message: Message) -> dict[str, object]:
    """Return the fields of a message as arguments of its value."""
    fields_of = _FIELDS[message.DESCRIPTOR.name]
    return {field.name: _value(message, field) for field in fields_of}


def _value(message: Message, field: _Field) -> object:
    given = getattr(message, field.name)
    if field.enum in _NUMBERED:
        try:
            return _NUMBERED[field.enum](given)
        except ValueError:
            raise CorruptionError(f"metadata: {field.name} {given} is not known") from None
    if field.enum:
        return _enum_member(field, given)
    if field.message == _OVERRIDES:
        assert isinstance(message, pb.CreateStream | pb.AlterStream)
        return overrides_of(message)
    if field.message:
        part = _PARTS[field.message]
        if field.is_repeated:
            return tuple(part(**_values(item)) for item in given)
        if not message.HasField(field.name):
            raise CorruptionError(f"metadata: {message.DESCRIPTOR.name} without {field.name}")
        return part(**_values(given))
    return tuple(given) if field.is_repeated else given


def _enum_member(field: _Field, value: int) -> FsyncPolicy | UncleanMode | None:
    """Return the policy or mode of an enum value; only a default may be unset."""
    member = fsync_policy_of(value) if field.enum == _FSYNC_POLICY else unclean_mode_of(value)
    if member is None and not field.name.endswith("_default"):
        raise CorruptionError(f"metadata: no {field.name}")
    return member


def parse_canonical(kind: type[_Message], data: bytes) -> _Message:
    """Parse a message whose only encoding is `data`.

    Raises:
        CorruptionError: The bytes are not such a message, or not in its only encoding, which is
            how fields of a newer version show.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise CorruptionError(f"metadata: {error}") from error
    # The parser keeps unknown fields and would write them again; without them the bytes differ.
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        raise CorruptionError(
            f"metadata: {kind.DESCRIPTOR.name} with fields that this version does not know"
        )
    return message


def require(holds: bool, fault: str) -> None:
    """Refuse a snapshot with a fault.

    Raises:
        CorruptionError: The fault is there.
    """
    if not holds:
        raise CorruptionError(f"metadata snapshot: {fault}")
