"""Program of a machine: the shipped code, which receives events and ports.

Attaching another kind of broker to the simulator means writing one `Program`: make the shipped
parts on `Ports`, pass the calls on. Everything else - machines, faults, traces - stays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.disk import SimFiles
from liftbridge_testkit.sim.ports import SimMessaging, SimTransport


class Shell(Protocol):
    """Clock, timer and observer of one process; implements `Clock`, `Timer` and `Observer`."""

    def now(self) -> Instant:
        """Return the monotonic time in nanoseconds of the machine."""
        ...

    def wall_ns(self) -> int:
        """Return Unix nanoseconds, as the machine believes."""
        ...

    def arm(self, deadline: Instant) -> None:
        """Port `Timer`."""
        ...

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Port `Observer`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything a process gets.

    Attributes:
        broker: Configured id.
        disk_number: Number of disks that this machine had before the present one.
        start_number: Number of processes that this machine has started, this one included.
        process: Clock, timer, observer.
        files: The disk.
        messaging: NATS for streams.
        transport: NATS between brokers.
        random: Chance of this process; also where its random ids come from.
        applied: Called after each change of the metadata, before the process acts on it.
        failed: Called when the process must end by itself: its disk failed.
        stopped: Called when an orderly stop is done.
    """

    broker: BrokerId
    disk_number: int
    start_number: int
    process: Shell
    files: SimFiles
    messaging: SimMessaging
    transport: SimTransport
    random: Random
    applied: Callable[[], None]
    failed: Callable[[str], None]
    stopped: Callable[[], None]

    def new_id(self) -> str:
        """Return a random id, as `secrets.token_hex(16)` gives a real process."""
        return f"{self.random.getrandbits(128):032x}"


class Program(Protocol):
    """A process from start to end. Calls never overlap; each runs to its end.

    Attributes:
        is_ready: Whether it takes part: registered, connected to NATS, serves.
    """

    is_ready: bool

    def start(self) -> None:
        """Recover the disk, make everything, begin. First call, once."""
        ...

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """A call by token ended."""
        ...

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """The armed deadline came."""
        ...

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Messages of one subscription."""
        ...

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """A message of another broker, or one that some broker sent to everyone."""
        ...

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """The link to NATS fell or is back."""
        ...

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Begin an orderly stop; `Ports.stopped` tells its end."""
        ...


MakeProgram = Callable[[Ports], Program]
