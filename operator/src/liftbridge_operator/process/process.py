"""The process: wait for the Lease, watch, run passes, and end in order.

    stand by --(lease)--> list, watch, run passes --(signal)--> finish passes, release, end
                                 |
                                 +--(lease lost)--> cut everything off, end

Only the leader has watches and passes. A process that lost the lease does not become a standby
again: it ends, and its container restarts without any outdated memory.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random, SystemRandom
from typing import Any, Final

import structlog

from liftbridge_operator.kube.client import Bounds, KubeClient, connect
from liftbridge_operator.kube.events import Events
from liftbridge_operator.kube.kinds import CLUSTERS, PIPELINES, STREAMS, USERS, Kind
from liftbridge_operator.kube.port import Fence, Kube
from liftbridge_operator.process.claims import (
    AllClaims,
    ClaimedReconciler,
    Claims,
    LeaderFence,
    NamespaceClaims,
)
from liftbridge_operator.process.clock import Clock, SystemClock
from liftbridge_operator.process.dispatcher import PASS_SECONDS_MAX, Dispatcher
from liftbridge_operator.process.lease import Lease, LeaseLostError, LeaseTimes
from liftbridge_operator.process.metrics import ConditionBoard, Metrics, Reading, label_of
from liftbridge_operator.process.probes import serve_probes
from liftbridge_operator.process.queue import WorkQueue
from liftbridge_operator.process.reconciler import Key, Reconciler, Requests
from liftbridge_operator.process.resync import Resync
from liftbridge_operator.process.settings import Settings, own_namespace
from liftbridge_operator.process.watches import RESOURCES, Watches, watch_settings

STUCK_S: Final = 600.0
"""Age of a due pass after which the process counts as stuck and has to be restarted."""

END_S: Final = 5.0
"""Time that cancelled tasks have to end; then the process ends without them."""

_IN_FLIGHT_MAX: Final = 32

_PIPELINE_WORKERS: Final = 4
"""Maximum number of concurrent passes of StreamPipelines."""

_USER_WORKERS: Final = 4
"""Maximum number of concurrent passes of LiftbridgeUsers."""

log = structlog.get_logger("liftbridge.operator")


class ExitCode(IntEnum):
    """Exit codes of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LEASE_LOST = 3


@dataclass(frozen=True, slots=True)
class Context:
    """Dependencies of reconcilers.

    Attributes:
        kube: The API server; its writes check the fence.
        fence: Fence to check right before each write to brokers.
        events: Writes Kubernetes Events.
        board: Receives conditions, for the metrics.
        metrics: Metrics of the process.
        requests: Requests passes for any key.
        settings: Settings of the process.
        clock: Time.
        rng: Randomness.
        namespace: Namespace of the operator's own pod.
        identity: Unique identity of this process.
        companions: Tasks that run beside the passes; when one of them ends, so does the process.
        on_change: Called for each resource that changed, or a part of it, before its pass.
    """

    kube: Kube
    fence: Fence
    events: Events
    board: ConditionBoard
    metrics: Metrics
    requests: Requests
    settings: Settings
    clock: Clock
    rng: Random
    namespace: str
    identity: str
    companions: "set[asyncio.Task[None]]" = field(default_factory=set)
    on_change: list[Callable[[Key], None]] = field(default_factory=list)

    def notice(self, key: Key) -> None:
        """Report a change that a watch saw, and request a pass."""
        for callback in self.on_change:
            callback(key)
        self.requests.request(key)


MakeReconcilers = Callable[[Context], AbstractAsyncContextManager[Mapping[Kind, Reconciler]]]
"""Makes a reconciler for each of `watches.RESOURCES`; they live as long as the context."""


class _Passes:
    """The dispatchers of all kinds; see `reconciler.Requests`."""

    def __init__(self) -> None:
        self.dispatchers: dict[Kind, Dispatcher] = {}

    def request(self, key: Key, after_s: float = 0.0) -> None:
        """See `Requests`."""
        self.dispatchers[key.kind].request(key, after_s)

    async def run(self) -> None:
        """Run all dispatchers until `stop`."""
        async with asyncio.TaskGroup() as group:
            for dispatcher in self.dispatchers.values():
                group.create_task(dispatcher.run())

    def stop(self) -> None:
        """Start no further pass."""
        for dispatcher in self.dispatchers.values():
            dispatcher.stop()


async def run(settings: Settings, make_reconcilers: MakeReconcilers) -> ExitCode:
    """Run the operator until it is stopped, or cannot continue.

    Args:
        settings: Settings of the process.
        make_reconcilers: Called once this process leads.

    Raises:
        UnavailableError: There are no credentials for the API server.
        OSError: The address of the probes is in use.
    """
    process = _Process(settings)
    async with connect(in_flight_max=_IN_FLIGHT_MAX + 2) as api:
        return await process.run(api, make_reconcilers)


async def in_place(settings: Settings, work: Callable[[Kube, Lease], Awaitable[int]]) -> int:
    """Run work in place of the operator, with its own candidate of the election.

    Args:
        settings: Settings of the release.
        work: Receives a port without a fence, and the candidate.

    Returns:
        Result of the work.
    """
    process = _Process(settings)
    async with connect(in_flight_max=2) as api:
        kube = KubeClient(api, fence=None, rng=process.rng)
        return await work(kube, process.make_lease(process.lease_client(api), claims=None))


class _Process:
    """State that lives as long as the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.rng = SystemRandom()
        self.metrics = Metrics()
        self.namespace = own_namespace()
        self.identity = f"{socket.gethostname()}_{self.rng.getrandbits(48):012x}"
        self.passes = _Passes()
        self.stop = asyncio.Event()
        self.resync: Resync | None = None
        self.lease: Lease | None = None
        self.claims: Claims | None = None

    async def run(self, api: Any, make_reconcilers: MakeReconcilers) -> ExitCode:
        """Wait for leadership, lead, and end."""
        self.take_signals()
        kube = self.lease_client(api)
        self.claims = claims = self.make_claims(kube)
        self.lease = lease = self.make_lease(kube, claims)
        self._read_metrics(lease, claims)
        async with serve_probes(
            self.settings.address,
            live=self._hindrances_to_live,
            ready=self._hindrances_to_serve,
            registry=self.metrics.registry,
        ) as port:
            log.info("operator_started", identity=self.identity, port=port)
            if not await self._until_stopped(lease.acquire()):
                log.info("operator_stopped")
                return ExitCode.OK
            fence = LeaderFence(lease, claims)
            async with self._context(api, fence, make_reconcilers) as context:
                return await self._lead(context, fence)

    def take_signals(self) -> None:
        """Make SIGTERM and SIGINT end the process in order."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.stop.set)

    def lease_client(self, api: Any) -> KubeClient:
        """Return a port for Leases, without a fence."""
        # An answer that takes longer than the time between two renewals is of no use.
        bounds = Bounds(request_s=min(5.0, self.settings.lease_renew / 2), attempts_max=1)
        return KubeClient(api, fence=None, rng=self.rng, bounds=bounds, on_answer=self._on_answer)

    def make_claims(self, kube: Kube) -> Claims:
        """Make the claims of this release, or its view of other releases' claims."""
        namespace, name = self.lease_place
        watched = self.settings.watch_namespaces
        if not watched:
            return AllClaims(
                kube, namespace=namespace, name=name, clock=self.clock, on_gain=self._look_again
            )
        return NamespaceClaims(
            kube,
            release=f"{namespace}/{name}",
            namespaces=watched,
            clock=self.clock,
            rng=self.rng,
            on_gain=self._look_again,
        )

    def make_lease(self, kube: Kube, claims: Claims | None) -> Lease:
        """Make the candidate of this process."""
        given = self.settings
        namespace, name = self.lease_place
        return Lease(
            kube,
            namespace=namespace,
            name=name,
            identity=self.identity,
            clock=self.clock,
            rng=self.rng,
            times=LeaseTimes(given.lease_duration, given.lease_renew, given.lease_retry),
            others=claims,
            marks={} if claims is None else claims.marks,
        )

    @property
    def lease_place(self) -> tuple[str, str]:
        """Namespace and name of the Lease by which one process of the release leads."""
        return self.settings.lease_namespace or self.namespace, self.settings.lease_name

    def _look_again(self) -> None:
        if self.resync is not None:
            self.resync.hasten()

    @asynccontextmanager
    async def _context(
        self, api: Any, fence: LeaderFence, make_reconcilers: MakeReconcilers
    ) -> AsyncIterator[Context]:
        """Make the reconcilers and their queues."""
        # The result of a hanging write stays known until the end of the next pass.
        bounds = Bounds(in_flight_max=_IN_FLIGHT_MAX, silence_s=PASS_SECONDS_MAX)
        kube = KubeClient(api, fence=fence, rng=self.rng, bounds=bounds, on_answer=self._on_answer)
        context = Context(
            kube=kube,
            fence=fence,
            events=Events(
                kube,
                instance=self.identity,
                now=self.clock.now,
                wall=self.clock.wall,
                rng=self.rng,
                on_result=lambda result: self.metrics.count("events_total", result),
            ),
            board=ConditionBoard(self.metrics),
            metrics=self.metrics,
            requests=self.passes,
            settings=self.settings,
            clock=self.clock,
            rng=self.rng,
            namespace=self.namespace,
            identity=self.identity,
        )
        workers = {
            CLUSTERS: self.settings.cluster_workers,
            STREAMS: self.settings.stream_workers,
            PIPELINES: _PIPELINE_WORKERS,
            USERS: _USER_WORKERS,
        }
        async with make_reconcilers(context) as reconcilers:
            for kind in RESOURCES:
                self.passes.dispatchers[kind] = Dispatcher(
                    kind,
                    ClaimedReconciler(reconcilers[kind], fence.claims),
                    queue=WorkQueue(self.rng),
                    clock=self.clock,
                    metrics=self.metrics,
                    workers=workers[kind],
                )
            yield context

    async def _lead(self, context: Context, fence: LeaderFence) -> ExitCode:
        """Watch and run passes until there is a reason to end."""
        given = self.settings
        self.resync = Resync(
            context.kube,
            self.passes,
            kinds=RESOURCES,
            namespaces=given.watch_namespaces,
            interval_s=given.resync,
            clock=self.clock,
            rng=self.rng,
            metrics=self.metrics,
        )
        watches = Watches(
            namespaces=given.watch_namespaces,
            notice=context.notice,
            metrics=self.metrics,
            settings=watch_settings(),
        )
        loop = asyncio.get_running_loop()
        held = loop.create_task(fence.hold())
        passing = loop.create_task(self.passes.run())
        others = {
            loop.create_task(self.stop.wait()),
            loop.create_task(self.resync.run()),
            *context.companions,
            # Last: kopf does not cancel tasks that already run.
            loop.create_task(watches.run(self.take_signals)),
        }
        everything = {held, passing, *others}
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            code = self._reason(held, {passing, *others})
            if code is not ExitCode.LEASE_LOST:
                await self._finish_passes(passing, held)
                await _cut_off({passing, held})
                await fence.lease.release()
        finally:
            await _cut_off(everything)
        log.info("operator_stopped", code=code.name)
        return code

    def _reason(self, held: asyncio.Task[None], others: "set[asyncio.Task[Any]]") -> ExitCode:
        """Return the exit code, and log the cause of the end."""
        if held.done():
            error = held.exception()
            log.error("lease_lost", error=str(error))
            return ExitCode.LEASE_LOST if isinstance(error, LeaseLostError) else ExitCode.FAILED
        if self.stop.is_set():
            return ExitCode.OK
        failed = next((task for task in others if task.done()), None)
        error = None if failed is None or failed.cancelled() else failed.exception()
        log.error("operator_failed", error=repr(error), exc_info=error)
        return ExitCode.FAILED

    async def _finish_passes(self, passing: asyncio.Task[None], held: asyncio.Task[None]) -> None:
        """Wait for started passes to end, for as long as they may still write."""
        self.passes.stop()
        await asyncio.wait(
            {passing, held}, timeout=self.settings.grace, return_when=asyncio.FIRST_COMPLETED
        )

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run work until it is done or the process is stopped; return whether it was done."""
        loop = asyncio.get_running_loop()
        doing, stopping = loop.create_task(work), loop.create_task(self.stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return doing.done() and not self.stop.is_set()
        finally:
            await _cut_off({doing, stopping})

    def _on_answer(self, verb: str, code: str) -> None:
        self.metrics.count("api_requests_total", verb, code)

    def _read_metrics(self, lease: Lease, claims: Claims) -> None:
        read = self.metrics.read
        read("leader", lambda: [((), float(lease.is_leader))])
        read(
            "release_conflict",
            lambda: [((), float(bool(self._hindrances_by_others() and claims.rivals)))],
        )
        read("namespaces_left", lambda: [((), float(len(claims.left)))])
        read("lease_age_seconds", lambda: [] if lease.age_s is None else [((), lease.age_s)])
        read("queue_depth", self._of_queues(lambda queue: queue.depth))
        read("queue_running", self._of_queues(lambda queue: queue.running))
        read("queue_oldest_seconds", self._of_queues(lambda one: one.oldest_s(self.clock.now())))

    def _of_queues(self, value: Callable[[WorkQueue], float]) -> Reading:
        """Return a reading of every queue, labelled by its kind."""
        dispatchers = self.passes.dispatchers
        return lambda: [
            ((label_of(kind),), float(value(one.queue))) for kind, one in dispatchers.items()
        ]

    def _hindrances_to_live(self) -> list[str]:
        found = []
        for kind, dispatcher in self.passes.dispatchers.items():
            age = dispatcher.queue.oldest_s(self.clock.now())
            if age > STUCK_S:
                found.append(f"queue of {kind.plural}: a pass is due for {age:.0f} s")
        return found

    def _hindrances_to_serve(self) -> list[str]:
        assert self.lease is not None, "probes come after the lease"
        if self.stop.is_set():
            return ["stopping"]
        silence = self.lease.silence_s
        if silence is None or silence > self.settings.lease_duration:
            return ["lease: the API server does not answer"]
        if self.lease.is_leader and (self.resync is None or not self.resync.is_complete):
            return ["resources: not listed yet"]
        return self._hindrances_by_others()

    def _hindrances_by_others(self) -> list[str]:
        assert self.lease is not None, "others are met by the lease"
        assert self.claims is not None, "others are met by claims"
        if self.lease.holder:
            return []  # another process of this release leads
        return self.claims.hindrances(is_leading=self.lease.is_leader)


async def _cut_off(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel tasks, wait at most `END_S` for their end, and drop their exceptions."""
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=END_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()


def end_for_sure(code: ExitCode) -> None:
    """End the process with this code within `END_S`, whatever still runs in it."""
    last = threading.Timer(END_S, os._exit, (int(code),))
    last.daemon = True
    last.start()
