"""Options of a node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MIB, SECOND_NS
from liftbridge_broker.node.scheduling.cluster_clock import CLOCK_LIMITS_DEFAULT, ClockLimits
from liftbridge_broker.node.scheduling.opening_queue import OPENINGS_PER_TURN
from liftbridge_broker.ports.master_keys import NO_MASTER_KEYS, MasterKeys
from liftbridge_broker.replication.publishers import PUBLISHERS_MAX_DEFAULT, TTL_NS_DEFAULT
from liftbridge_broker.wire.acks import AckPolicy
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring

UNANSWERED_BYTES_MAX_DEFAULT: Final = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOptions:
    """The activity stream, as this broker's settings have it.

    Attributes:
        is_enabled: Whether this broker turns it on.
        timeout_ns: Time after which an event that is not stored is reported.
        policy: When this broker, as leader of the stream, takes an event as stored: once it is
            committed (`ALL`), or once it is appended.
    """

    is_enabled: bool = False
    timeout_ns: int = 5 * SECOND_NS
    policy: AckPolicy = AckPolicy.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Configuration of a node.

    Attributes:
        broker: Id of this broker.
        namespace: Prefix of internal subjects.
        inbox: Subject of this process's ack inbox, unique.
        ack_secret: Random bytes of this process, at most 64, from which ack tokens are derived.
        keyring: Returns the keys by which brokers authenticate each other.
        masters: Master keys of encrypted streams.
        defaults: Settings of streams that do not override them.
        record_bytes_max: Largest record.
        publishers_max: Idempotent publishers remembered for each partition.
        publisher_ttl_ns: Idle time after which a publisher is forgotten.
        unanswered_bytes_max: Bytes of stored runs with pending acks above which the broker stops
            reading from publishing calls.
        consumer_timeout_ns: Silence after which a member leaves its consumer group.
        coordinator_timeout_ns: Time within which more than half of the members of a group must
            report their coordinator to replace it.
        clock: Limits beyond which a clock counts as wrong.
        openings_per_turn: New replicas that one turn opens.
        activity: The activity stream.
    """

    broker: BrokerId
    namespace: str
    inbox: str
    ack_secret: bytes
    keyring: Callable[[], Keyring] = lambda: OPEN_KEYRING
    masters: MasterKeys = NO_MASTER_KEYS
    defaults: StreamOptions
    record_bytes_max: int
    publishers_max: int = PUBLISHERS_MAX_DEFAULT
    publisher_ttl_ns: int = TTL_NS_DEFAULT
    unanswered_bytes_max: int = UNANSWERED_BYTES_MAX_DEFAULT
    consumer_timeout_ns: int = 15 * SECOND_NS
    coordinator_timeout_ns: int = 15 * SECOND_NS
    clock: ClockLimits = CLOCK_LIMITS_DEFAULT
    openings_per_turn: int = OPENINGS_PER_TURN
    activity: ActivityOptions = ActivityOptions()
