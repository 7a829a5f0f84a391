"""The port for probes and metrics: `/livez`, `/readyz`, `/metrics`.

It serves no secrets and changes nothing. It answers from the start of the process, also while
another process leads.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Hindrances = Callable[[], Sequence[str]]
"""Returns the cause that keeps the process from being alive or ready; empty for none."""


@asynccontextmanager
async def serve_probes(
    address: tuple[str, int],
    *,
    live: Hindrances,
    ready: Hindrances,
    registry: CollectorRegistry,
) -> AsyncIterator[int]:
    """Serve probes and metrics while the context is open; yield the bound port.

    Args:
        address: Host and port; port 0 lets the system choose.
        live: Called at each `/livez`.
        ready: Called at each `/readyz`.
        registry: Metrics for `/metrics`.

    Raises:
        OSError: The address cannot be bound.
    """

    def answer(found: Sequence[str]) -> web.Response:
        text = "".join(f"{one}\n" for one in found) or "ok\n"
        return web.Response(text=text, status=503 if found else 200)

    async def on_live(_: web.Request) -> web.Response:
        return answer(live())

    async def on_ready(_: web.Request) -> web.Response:
        return answer(ready())

    async def on_metrics(_: web.Request) -> web.Response:
        # On the event loop, which owns the state that is read; it takes milliseconds.
        text = generate_latest(registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/livez", on_live)
    app.router.add_get("/readyz", on_ready)
    app.router.add_get("/metrics", on_metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        await site.start()
        bound = runner.addresses[0]
        yield int(bound[1])
    finally:
        await runner.cleanup()
