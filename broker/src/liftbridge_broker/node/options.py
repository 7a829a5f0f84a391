"""Options of a node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.scheduling.cluster_clock import CLOCK_LIMITS_DEFAULT, ClockLimits
from liftbridge_broker.node.scheduling.opening_queue import OPENINGS_PER_TURN
from liftbridge_broker.ports.master_keys import NO_MASTER_KEYS, MasterKeys
from liftbridge_broker.replication.publishers import PUBLISHERS_MAX_DEFAULT, TTL_NS_DEFAULT
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring

UNANSWERED_BYTES_MAX_DEFAULT: Final = 64 * MIB


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
        clock: Limits beyond which a clock counts as wrong.
        openings_per_turn: New replicas that one turn opens.
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
    clock: ClockLimits = CLOCK_LIMITS_DEFAULT
    openings_per_turn: int = OPENINGS_PER_TURN
