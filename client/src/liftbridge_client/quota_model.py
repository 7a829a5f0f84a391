"""Quotas, as the client library shows them."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_proto.ext.v1 import quotas_pb2 as pb

QuotaKind = Literal["principal", "stream"]
"""What a quota limits."""

KINDS: Final[tuple[QuotaKind, ...]] = get_args(QuotaKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a principal or a stream; 0 is none. Rates hold for each broker by itself.

    Attributes:
        publish_bytes: Bytes of publishing requests in a second, with keys, values and headers.
        publish_messages: Messages published in a second.
        read_bytes: Bytes sent to readers in a second.
        read_messages: Messages sent to readers in a second.
        subscriptions: Open subscriptions and bulk reads at a broker; of a principal only.
        streams: Streams that exist and were created by the principal; of a principal only.
        stored_bytes: Bytes of each partition, beyond which it takes no messages; of a stream only.
    """

    publish_bytes: int = 0
    publish_messages: int = 0
    read_bytes: int = 0
    read_messages: int = 0
    subscriptions: int = 0
    streams: int = 0
    stored_bytes: int = 0


class Quota(NamedTuple):
    """A quota; see `Limits`.

    Attributes:
        kind: What it limits.
        name: Name of the principal or stream; `*` for each principal without a quota of its own.
        publish_bytes: See `Limits`, as the others.
    """

    kind: QuotaKind
    name: str
    publish_bytes: int
    publish_messages: int
    read_bytes: int
    read_messages: int
    subscriptions: int
    streams: int
    stored_bytes: int


class QuotaUse(NamedTuple):
    """What the principal of a caller may use, and what it uses at the broker that answers.

    Attributes:
        limits: Its limits.
        publish_delay_ms: Time for which publishing is slowed down now, milliseconds.
        read_delay_ms: Time for which reading is slowed down now, milliseconds.
        subscriptions: Its open subscriptions and bulk reads.
    """

    limits: Limits
    publish_delay_ms: int
    read_delay_ms: int
    subscriptions: int


_VALUES: Final = {
    "principal": pb.QUOTA_KIND_PRINCIPAL,
    "stream": pb.QUOTA_KIND_STREAM,
}


def kind_value(kind: QuotaKind) -> "pb.QuotaKind":
    """Return the enum value of a kind."""
    return _VALUES[kind]


def limits_of(limits: Limits) -> pb.Limits:
    """Convert limits to their message."""
    return pb.Limits(**{name: getattr(limits, name) for name in _LIMITS})


def quota_of(found: pb.Quota) -> Quota:
    """Convert the API message of a quota."""
    kind: QuotaKind = "stream" if found.kind == pb.QUOTA_KIND_STREAM else "principal"
    return Quota(kind, found.name, *(getattr(found.limits, name) for name in _LIMITS))


def use_of(found: data_pb2.QuotaUse) -> QuotaUse:
    """Convert the API message of a caller's quota."""
    limits = Limits(**{name: getattr(found.limits, name) for name in _LIMITS})
    return QuotaUse(limits, found.publish_delay_ms, found.read_delay_ms, found.subscriptions)


_LIMITS: Final = tuple(Limits.__dataclass_fields__)
