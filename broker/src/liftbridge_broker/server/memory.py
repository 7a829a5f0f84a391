"""A whole broker in memory, on the running event loop: for tests of Liftbridge users.

The broker is the shipped one (`node.assembly`, `api`), behind a gRPC port on loopback. Its files,
its NATS and its clocks are in memory: a power failure loses unsynced data, time stands still until
`advance`, and only the port is visible outside of this process. It starts no task and no thread;
everything runs in callbacks of the loop.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from liftbridge_broker.adapters.keys.ring import MasterKeyRing
from liftbridge_broker.adapters.memory.clock import VirtualClock
from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.adapters.memory.gates import Gates
from liftbridge_broker.adapters.memory.messaging import MemoryMessaging, Sent
from liftbridge_broker.api.grpc.connection import GrpcConnection
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.errors import LiftbridgeError, UnavailableError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.core import make_core
from liftbridge_broker.server.services import Api, make_api
from liftbridge_broker.server.session import Waiting, begin_session
from liftbridge_broker.server.wiring import server_tls

HOST: Final = "127.0.0.1"
DRAIN_SECONDS: Final = 1.0
TURNS_MAX: Final = 10_000
"""Limit of turns without progress of time; more turns mean a timer that spins."""

TRANSITION_COUNT_MAX: Final = 10_000
"""Maximum number of transitions remembered; beyond it, the older half is dropped."""

BASE_SETTINGS: Final[Mapping[str, str]] = {
    "cursors.stream.partitions": "1",
    "data.reserve.bytes": "0",
    "data.free.min.bytes": "0",
}
"""Differences from the shipped defaults: cursors as in `liftbridge dev`, no reserve file."""


class Transition(NamedTuple):
    """A transition, as the log of a broker reports it (docs/reference/logs.md)."""

    kind: str
    fields: Mapping[str, object]


@dataclass(slots=True, eq=False)
class _Life:
    """One run of the broker: from a start until it stops, is killed or fails.

    A callback after the end sees `is_over` and does nothing.

    Attributes:
        failure: Reason why the run ended unexpectedly: its disk failed, or it has a bug.
    """

    options: BrokerOptions
    files: MemoryFiles
    clock: VirtualClock
    transitions: list[Transition]
    is_over: bool = False
    is_paused: bool = False
    failure: Exception | None = None
    messaging: MemoryMessaging = field(init=False)
    _core: Core = field(init=False)
    _waiting: Waiting = field(default_factory=Waiting)
    _gates: Gates = field(init=False)
    _health: Health = field(default_factory=Health)
    _api: Api | None = None
    _server: asyncio.Server | None = None
    _turn: asyncio.Handle | None = None
    _armed: Instant | None = None

    def __post_init__(self) -> None:
        self._gates = Gates(self._on_failed)
        self.messaging = MemoryMessaging(on_published=self.wake)
        self._core = make_core(
            self.options,
            self.files,
            self.clock,
            self,
            self,
            on_failed=self._on_failed,
            on_change=self._waiting.wake,
            masters=MasterKeyRing(
                file=self.options.encryption.file,
                command="",  # it would run beside the virtual time
                environment=self.options.encryption.key,
                post=lambda act: act(),
                on_changed=self.wake,
                on_failed=lambda _reason: None,
            ),
        )

    # Ports.

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Port `Observer`."""
        self.transitions.append(Transition(kind, fields))
        if len(self.transitions) > TRANSITION_COUNT_MAX:
            del self.transitions[: -TRANSITION_COUNT_MAX // 2]

    def arm(self, deadline: Instant) -> None:
        """Port `Timer`."""
        self._armed = deadline
        if deadline <= self.clock.now():
            self.wake()

    def _on_failed(self, error: Exception) -> None:
        """Record a disk failure or a bug: nothing may run after this turn."""
        if self.failure is None:
            self.failure = error
            asyncio.get_running_loop().call_soon(self._end_failed)

    def _end_failed(self) -> None:
        if not self.is_over:
            self.transition("broker_stopped", {"is_clean": False, "reason": str(self.failure)})
            self.end()
            self.files.kill()

    # The pump.

    def wake(self) -> None:
        """Schedule a turn."""
        if self._turn is None and not self.is_over and not self.is_paused:
            self._turn = asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._turn = None
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - the pump: a bug ends the broker
            self._on_failed(error)

    def _take_turn(self) -> None:
        """Pass completed file calls, messages and the due timer to the node."""
        node, now, wall_ns = self._core.node, self.clock.now(), self.clock.wall_ns()
        for event in self.files.calls.pump():
            node.on_file_event(event, now, wall_ns)
        for subscription, arrivals, payloads in self.messaging.take_chunks():
            node.on_messages(subscription, arrivals, payloads, now, wall_ns)
        if self._armed is not None and self._armed <= now:
            self._armed = None
            node.on_timer(now, wall_ns)

    def _cancel_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    @property
    def is_running(self) -> bool:
        """Return whether it runs: it has not ended and is not paused."""
        return not self.is_over and not self.is_paused

    async def settle(self) -> None:
        """Run turns until none is scheduled."""
        for _ in range(TURNS_MAX):
            if self._turn is None or not self.is_running:
                return
            await asyncio.sleep(0)
        raise AssertionError("the broker does not become idle")

    async def advance(self, until: Instant) -> None:
        """Advance the clock; fire every deadline on the way."""
        await self.settle()
        turns, latest = 0, self.clock.now()
        while self.is_running and self._armed is not None and self._armed <= until:
            self.clock.move_to(self._armed)
            turns = turns + 1 if self.clock.now() == latest else 0
            assert turns <= TURNS_MAX, "a deadline is due again after its event"
            latest = self.clock.now()
            self.wake()
            await self.settle()

    # Start and end.

    async def start(self, host: str, port: int) -> None:
        """Recover the files, register, and admit clients.

        Raises:
            LiftbridgeError: The start was refused.
        """
        self.files.calls.on_submitted = self.wake
        options = self.options
        self._core.open_store()
        self._core.open(self.messaging, None, None)
        await self._waiting.run(begin_session(self._core, options, port))
        access = Enforcement(options.access, self, self.clock, has_operators=False)
        access.attach(self._core.node)
        api = self._api = make_api(
            options, self._core.node, self.clock, self, self._health, access=access.clients
        )
        access.look()
        api.server.turns.on_bug = self._on_failed
        self._server = await asyncio.get_running_loop().create_server(
            lambda: self._gates.new(GrpcConnection(api.server)),
            host,
            port,
            ssl=server_tls(options.tls, "tls").context if options.listen.has_tls else None,
            reuse_port=True,
        )
        api.metadata.port = port
        self._health.set_serving(is_serving=True)
        self.transition("broker_started", {"host": host, "port": port})

    def pause(self) -> None:
        """Stop processing until `resume`, as after SIGSTOP; the port accepts connections."""
        self.is_paused = True
        self._cancel_turn()
        self._gates.shut()

    def resume(self) -> None:
        """Continue with the input that arrived during the pause."""
        self.is_paused = False
        self._gates.open()
        self.wake()

    async def stop(self) -> None:
        """Stop in order and leave the clean marker.

        Raises:
            FilesError: The disk failed.
        """
        self._health.set_serving(is_serving=False)
        await self.settle()
        self._core.node.stop()
        await self.settle()
        if self._server is not None:
            self._server.close()
        if self._api is not None:
            await self._api.server.drain(DRAIN_SECONDS)
        await self.settle()
        try:
            if not self.is_over:
                self._core.close(self._core.epoch)
                self.transition("broker_stopped", {"is_clean": True})
        finally:
            self.end()
            self.files.kill()
            await self.emptied()

    def end(self) -> None:
        """Stop immediately; the files stay as they are."""
        self.is_over = True
        self.files.calls.on_submitted = _nobody
        self._cancel_turn()
        if self._server is not None:
            self._server.close()
        self._gates.is_shut = False
        self._gates.tear_off()

    async def emptied(self) -> None:
        """Wait, with a bound, until the port is free and every connection is closed.

        Raises:
            TimeoutError: The bound has passed.
        """
        await self._gates.emptied()
        if self._server is not None:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._server.wait_closed()


class MemoryBroker:
    """A broker that can be killed, paused and moved in time; see the module.

    Attributes:
        files: Disk of the broker, kept across runs.
        clock: Clocks of the broker.
        host: Address of the gRPC port.
        port: Number of the gRPC port, kept across restarts.
        transitions: Transitions of the broker, the latest last.
    """

    def __init__(self, settings: Mapping[str, str], wall_ns: int) -> None:
        """Create the broker, stopped.

        Args:
            settings: Settings of the broker by dotted key, as in a configuration file.
            wall_ns: Initial date, nanoseconds since the Unix epoch.
        """
        self._settings = settings
        self.files = MemoryFiles()
        self.clock = VirtualClock(wall_ns)
        self.host = HOST
        self.port = 0
        self.transitions: list[Transition] = []
        self._reserved: socket.socket | None = None
        self._life: _Life | None = None
        self._sent: list[Sent] = []

    @property
    def is_running(self) -> bool:
        """Return whether it was started and has not ended; it may be paused."""
        return self._life is not None and not self._life.is_over

    @property
    def failure(self) -> Exception | None:
        """Return the error of the latest run; `None` if it did not fail."""
        return None if self._life is None else self._life.failure

    @property
    def messaging(self) -> MemoryMessaging:
        """NATS of the latest run.

        Raises:
            UnavailableError: It was never started.
        """
        if self._life is None:
            raise UnavailableError("the broker was never started")
        return self._life.messaging

    async def start(self) -> None:
        """Start with the current files.

        Raises:
            LiftbridgeError: A setting is invalid, or the start was refused.
        """
        assert not self.is_running
        if self._reserved is None:
            self._reserve()
        listen = {"listen": f"{self.host}:{self.port}", "host": self.host, "port": str(self.port)}
        flags = {**BASE_SETTINGS, **self._settings, **listen}
        options = load(flags=flags, environ={}, path=None)
        life = self._life = _Life(options, self.files, self.clock, self.transitions)
        life.messaging.sent = self._sent
        try:
            await life.start(self.host, self.port)
        except BaseException:
            life.end()
            self.files.kill()
            raise

    def _reserve(self) -> None:
        """Reserve a port that stays reserved between runs."""
        reserved = self._reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((self.host, 0))
        self.port = reserved.getsockname()[1]

    async def stop(self) -> None:
        """Stop in order; a paused broker resumes first. No-op when it does not run.

        Raises:
            FilesError: The disk failed.
        """
        if self._life is not None and self.is_running:
            if self._life.is_paused:
                self._life.resume()
            await self._life.stop()

    async def kill(self, unsynced: Literal["lost", "kept"]) -> None:
        """Kill it immediately.

        Args:
            unsynced: Whether the machine fails with it (`lost`: the disk keeps what was synced) or
                only the process ends (`kept`: the disk has all that was written).
        """
        life = self._life
        if life is None or life.is_over:
            return
        life.end()
        if unsynced == "lost":
            self.files.crash(None)
        else:
            self.files.kill()
        await life.emptied()

    async def aclose(self) -> None:
        """Stop, release the port, and raise the bug that ended the broker, if any.

        Raises:
            Exception: The error that ended the broker, unless its disk failed.
        """
        try:
            # A test made the disk fail.
            with contextlib.suppress(LiftbridgeError):
                await self.stop()
            if self._life is not None:
                await self._life.emptied()
        finally:
            if self._reserved is not None:
                self._reserved.close()
                self._reserved = None
        failure = self.failure
        if failure is not None and not isinstance(failure, LiftbridgeError):
            raise failure

    def pause(self) -> None:
        """Stop processing until `resume`; no-op when it does not run."""
        if self._life is not None and self._life.is_running:
            self._life.pause()

    def resume(self) -> None:
        """Continue after `pause`; no-op otherwise."""
        if self._life is not None and self.is_running and self._life.is_paused:
            self._life.resume()

    async def settle(self) -> None:
        """Let the broker do everything that it can do without progress of time."""
        if self._life is not None:
            await self._life.settle()

    async def advance(self, duration_ns: int) -> None:
        """Advance the clock; a running broker handles every deadline on the way, in order."""
        assert duration_ns >= 0
        until = Instant(self.clock.now() + duration_ns)
        if self._life is not None and self._life.is_running:
            await self._life.advance(until)
        self.clock.move_to(until)

    async def publish_nats(self, message: Sent) -> None:
        """Publish on NATS as another client.

        A running broker stores the message before the return.
        """
        if self._life is not None and not self._life.is_over:
            self._life.messaging.publish([message])
            await self.settle()


def _nobody() -> None:
    """Do nothing: callback of the files while no broker runs."""
