"""The port for metrics and health, over real sockets."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftbridge_broker.adapters.observe.catalogue import Scope, load_catalogue
from liftbridge_broker.adapters.observe.exposition import CONTENT_TYPE
from liftbridge_broker.adapters.observe.http import CONNECTIONS_MAX, RENDERS_MAX, ObserveServer
from liftbridge_broker.adapters.observe.loop import LoopMonitor
from liftbridge_broker.adapters.observe.metrics import OTHER
from liftbridge_broker.adapters.observe.observer import StructlogObserver
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.model.histogram import Histogram

CATALOGUE = load_catalogue()
SERIES_MAX = 2_200
STREAM_COUNT = 2_500
PARTITION_COUNT = 10_000
STREAMS_MAX = 100


class Source:
    """A broker with ten thousand partitions that has a sample for everything."""

    def __init__(self):
        self.scrape_count = 0
        self.reasons = []
        self.all_waiting = asyncio.Event()
        self.told = StructlogObserver(CATALOGUE).samples() | LoopMonitor().samples()

    def broker_samples(self):
        self.scrape_count += 1
        if self.scrape_count == RENDERS_MAX:
            self.all_waiting.set()
        return {
            spec.name: self.sample(spec)
            for spec in CATALOGUE.of_scope(Scope.BROKER)
            if spec.name not in self.told
        }

    def sample(self, spec):
        """As many label sets as there can be, and more."""
        value = Histogram() if spec.type == "histogram" else 7
        if not spec.labels:
            return value
        if spec.values:
            columns = ([*spec.values[label], "unlisted-1", "unlisted-2"] for label in spec.labels)
            return dict.fromkeys(itertools.product(*columns), value)
        return {(f"v{n}",) * len(spec.labels): n for n in range(500)}

    def stream_samples(self):
        specs = CATALOGUE.of_scope(Scope.STREAM)
        for number in range(STREAM_COUNT):
            samples = {spec.name: self.sample(spec) for spec in specs}
            samples["stream_bytes"] = number
            yield f"stream-{number}", samples

    def partition_samples(self, stream):
        names = [spec.name for spec in CATALOGUE.of_scope(Scope.PARTITION)]
        if stream == "big":
            return [(number, dict.fromkeys(names, 1)) for number in range(PARTITION_COUNT)]
        if stream == "orders":
            return [(0, {"partition_high_watermark": 12})]
        return None

    def not_ready_reasons(self):
        return self.reasons


@pytest.fixture
async def source():
    return Source()


@pytest.fixture
async def server(source):
    monitor = LoopMonitor()
    monitor.start()
    server = ObserveServer(
        source=source,
        not_ready_reasons=source.not_ready_reasons,
        catalogue=CATALOGUE,
        monitor=monitor,
        samplers=[StructlogObserver(CATALOGUE).samples],
        streams_max=STREAMS_MAX,
    )
    yield server
    monitor.stop()
    await server.close()


@pytest.fixture
async def http(server):
    port = await server.start("127.0.0.1", 0)
    assert port > 0
    async with aiohttp.ClientSession(base_url=f"http://127.0.0.1:{port}") as session:
        yield session


def series_of(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


async def test_metrics_are_bounded_whatever_the_number_of_streams(http):
    async with http.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == CONTENT_TYPE
        text = await response.text()
    assert len(series_of(text)) <= SERIES_MAX
    families = {f.name: f for f in text_string_to_metric_families(text)}
    sizes = families["liftbridge_stream_bytes"].samples
    by_stream = {s.labels["stream"]: s.value for s in sizes}
    assert len(by_stream) == STREAMS_MAX + 1
    assert by_stream[f"stream-{STREAM_COUNT - 1}"] == STREAM_COUNT - 1
    assert sum(by_stream.values()) == sum(range(STREAM_COUNT))
    assert OTHER in by_stream


async def test_every_metric_of_the_catalogue_and_of_the_process_is_shown(http):
    async with http.get("/metrics") as response:
        families = {f.name for f in text_string_to_metric_families(await response.text())}
    shown = [spec for spec in CATALOGUE.metrics.values() if spec.scope is not Scope.PARTITION]
    assert {spec.full_name.removesuffix("_total") for spec in shown} <= families
    assert "process_cpu_seconds" in families


async def test_number_of_shown_streams_can_change_while_serving(server, http):
    server.streams_max = 3
    async with http.get("/metrics") as response:
        text = await response.text()
    assert text.count('liftbridge_stream_bytes{stream="') == 3 + 1


async def test_one_stream_in_detail(http):
    async with http.get("/metrics/detailed", params={"stream": "orders"}) as response:
        assert response.status == 200
        text = await response.text()
    assert series_of(text) == [
        'liftbridge_partition_high_watermark{partition="0",stream="orders"} 12.0'
    ]


async def test_detail_says_when_it_is_cut(http):
    async with http.get("/metrics/detailed", params={"stream": "big"}) as response:
        lines = (await response.text()).splitlines()
    assert len(lines) <= 50_001
    assert lines[-1].startswith("# cut: ")
    assert lines[-1].endswith(f"of {PARTITION_COUNT} partitions of stream big are shown")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/metrics/detailed", 400, "name one stream"),
        ("/metrics/detailed?stream=nothing", 404, "no such stream"),
        ("/", 200, "/readyz"),
        ("/nothing", 404, ""),
    ],
)
async def test_other_paths_say_what_there_is(http, path, status, text):
    async with http.get(path) as response:
        assert response.status == status
        assert text in await response.text()


async def test_nothing_can_be_changed_over_the_port(http):
    for path in ("/metrics", "/healthz", "/readyz"):
        async with http.post(path, data=b"x" * 100_000) as response:
            assert response.status == 405


async def test_health_tells_the_lag_of_the_loop(http):
    async with http.get("/healthz") as response:
        assert response.status == 200
        health = await response.json()
    assert health["alive"] is True
    assert health["loop_lag_ms"] >= 0


async def test_readiness_gives_its_reasons(http, source):
    async with http.get("/readyz") as response:
        assert (response.status, await response.json()) == (200, {"ready": True, "reasons": []})
    source.reasons = ["nats: disconnected", "recovering"]
    async with http.get("/readyz") as response:
        assert response.status == 503
        assert await response.json() == {"ready": False, "reasons": source.reasons}


async def test_more_scrapes_than_the_bound_are_sent_away_while_health_still_answers(http, source):
    """Text is made in threads: all of them are held here, and the loop goes on."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        executor.submit(release.wait)
        try:
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                scrapes = [tasks.create_task(scrape(http)) for _ in range(RENDERS_MAX)]
                await source.all_waiting.wait()
                assert await scrape(http) == (503, "busy\n")
                async with http.get("/healthz") as response:
                    assert response.status == 200
                release.set()
        finally:
            release.set()
    assert {task.result()[0] for task in scrapes} == {200}


async def scrape(http):
    async with http.get("/metrics") as response:
        return response.status, await response.text()


@pytest.mark.parametrize("begun", [b"", b"GET /metr", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_silent_clients_hold_few_connections_and_keep_nobody_out(server, begun):
    port = await server.start("127.0.0.1", 0)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    for _, writer in clients:
        writer.write(begun)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/healthz") as response,
    ):
        assert response.status == 200
    async with asyncio.timeout(10):
        await clients[0][0].read()  # the oldest made room
    for _, writer in clients:
        writer.transport.abort()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x00\x00",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%zz\xff HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
    ],
    ids=range(8),
)
async def test_nobody_fills_the_log_with_bad_requests(server, caplog, request_bytes):
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes)
    assert (await reader.readline()).split()[1].startswith(b"4")
    writer.transport.abort()
    assert caplog.records == []


async def test_request_that_fails_by_a_bug_is_logged(http, source, caplog):
    source.reasons = None
    async with http.get("/readyz") as response:
        assert response.status == 500
    assert len(caplog.records) == 1


async def test_address_in_use_is_refused_with_its_setting(server, http):
    del http
    other = ObserveServer(
        source=Source(),
        not_ready_reasons=Source().not_ready_reasons,
        catalogue=CATALOGUE,
        monitor=LoopMonitor(),
    )
    port = server.port
    with pytest.raises(
        ConfigError, match=rf"metrics.listen: cannot bind 127.0.0.1:{port}: .*in use"
    ):
        await other.start("127.0.0.1", port)


async def test_closed_server_takes_no_connection_and_closes_twice(server):
    port = await server.start("127.0.0.1", 0)
    await server.close()
    await server.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
