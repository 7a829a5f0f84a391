"""Actions of a pass over a stream, as values: a closed set."""

from dataclasses import dataclass

from liftbridge_operator.streams.settings import Value


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add the finalizer, so that the deletion of the resource waits for this operator."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the finalizer, after the mark on the stream `stream_id`, unless that is 0."""

    stream_id: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    """Create the stream and mark it.

    Attributes:
        is_again: Whether the stream that the resource managed was lost.
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
    """Mark a stream as managed by the resource, if its owner is still the expected one.

    Attributes:
        is_adopted: Whether the resource adopts a stream that it did not create.
    """

    stream_id: int
    expected: str
    is_adopted: bool = True


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the mark of the resource from a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Alter:
    """Change settings and the replication factor.

    Attributes:
        settings: Those that differ.
        factor: Replication factor; 0 to leave it.
        fields: Paths of changed fields, for messages.
        is_drift: Whether this reverts drift.
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
    """Delete the stream with its messages, then remove the finalizer."""

    stream_id: int


OfResource = AddFinalizer | RemoveFinalizer
OfStream = Create | Mark | Forget | Alter | SetReadonly | Delete
Action = OfResource | OfStream
