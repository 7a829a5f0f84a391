"""One broker process: adapters wired to the node, the pump and one timer, start and shutdown.

A start locks and recovers the data directory, connects to NATS, registers the broker, and only then
admits clients. A shutdown takes the reverse order, with a deadline for each step, and ends with the
clean marker.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata as packages
from pathlib import Path
from typing import Final

from liftbridge_broker.adapters.clock import LoopTimer, SystemClock
from liftbridge_broker.adapters.disk.compactor import CompactorProcess
from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.adapters.keys.ring import MasterKeyRing
from liftbridge_broker.adapters.observe.catalogue import Catalogue
from liftbridge_broker.adapters.observe.http import ObserveServer
from liftbridge_broker.adapters.observe.logs import set_level
from liftbridge_broker.adapters.observe.loop import LoopMonitor
from liftbridge_broker.adapters.observe.observer import StructlogObserver
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.operators.admin_context import NatsFacts, Reloaded
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.config.reload import reloadable_diff, reloaded
from liftbridge_broker.errors import (
    ConfigError,
    FailedPreconditionError,
    LiftbridgeError,
    UnavailableError,
)
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.node.assembly.session import hand_over, has_company
from liftbridge_broker.node.metadata.bootstrap import Beginning
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.admin_port import AdminPort
from liftbridge_broker.server.client_ports import ClientPorts
from liftbridge_broker.server.core import make_core, scrub
from liftbridge_broker.server.identities import Identities
from liftbridge_broker.server.keys import (
    log_keys,
    open_masters,
    read_keyring,
    renew_keys,
    renew_masters,
)
from liftbridge_broker.server.limits import raise_open_files, require_open_files
from liftbridge_broker.server.metrics import BrokerMetrics, StartingMetrics
from liftbridge_broker.server.nats_links import NatsLinks
from liftbridge_broker.server.readiness import Readiness
from liftbridge_broker.server.services import Api, make_api
from liftbridge_broker.server.session import Waiting, begin_session
from liftbridge_broker.server.shutdown import Steps
from liftbridge_broker.server.watching import LOOK_SECONDS, FileWatch
from liftbridge_broker.server.wiring import store_options

PACKAGE: Final = "liftbridge-broker"
CLOSE_SECONDS: Final = 0.5
TRANSFER_SECONDS: Final = 2.0
"""Time for the hand-over to end after its own deadline."""
GC_THRESHOLDS: Final = (5_000, 8, 100)
"""Passes of the garbage collector: over 5,000 new objects, about 2 ms; over the survivors of eight
such passes, about 15 ms; over all objects, rarely."""


@dataclass(slots=True, eq=False)
class Broker:
    """A broker in this process, on the running event loop.

    Attributes:
        options: Options of the broker.
        stop_reason: Name of the signal that stopped it.
    """

    options: BrokerOptions
    observer: StructlogObserver
    catalogue: Catalogue
    reload_options: Callable[[], BrokerOptions]
    stop_reason: str = ""
    _clock: SystemClock = field(default_factory=SystemClock)
    _files: DiskFiles = field(init=False)
    _compactor: CompactorProcess = field(init=False)
    _masters: MasterKeyRing = field(init=False)
    _core: Core = field(init=False)
    _waiting: Waiting = field(default_factory=Waiting)
    _links: NatsLinks = field(init=False)
    _readiness: Readiness = field(init=False)
    _api: Api | None = None
    _access: Enforcement = field(init=False)
    _admin: AdminPort | None = None
    _restart_needed: tuple[str, ...] = ()
    _ports: ClientPorts = field(init=False)
    _identities: Identities = field(init=False)
    _observe: ObserveServer | None = None
    _monitor: LoopMonitor = field(default_factory=LoopMonitor)
    _timer: LoopTimer = field(init=False)
    _failed: asyncio.Future[LiftbridgeError] = field(init=False)
    _is_drained: bool = False
    _started_ns: int = 0

    @property
    def node(self) -> Node:
        """The broker without I/O, once the data directory is open."""
        return self._core.node

    # -- the pump -----------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self.node.on_timer(self._clock.now(), self._clock.wall_ns())

    def _on_file_events(self, events: Sequence[FileEvent]) -> None:
        now, wall_ns = self._clock.now(), self._clock.wall_ns()
        for event in events:
            self.node.on_file_event(event, now, wall_ns)

    def fail(self, error: LiftbridgeError) -> None:
        """Stop the process after an error that it must not continue from.

        Such an error is a bug, or that the metadata or the data directory cannot be written.
        """
        if not self._failed.done():
            self._failed.set_result(error)

    # -- start --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event, reload: asyncio.Event) -> None:
        """Start, serve until `stop` is set or the disk fails, and shut down.

        Args:
            stop: Event that stops the broker in order, even during the start.
            hurry: Event that cuts the shutdown short.
            reload: Event that requests a reload of the configuration.

        Raises:
            LiftbridgeError: The start was refused, or the data directory failed.
        """
        self._failed = asyncio.get_running_loop().create_future()
        self._started_ns = self._clock.wall_ns()
        self.observer.transition(
            "broker_starting",
            {
                "version": packages.version(PACKAGE),
                "server_id": self.options.clustering.server_id,
                "data_dir": self.options.data.directory,
                "fingerprint": self.options.fingerprint(),
            },
        )
        self.observer.transition("open_files_limited", raise_open_files()._asdict())
        for notice in self.options.notices:
            self.observer.transition("setting_noticed", {"text": notice})
        self._identities = Identities(
            self.options.identity, lambda: self.node.state.tokens, self._clock, self.observer
        )
        self._open_data()
        try:
            async with asyncio.TaskGroup() as tasks:
                if await self._start(tasks, stop):
                    scrubbing = tasks.create_task(scrub(self._core))
                    await self._serve(stop, reload)
                    scrubbing.cancel()
                await self._drain(hurry)
        finally:
            self._identities.close()
            self._close_data()

    async def _start(self, tasks: asyncio.TaskGroup, stop: asyncio.Event) -> bool:
        """Join NATS and the cluster, admit clients; return false if stopped or failed first."""

        async def begin() -> None:
            core, links, ports = self._core, self._links, self._ports
            if self.options.metrics.is_enabled:
                await self._open_metrics()
            admin = await self._open_admin()
            await links.join(tasks)
            if not core.is_open:
                core.open(links.messaging, links.transport, await self._find_cluster(admin))
                self._access.attach(core.node)
                admin.begin()
            server = await self._bind()
            steps = begin_session(core, self.options, ports.port, ports.advertised)
            await self._waiting.run(steps)
            self._let_in(server, admin)

        loop = asyncio.get_running_loop()
        starting, stopping = loop.create_task(begin()), loop.create_task(stop.wait())
        try:
            await asyncio.wait(
                (starting, stopping, self._failed), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait((starting,))
        if starting.cancelled():
            return False
        starting.result()
        return True

    def _open_data(self) -> None:
        """Lock and recover the data directory."""
        directory = Path(self.options.data.directory)
        post = asyncio.get_running_loop().call_soon_threadsafe
        self._files = DiskFiles(directory, post=post, deliver=self._on_file_events)
        self._compactor = CompactorProcess(directory, post=post, deliver=self._on_file_events)
        self._timer = LoopTimer(self._on_timer)
        has_operators = self.options.admin.tls.is_enabled
        self._access = Enforcement(
            self.options.access, self.observer, self._clock, has_operators=has_operators
        )
        self._masters = open_masters(
            self.options.encryption, self.observer, post=post, on_changed=self._on_master_keys
        )
        self._core = make_core(
            self.options,
            self._files,
            self._clock,
            self._timer,
            self.observer,
            on_failed=self.fail,
            on_change=self._waiting.wake,
            runner=self._compactor.submit,
            keys=read_keyring(self.options.clustering.secret_file),
            masters=self._masters,
        )
        self._masters.begin()
        log_keys(self._core.keys, self.observer)
        self._ports = ClientPorts(self.options, self._core, self._waiting, self.observer)
        self._core.open_store()
        require_open_files(len(self._core.store.unopened()))
        links = self._links = NatsLinks(self.options, self._core, self.observer)
        self._readiness = Readiness(self._core, links)
        links.on_change = self._readiness.look
        if self._core.has_metadata:
            self._core.open(links.messaging, links.transport, None)
            self._access.attach(self.node)

    async def _open_admin(self) -> AdminPort:
        """Open the operator port: an operator may need it to found the cluster."""
        quiet = self._links.messaging.quiet
        admin = self._admin = AdminPort(
            self.options,
            self._core,
            self._clock,
            self.observer,
            are_peers_connected=lambda: self._links.transport.is_connected,
            nats=lambda: NatsFacts(quiet.server, quiet.server_cluster),
            restart_needed=lambda: self._restart_needed,
            settings=lambda: self.options.effective,
            reload=self._reload,
            client_tls=lambda: self._ports.tls,
            identities=self._identities,
            access=self._access,
        )
        await admin.open()
        return admin

    async def _find_cluster(self, admin: AdminPort) -> Beginning:
        """Find a cluster for an empty directory, or found one."""
        core = self._core
        search = core.begin_search(self._links.transport, self._waiting.wake)
        admin.context.found = _refuse_retired if core.was_retired else search.found
        try:
            beginning = await self._waiting.find(search, self._clock)
        finally:
            admin.context.found = None
            core.end_search()
        voters = [peer.broker for peer in beginning.configuration.voters]
        role, is_founded = search.role.value, bool(beginning.cluster_id)
        fields = {"role": role, "is_founded": is_founded, "voters": voters}
        self.observer.transition("cluster_found", fields)
        return beginning

    async def _bind(self) -> GrpcServer:
        """Bind the client ports without admitting clients; registration needs the addresses."""
        options = self.options
        api = self._api = make_api(
            options,
            self.node,
            self._clock,
            self.observer,
            self._readiness.health,
            access=self._access.clients,
            authenticator=self._identities.clients,
        )
        await self._ports.bind(api.server)
        api.metadata.port = options.listen.advertised_port or self._ports.port
        if self._observe is not None:
            self._observe.set_source(self._metrics(api))
        return api.server

    def _let_in(self, server: GrpcServer, admin: AdminPort) -> None:
        """Admit clients."""
        self._access.look()
        self._ports.let_in(server)
        self._readiness.begin()
        self.observer.transition(
            "broker_started",
            {
                "host": self.options.listen.advertised_host,
                "port": self._ports.port,
                "metrics_port": 0 if self._observe is None else self._observe.port,
                "admin_port": admin.port,
                "duration_ms": (self._clock.wall_ns() - self._started_ns) // MILLISECOND_NS,
            },
        )

    async def _open_metrics(self) -> None:
        """Serve health immediately, and metrics once the node exists."""
        self._monitor.start()
        metrics = self.options.metrics
        self._observe = ObserveServer(
            source=StartingMetrics(packages.version(PACKAGE), self._started_ns),
            not_ready_reasons=self._readiness.reasons,
            catalogue=self.catalogue,
            monitor=self._monitor,
            samplers=(self.observer.samples,),
            streams_max=metrics.streams_max,
        )
        try:
            await self._observe.start(metrics.host, metrics.port)
        except ConfigError as error:
            if metrics.is_given:
                raise
            # Several brokers on one machine may start with only the original's settings.
            self.observer.transition("metrics_not_served", {"reason": error.text})

    def _metrics(self, api: Api) -> BrokerMetrics:
        return BrokerMetrics(
            node=self.node,
            grpc=api.server,
            context=api.context,
            nats=self._links.messaging,
            transport=self._links.transport,
            core=self._core,
            files=self._files,
            clock=self._clock,
            version=packages.version(PACKAGE),
            started_ns=self._started_ns,
            is_ready=lambda: not self._readiness.reasons(),
            tls=self._ports.tls,
            identities=self._identities,
            access=self._access,
        )

    # -- serve and stop -----------------------------------------------------------------------

    async def _serve(self, stop: asyncio.Event, reload: asyncio.Event) -> None:
        """Wait for the stop; reload the configuration and certificates on request or change."""
        gc.collect()
        gc.freeze()  # measured: halves the pauses of later collections
        gc.set_threshold(*GC_THRESHOLDS)
        stopping = asyncio.get_running_loop().create_task(stop.wait())
        tls, admin = self.options.tls, self.options.admin.tls
        files = (one for part in (tls, admin) for one in (part.cert, part.key, part.client_ca))
        watch = FileWatch(files)
        secret_file = self.options.clustering.secret_file
        keys_watch = FileWatch((secret_file,))
        masters_watch = FileWatch((self.options.encryption.file,))
        try:
            while not stopping.done() and not self._failed.done():
                reloading = asyncio.get_running_loop().create_task(reload.wait())
                events = (stopping, reloading, self._failed)
                await asyncio.wait(
                    events, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                reloading.cancel()
                if reload.is_set():
                    reload.clear()
                    with contextlib.suppress(LiftbridgeError):  # the observer was notified
                        self._reload()
                elif watch.has_changed():
                    self._reload_certificate()
                if keys_watch.has_changed():
                    renew_keys(secret_file, self._core.sessions, self.observer)
                self._identities.look()
                if masters_watch.has_changed():
                    renew_masters(self._masters, self.observer)
                self._ports.look()
                self._access.look()
        finally:
            stopping.cancel()

    def _reload(self) -> Reloaded:
        """Apply dynamic settings; other settings need a restart.

        Raises:
            LiftbridgeError: The configuration is invalid, or the broker starts; no change.
        """
        if self._api is None:
            raise UnavailableError("the broker is starting")
        try:
            fresh = self.reload_options()
            self._identities.set_options(fresh.identity)
        except LiftbridgeError as error:
            self.observer.transition("configuration_reload_refused", {"reason": error.text})
            raise
        self._reload_policy()
        self._reload_certificate()
        renew_keys(self.options.clustering.secret_file, self._core.sessions, self.observer)
        renew_masters(self._masters, self.observer)
        diff = reloadable_diff(self.options, fresh)
        self.options = reloaded(self.options, fresh)
        self._apply_options(self._api.context)
        applied = [change.key for change in diff.applied]
        self.observer.transition("configuration_reloaded", {"applied": applied})
        waiting = [change.key for change in diff.restart_needed]
        self._restart_needed = tuple(waiting)
        if waiting:
            self.observer.transition("configuration_restart_needed", {"settings": waiting})
        return Reloaded(applied, waiting)

    def _reload_policy(self) -> None:
        """Read the policy file again; if it is invalid, the former rules stay in force."""
        try:
            self._access.reload()
        except ConfigError as error:
            self.observer.transition("configuration_reload_refused", {"reason": error.text})

    def _on_master_keys(self) -> None:
        """Use the master keys that were just read."""
        if self._core.is_open:
            self.node.renew_master_keys(self._clock.now())

    def _reload_certificate(self) -> None:
        """Read the certificate again; if it is invalid, the old one stays in use."""
        for tls in (self._ports.tls, None if self._admin is None else self._admin.tls):
            if tls is None:
                continue
            try:
                tls.reload()
            except ConfigError as error:
                self.observer.transition("configuration_reload_refused", {"reason": error.text})
            else:
                path = str(tls.files.certificate)
                self.observer.transition("certificate_reloaded", {"path": path})

    def _apply_options(self, context: Context) -> None:
        """Pass every reloadable setting to the object that uses it."""
        options, limits, now = self.options, self.options.limits, self._clock.now()
        set_level(options.logging.level)
        self._core.store.set_limits(store_options(options), now)
        context.streams_max = limits.streams_max
        context.partitions_max = limits.stream_partitions_max
        context.subscriptions_max = limits.subscriptions_max
        self.node.set_limits(
            publishers_max=limits.publishers_max,
            publisher_ttl_ns=limits.publisher_ttl_ns,
            unanswered_bytes_max=limits.publish_pending_bytes_max,
            consumer_timeout_ns=options.groups.consumer_timeout_ns,
            coordinator_timeout_ns=options.groups.coordinator_timeout_ns,
        )
        self._links.messaging.set_pending_bytes_max(limits.publish_pending_bytes_max)
        self.node.set_defaults(options.streams, now)
        self._ports.set_listeners(options.listeners)
        if self._observe is not None:
            self._observe.streams_max = options.metrics.streams_max

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Stop in order: readiness, NATS intake, acks, subscriptions, calls, links.

        All steps except waiting for calls are short; together they have `shutdown.timeout`.
        """
        loop = asyncio.get_running_loop()
        grace = self.options.shutdown_timeout_ns / SECOND_NS
        self.observer.transition("broker_draining", {"signal": self.stop_reason})
        self._readiness.end()
        self._ports.close()
        if not self._failed.done() and has_company(self._core):
            # Other brokers take over before any step; the deadline of the steps starts after that.
            bound = self.options.hand_over_timeout_ns / SECOND_NS + TRANSFER_SECONDS
            handing = Steps(loop.time() + bound, hurry, self._on_step_timed_out)
            await handing.run("hand_over", self._hand_over())
        steps = Steps(loop.time() + grace, hurry, self._on_step_timed_out)
        if not self._failed.done() and self._core.is_open:
            await steps.run("nats_drain", self._links.messaging.drain())
            await steps.run("acks", self._settle())
            self.node.stop()
        if self._api is not None:
            await self._drain_calls(self._api.server, steps)
        await steps.run("nats_close", self._links.close())
        await self._links.stop_server()
        if self._admin is not None:
            await steps.run("admin_close", self._admin.close())
        if self._observe is not None:
            await steps.run("metrics_close", self._observe.close())
        self._monitor.stop()
        self._is_drained = True

    async def _hand_over(self) -> None:
        began = self._clock.now()
        steps = hand_over(self._core, self.options.hand_over_timeout_ns)
        is_complete = await self._waiting.run(steps)
        duration_ms = (self._clock.now() - began) // MILLISECOND_NS
        fields = {"is_complete": is_complete, "duration_ms": duration_ms}
        self.observer.transition("leaderships_handed_over", fields)

    async def _settle(self) -> None:
        """Wait until the acks of stored records are sent; they may wait for the disk."""
        settled = asyncio.Event()
        self.node.begin_stop(settled.set)
        waiting = asyncio.get_running_loop().create_task(settled.wait())
        try:
            await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _drain_calls(self, grpc: GrpcServer, steps: Steps) -> None:
        """Let running calls end, then close every connection."""
        has_failed = self._failed.done()
        # The steps bound the wait, so that the log names the step that timed out.
        if has_failed or not await steps.run("grpc_drain", grpc.drain(2 * steps.seconds_left)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await grpc.close()

    def _on_step_timed_out(self, step: str) -> None:
        self.observer.transition("drain_timed_out", {"step": step})

    def _close_data(self) -> None:
        """Release the directory; after an orderly drain, synced and marked as clean.

        Raises:
            LiftbridgeError: The directory failed, before or during the call.
        """
        self._timer.cancel()
        self._masters.shut_down()
        self._compactor.shut_down()  # before the next process can lock the files
        try:
            if self._failed.done():
                self._core.store.abandon()
                raise self._failed.result()
            epoch = self._core.epoch if self._is_drained else None
            self._core.close(epoch)
        finally:
            self._files.shut_down()
        duration_ms = (self._clock.wall_ns() - self._started_ns) // MILLISECOND_NS
        self.observer.transition(
            "broker_stopped", {"is_clean": epoch is not None, "duration_ms": duration_ms}
        )


def _refuse_retired(_members: Sequence[Peer], _cluster_id: str) -> bool:
    raise FailedPreconditionError(
        "the data directory left a cluster: it can join a cluster, but cannot found one"
    )
