"""The port for metrics and health: `/metrics`, `/metrics/detailed`, `/healthz`, `/readyz`.

It binds to loopback by default, since it has no authentication; it serves no secrets and changes
nothing. Integers are read on the event loop, in slices; joining them and rendering text happens in
a thread.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from liftbridge_broker.adapters.observe.catalogue import Catalogue
from liftbridge_broker.adapters.observe.exposition import CONTENT_TYPE, process_collector, render
from liftbridge_broker.adapters.observe.loop import LoopMonitor
from liftbridge_broker.adapters.observe.metrics import (
    MetricsSource,
    Readings,
    Sample,
    detail,
    in_slices,
    read,
    summarise,
)
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.model.units import MILLISECOND_NS

RENDERS_MAX: Final = 4
"""Concurrent renderings; further requests get an answer to retry."""

CONNECTIONS_MAX: Final = 32
"""Concurrent connections; beyond it the oldest is closed."""

_KEEPALIVE_SECONDS: Final = 15
_SHUTDOWN_SECONDS: Final = 1.0
_INDEX: Final = "liftbridge broker: /metrics /metrics/detailed?stream=NAME /healthz /readyz\n"


_LOG: Final = logging.getLogger("liftbridge_broker.http")


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return whether a log record is about the server itself, not about a client's bad request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_LOG.addFilter(_is_own_fault)


class ObserveServer:
    """Serves metrics and health.

    Attributes:
        streams_max: Number of streams with their own series; may be changed at any time.
        port: Bound port, 0 before `start`.
    """

    def __init__(
        self,
        *,
        source: MetricsSource,
        not_ready_reasons: Callable[[], Sequence[str]],
        catalogue: Catalogue,
        monitor: LoopMonitor,
        samplers: Sequence[Callable[[], Mapping[str, Sample]]] = (),
        streams_max: int = 100,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            source: Integers of the broker, until `set_source`.
            not_ready_reasons: Returns why it takes no requests, such as `nats: disconnected`; empty
                while it is ready.
            catalogue: Known metrics.
            monitor: Lag and load of the loop, running.
            samplers: More samples of scope `broker`, such as `StructlogObserver.samples`.
            streams_max: See the class.
        """
        self.streams_max = streams_max
        self.port = 0
        self._samplers = (monitor.samples, *samplers)
        self._source = _Joined(source, self._samplers)
        self._not_ready_reasons = not_ready_reasons
        self._catalogue = catalogue
        self._monitor = monitor
        self._process = process_collector()
        self._render_count = 0
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen.

        Returns:
            The port, even when 0 was requested.

        Raises:
            ConfigError: The address cannot be bound.
        """
        assert self._runner is None
        app = web.Application(client_max_size=0)
        app.router.add_get("/", self._on_index)
        app.router.add_get("/metrics", self._on_metrics)
        app.router.add_get("/metrics/detailed", self._on_detailed)
        app.router.add_get("/healthz", self._on_health)
        app.router.add_get("/readyz", self._on_ready)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_LOG,
            handle_signals=False,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        server = runner.server
        assert server is not None
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: self._connection(server), host, port, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            await runner.cleanup()
            reason = error.strerror or str(error)
            raise ConfigError(f"metrics.listen: cannot bind {host}:{port}: {reason}") from error
        self._runner = runner
        self.port = self._listening.sockets[0].getsockname()[1]
        return self.port

    def set_source(self, source: MetricsSource) -> None:
        """Use another source from the next scrape on."""
        self._source = _Joined(source, self._samplers)

    async def close(self) -> None:
        """Stop listening; may be called twice."""
        runner, self._runner = self._runner, None
        if self._listening is not None:
            self._listening.close()
        if runner is not None:
            await runner.cleanup()

    def _connection(self, server: web.Server) -> asyncio.BaseProtocol:
        """Accept a connection.

        Beyond the bound, close the oldest, so that silent clients delay no probe.
        """

        def make_room() -> None:
            connections = server.connections
            for connection in connections[: max(0, len(connections) + 1 - CONNECTIONS_MAX)]:
                connection.force_close()

        # Event loops accept all waiting connections at once, and report each in its turn.
        asyncio.get_running_loop().call_soon(make_room)
        return server()

    async def _on_index(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=_INDEX)

    async def _on_metrics(self, request: web.Request) -> web.Response:
        del request
        if self._render_count >= RENDERS_MAX:
            return _busy()
        self._render_count += 1
        try:
            readings = await read(self._source, self._catalogue)
            body = await asyncio.to_thread(self._metrics_text, readings, self.streams_max)
        finally:
            self._render_count -= 1
        return _exposition(body)

    async def _on_detailed(self, request: web.Request) -> web.Response:
        stream = request.query.get("stream", "")
        if not stream:
            return web.Response(status=400, text="name one stream: /metrics/detailed?stream=NAME\n")
        if self._render_count >= RENDERS_MAX:
            return _busy()
        rows = self._source.partition_samples(stream)
        if rows is None:
            return web.Response(status=404, text="no such stream\n")
        self._render_count += 1
        try:
            partitions = await in_slices(rows)
            body = await asyncio.to_thread(self._detailed_text, stream, partitions)
        finally:
            self._render_count -= 1
        return _exposition(body)

    def _metrics_text(self, readings: Readings, streams_max: int) -> bytes:
        return render(summarise(readings, self._catalogue, streams_max), process=self._process)

    def _detailed_text(self, stream: str, rows: list[tuple[int, Mapping[str, int]]]) -> bytes:
        return render(detail(stream, rows, self._catalogue))

    async def _on_health(self, request: web.Request) -> web.Response:
        """Report that the process is alive: only a running loop answers."""
        del request
        lag_ms = self._monitor.last_lag_ns // MILLISECOND_NS
        return web.json_response({"alive": True, "loop_lag_ms": lag_ms})

    async def _on_ready(self, request: web.Request) -> web.Response:
        del request
        reasons = list(self._not_ready_reasons())
        status = 503 if reasons else 200
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=status)


def _busy() -> web.Response:
    return web.Response(status=503, text="busy\n", headers={"Retry-After": "1"})


def _exposition(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


class _Joined:
    """A source with more samples of scope `broker`."""

    def __init__(
        self, source: MetricsSource, samplers: Sequence[Callable[[], Mapping[str, Sample]]]
    ) -> None:
        self._samplers = samplers
        self._source = source
        self.stream_samples = source.stream_samples
        self.partition_samples = source.partition_samples

    def broker_samples(self) -> dict[str, Sample]:
        """Return the samples of all sources; each metric has one source."""
        joined: dict[str, Sample] = {}
        for name, sample in itertools.chain(
            self._source.broker_samples().items(),
            *(sampler().items() for sampler in self._samplers),
        ):
            assert name not in joined, f"two sources report metric {name}"
            joined[name] = sample
        return joined
