"""Everything that a pass over a stream can do, as values: a closed set."""

from dataclasses import dataclass

from liftbridge_operator.streams.settings import Value


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Have the deletion of the resource wait for this operator."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the resource go, after the mark, when `stream_id` says that it is on a stream."""

    stream_id: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    """Create the stream and mark it.

    Attributes:
        is_again: Whether a stream that the resource managed is gone.
    """

    name: str
    subject: str
    group: str
    partitions: int
    factor: int
    settings: dict[str, Value]
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark a stream as managed by the resource, if it is still managed by whom was seen.

    Attributes:
        is_adopted: Whether somebody else had created it.
    """

    stream_id: int
    expected: str
    is_adopted: bool = True


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the mark of the resource from a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Alter:
    """Put settings and a number of replicas into force.

    Attributes:
        settings: Those that differ.
        factor: 0 to leave it.
        fields: Paths of what changes, for people.
        is_drift: Whether somebody else had changed them.
    """

    settings: dict[str, Value]
    factor: int
    fields: tuple[str, ...]
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class SetReadonly:
    """Refuse publishes, or accept them again."""

    is_readonly: bool
    is_drift: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the stream with its messages, and let the resource go."""

    stream_id: int


OfResource = AddFinalizer | RemoveFinalizer
OfStream = Create | Mark | Forget | Alter | SetReadonly | Delete
Action = OfResource | OfStream
