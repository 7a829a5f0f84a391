"""One machine: power, disk, clocks, and at most one broker process.

A process receives each event in a separate *turn*. A paused or stalled process gets its turns late
and in order; an ended process gets none. The power may fail in the middle of a turn, at any write.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.memory_files import PowerCutError
from liftbridge_testkit.sim.clock import MachineClock
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.disk import SimFiles
from liftbridge_testkit.sim.network import Endpoint, Network
from liftbridge_testkit.sim.ports import SimMessaging, SimTransport
from liftbridge_testkit.sim.program import MakeProgram, Ports, Program
from liftbridge_testkit.sim.scheduler import Scheduler
from liftbridge_testkit.sim.trace import Detail, Trace

SERVER_DELAY_NS = 300_000
WAITING_MAX = 50_000
"""Maximum pending turns of a paused process before NATS drops it as a slow consumer."""


class MachineHost(Protocol):
    """Port of a machine to its world."""

    scheduler: Scheduler
    network: Network
    trace: Trace
    coverage: Coverage

    def touch(self, machine: "Machine") -> None:
        """Handle the end of a turn of a process."""
        ...

    def on_transition(self, machine: "Machine", kind: str, fields: Mapping[str, object]) -> None:
        """Handle a transition that a process reported."""
        ...

    def on_applied(self, machine: "Machine") -> None:
        """Handle a metadata change that a process applied, before the process acts on it."""
        ...

    def on_append(self, machine: "Machine", path: str, data: bytes) -> None:
        """Handle bytes that a process appended to a file."""
        ...

    def on_process_end(self, machine: "Machine", reason: str, lost_bytes: int) -> None:
        """Handle the end of a process; `lost_bytes` of its disk did not survive."""
        ...


@dataclass(slots=True, eq=False)
class Machine:
    """A machine of the world.

    Attributes:
        name: Name of the machine and its broker.
        make: Makes the process.
        program: The process, `None` when none runs.
        incarnation: Increases whenever a process starts or ends.
        start_count: Processes started so far.
        started_at: True time of the last start.
        disk_number: Number of disks before the present one.
        disk_free_at: True time at which its disk completes all submitted calls.
        is_paused: Whether the process gets no turns (SIGSTOP).
        is_stopping: Whether it was asked for an orderly stop.
        cut_keep: Data that survives a power cut in the middle of a turn.
        ended: Callbacks for the end of the process, each called once; by caller.
    """

    name: BrokerId
    world: MachineHost
    random: Random
    make: MakeProgram
    clock: MachineClock = field(default_factory=MachineClock)
    files: SimFiles = field(init=False)
    program: Program | None = None
    endpoint: Endpoint | None = None
    transport: SimTransport | None = None
    incarnation: int = 0
    start_count: int = 0
    started_at: int = -1
    disk_number: int = 0
    disk_free_at: int = 0
    is_paused: bool = False
    is_stopping: bool = False
    cut_keep: Random | None = None
    ended: dict[object, Callable[[], None]] = field(default_factory=dict)
    _armed: int = 0
    _stalled_until: int = 0
    _stopped_incarnation: int = -1
    _waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.files = SimFiles(self.random)
        self.files.on_busy = self._file_submitted
        self.files.on_blocked = self.stall
        self.files.on_append = partial(self.world.on_append, self)

    # -- clock, timer, observer of the process ------------------------------------------------

    def now(self) -> Instant:
        """Implement `Clock.now`."""
        return self.clock.local(self.world.scheduler.now)

    def wall_ns(self) -> int:
        """Implement `Clock.wall_ns`."""
        return self.clock.wall(self.world.scheduler.now)

    def arm(self, deadline: Instant) -> None:
        """Implement `Timer.arm`: one timer; the newest deadline replaces the one before."""
        self._armed += 1
        when = self.clock.true(deadline)
        self.world.scheduler.at(when, self._timer_fired, self.incarnation, self._armed)

    def _timer_fired(self, incarnation: int, armed: int) -> None:
        if incarnation == self.incarnation and armed == self._armed:
            self.turn(incarnation, self._on_timer, armed)

    def _on_timer(self, armed: int) -> None:
        # Armed again while the turn waited: the real process would have cancelled this one.
        if armed == self._armed and self.program is not None:
            self.program.on_timer(self.now(), self.wall_ns())

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Implement `Observer.transition`."""
        details: list[Detail] = [f"{name}={value}" for name, value in fields.items()]
        self.note(f"* {kind}", *details)
        self.world.coverage.count("node", kind)
        self.world.on_transition(self, kind, fields)

    def note(self, what: str, *details: Detail) -> None:
        """Add a line to the trace."""
        self.world.trace.note(self.world.scheduler.now, self.name, what, *details)

    # -- receiver of the network --------------------------------------------------------------

    def on_delivery(self, subscription: SubscriptionId, arrival: Arrival, payload: bytes) -> None:
        """Handle a message of a stream or inbox."""
        self.turn(self.incarnation, self._on_delivery, subscription, arrival, payload)

    def _on_delivery(self, subscription: SubscriptionId, arrival: Arrival, payload: bytes) -> None:
        assert self.program is not None
        self.program.on_messages(subscription, [arrival], [payload], self.now(), self.wall_ns())

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Handle a message of a broker."""
        self.turn(self.incarnation, self._on_peer, channel, payload)

    def _on_peer(self, channel: Channel, payload: bytes) -> None:
        assert self.program is not None
        self.program.on_peer(channel, payload, self.now(), self.wall_ns())

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Handle the answer of NATS to a probe of a broker."""
        self.turn(self.incarnation, self._on_no_responders, broker, channel, sent_at)

    def _on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        assert self.program is not None
        self.program.on_no_responders(broker, channel, sent_at)

    def on_link(self, *, connected: bool) -> None:
        """Handle the loss or return of the link to NATS."""
        self.turn(self.incarnation, self._on_link, connected)

    def _on_link(self, connected: bool) -> None:
        assert self.program is not None
        self.program.on_link(connected=connected, now=self.now(), wall_ns=self.wall_ns())

    # -- the disk -----------------------------------------------------------------------------

    def _file_submitted(self, duration_ns: int) -> None:
        """Delay a call by token after earlier ones, as one thread executes them."""
        now = self.world.scheduler.now
        self.disk_free_at = max(now, self.disk_free_at) + duration_ns
        self.world.scheduler.at(self.disk_free_at, self._disk_done, self.incarnation)

    def _disk_done(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        try:
            events = self.files.calls.pump(1)
        except PowerCutError:
            self._power_failed()
            return
        for event in events:
            self.turn(incarnation, self._on_file_event, event)

    def _on_file_event(self, event: object) -> None:
        assert self.program is not None
        self.program.on_file_event(event, self.now(), self.wall_ns())  # type: ignore[arg-type]  # as pumped

    # -- turns --------------------------------------------------------------------------------

    def turn(self, incarnation: int, act: Callable[..., None], *arguments: object) -> None:
        """Run an action in a turn of this process, now or when it resumes."""
        is_over = self._stopped_incarnation == incarnation
        if incarnation != self.incarnation or self.program is None or is_over:
            return
        if self.is_held_up or self._waiting:
            self._wait(act, arguments)
        else:
            self._run(act, arguments)

    def _wait(self, act: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._waiting and not self.is_paused:
            self.world.scheduler.at(self._stalled_until, self._get_on, self.incarnation)
        self._waiting.append((act, arguments))
        if len(self._waiting) == WAITING_MAX:
            self.world.coverage.rare("slow consumer")
            self.world.network.unlink(self.name)
            self.world.scheduler.after(SECOND_NS, self.world.network.relink, self.name)

    def _get_on(self, incarnation: int) -> None:
        """Run the pending turns, in order."""
        while self._waiting and incarnation == self.incarnation:
            if self._stopped_incarnation == incarnation:
                self._waiting.clear()
                return
            if self.is_paused:
                return
            if self.world.scheduler.now < self._stalled_until:
                self.world.scheduler.at(self._stalled_until, self._get_on, incarnation)
                return
            self._run(*self._waiting.popleft())

    def _run(self, act: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            act(*arguments)
        except PowerCutError:
            self._power_failed()
        except FilesError as error:
            # The pump ends a process after an unhandled error.
            self.world.coverage.count("world", "unhandled disk error")
            self._fail(self.incarnation, f"unhandled: {error.text}")
        self.world.touch(self)

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Return whether a process runs, paused or not."""
        return self.program is not None

    @property
    def is_held_up(self) -> bool:
        """Return whether its process gets no turns now: it is paused, or stalls."""
        return self.is_paused or self.world.scheduler.now < self._stalled_until

    def start(self) -> None:
        """Start a process on the contents of the disk; no-op when one runs."""
        if self.program is not None:
            return
        self.incarnation += 1
        self.start_count += 1
        self.started_at = self.world.scheduler.now
        self._armed += 1
        self.disk_free_at = 0
        self.is_stopping = False
        self.note("start", self.start_count)
        network = self.world.network
        self.endpoint = network.add(self.name, self, takes_peers=True)
        self.transport = SimTransport(self.endpoint, network)
        incarnation = self.incarnation
        messaging = SimMessaging(
            self.endpoint, network, SERVER_DELAY_NS, lambda done: self.turn(incarnation, done)
        )
        ports = Ports(
            broker=self.name,
            disk_number=self.disk_number,
            start_number=self.start_count,
            process=self,
            files=self.files,
            messaging=messaging,
            transport=self.transport,
            random=Random(self.random.getrandbits(64)),
            applied=lambda: self.world.on_applied(self),
            failed=lambda reason: self._fail(incarnation, reason),
            stopped=lambda: self._stopped(incarnation),
        )
        self.program = self.make(ports)
        self._run(self.program.start, ())

    def _end(self, reason: str, lost_bytes: int = 0) -> None:
        self.note("end", reason, lost_bytes)
        self.program = None
        self.incarnation += 1
        self.is_paused = False
        self._stalled_until = 0
        self._waiting.clear()
        assert self.endpoint is not None
        self.world.network.remove(self.endpoint)
        self.endpoint = None
        ended, self.ended = self.ended, {}
        for tell in ended.values():
            tell()
        self.world.on_process_end(self, reason, lost_bytes)

    def _fail(self, incarnation: int, reason: str) -> None:
        """End the process by itself, at the end of its turn."""
        self.note("failed", reason)
        self.world.scheduler.at(self.world.scheduler.now, self._failed, incarnation)

    def _failed(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        # The machine continues: the next start reads from memory what a failed sync did not write.
        self.files.kill()
        self._end("failed")

    def _stopped(self, incarnation: int) -> None:
        # Its files are closed: it drops later events.
        self._stopped_incarnation = incarnation
        self.world.scheduler.at(self.world.scheduler.now, self._exit, incarnation)

    def _exit(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self.files.kill()
            self._end("stopped")

    def kill(self) -> None:
        """Kill the process (SIGKILL); its writes survive."""
        if self.program is not None:
            self.files.kill()
            self._end("killed")

    def crash(self, keep: Random | None) -> None:
        """Cut the power; `keep` chooses the unsynced data that survive, `None` keeps none."""
        was_running = self.program is not None
        lost_bytes = self.files.lose_power(keep)
        self.clock.reboot(self.random.randrange(SECOND_NS), self.world.scheduler.now)
        if was_running:
            self._end("crashed", lost_bytes)

    def crash_within(self, points: int, keep: Random | None) -> None:
        """Cut the power at the `points`-th write from now, in the middle of its turn."""
        self.cut_keep = keep
        self.files.power.cut_at = self.files.power.points + points

    def _power_failed(self) -> None:
        self.world.coverage.rare("power cut within a turn")
        self.crash(self.cut_keep)

    def pause(self) -> None:
        """Pause the process (SIGSTOP): it gets no turns."""
        if self.program is not None:
            self.is_paused = True
            self.note("pause")

    def resume(self) -> None:
        """Resume the process; it catches up with pending turns."""
        if self.is_paused:
            self.is_paused = False
            self.note("resume", len(self._waiting))
            self.world.scheduler.at(self.world.scheduler.now, self._get_on, self.incarnation)

    def stall(self, duration_ns: int) -> None:
        """Delay the process for a time, as a long garbage collection or a blocking call does."""
        until = self.world.scheduler.now + duration_ns
        self._stalled_until = max(self._stalled_until, until)

    def stop(self) -> None:
        """Request an orderly stop of the process (SIGTERM)."""
        if self.program is not None and not self.is_stopping:
            self.is_stopping = True
            self.note("stop")
            self.turn(self.incarnation, self._on_stop)

    def _on_stop(self) -> None:
        assert self.program is not None
        self.program.stop(self.now(), self.wall_ns())

    def wipe(self) -> None:
        """Replace the disk by an empty one; the process is killed."""
        self.kill()
        self.files.wipe()
        self.disk_number += 1
        self.note("wiped")
