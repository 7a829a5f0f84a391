"""Program of a machine: the real code, which receives events and ports.

To attach another kind of broker to the simulator, write one `Program`: create the real parts on
`Ports` and pass the calls on. Everything else - machines, faults, traces - stays.
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
        """Return Unix nanoseconds by the machine's clock."""
        ...

    def arm(self, deadline: Instant) -> None:
        """Implement `Timer.arm`."""
        ...

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Implement `Observer.transition`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of a process.

    Attributes:
        broker: Configured id.
        disk_number: Number of disks that this machine had before the present one.
        start_number: Number of processes that this machine has started, this one included.
        process: Clock, timer, observer.
        files: The disk.
        messaging: NATS for streams.
        transport: NATS between brokers.
        random: Random generator of this process, also for its random ids.
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
        """Return a random id, like `secrets.token_hex(16)` in a real process."""
        return f"{self.random.getrandbits(128):032x}"


class Program(Protocol):
    """A process from start to end. Calls never overlap; each runs to its end.

    Attributes:
        is_ready: Whether it is registered, connected to NATS, and serves.
    """

    is_ready: bool

    def start(self) -> None:
        """Recover the disk, create all parts and begin. First call, once."""
        ...

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a call by token."""
        ...

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle the armed deadline."""
        ...

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Handle messages of one subscription."""
        ...

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Handle a message that another broker sent to this one, or to all."""
        ...

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Handle the answer of NATS to a probe of a broker."""
        ...

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """Handle the loss or return of the link to NATS."""
        ...

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Begin an orderly stop; call `Ports.stopped` at its end."""
        ...


MakeProgram = Callable[[Ports], Program]
