"""The process before an API server: it watches, lists, runs passes, and writes nothing itself."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest

from liftbridge_operator.kube.errors import FencedError
from liftbridge_operator.kube.kinds import CLUSTERS, LEASES, PODS, STREAMS
from liftbridge_operator.kube.port import Preconditions
from liftbridge_operator.process.claims import CLAIM, HERE, RELEASE, SETTLED
from liftbridge_operator.process.metrics import Metrics
from liftbridge_operator.process.process import ExitCode, run
from liftbridge_operator.process.reconciler import Key, RequeueAfter
from liftbridge_operator.process.settings import Settings
from liftbridge_operator.process.watches import OWNED, RESOURCES, Watches, watch_settings
from liftbridge_testkit.kube.http import ApiOverHttp
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.processes import free_port

CLUSTER, STREAM = Key(CLUSTERS, "n", "c"), Key(STREAMS, "n", "s")
SECONDS_MAX = 60.0
TOLD = (
    "liftbridge_operator_leader 1.0",
    'liftbridge_operator_queue_depth{kind="LiftbridgeCluster"} 1.0',
    'liftbridge_operator_watch_events_total{resource="liftbridgeclusters.liftbridge.io"} 1.0',
)


def resource(kind, name, **metadata):
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": "n", **metadata},
        "spec": {},
    }


def settings(**values):
    fast = {"lease_duration": 30.0, "lease_renew": 25.0, "lease_retry": 0.1, "grace": 30.0}
    return Settings.of({"listen": "127.0.0.1:0", "lease_namespace": "n", **fast, **values})


class Work:
    """Reconcilers of both kinds, which keep what they were asked to look at."""

    def __init__(self):
        self.passes = []
        self.changed = asyncio.Event()
        self.context = None
        self.gate = None
        self.answer = None
        self.is_open = False
        self.beside = None

    @asynccontextmanager
    async def make(self, context):
        self.context = context
        self.is_open = True
        if self.beside is not None:
            task = asyncio.get_running_loop().create_task(self.beside())
            context.companions.add(task)
        yield dict.fromkeys(RESOURCES, self)
        self.is_open = False

    async def reconcile(self, key):
        self.passes.append(key)
        self.changed.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.answer

    async def until(self, is_so):
        """Wait for passes until something holds."""
        async with asyncio.timeout(SECONDS_MAX):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def operator(work, **values):
    task = asyncio.get_running_loop().create_task(run(settings(**values), work.make))
    try:
        yield task
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.wait([task])


@pytest.fixture
async def server(tmp_path, monkeypatch):
    async with ApiOverHttp(MemoryKube()) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path)))
        yield server


@pytest.fixture
def work():
    return Work()


def lease_of(server):
    return server.kube.all_of(LEASES)[0]["spec"]


def requests_for_lease(server, method):
    return sum(one.method == method and "/leases" in one.path for one in server.requests)


async def watching(server):
    await server.until(lambda: server.watched == len(RESOURCES) + len(OWNED))


async def test_what_is_there_and_what_comes_gets_passes(server, work):
    server.kube.put(resource(CLUSTERS, "c"))
    async with operator(work) as task:
        await work.until(lambda: CLUSTER in work.passes)
        await watching(server)
        server.kube.put(resource(STREAMS, "s"))
        await work.until(lambda: STREAM in work.passes)
        # The first list and the watch may each cause a pass of a cluster. Events of one kind come
        # in order, so none is due once a later cluster has had its pass.
        server.kube.put(resource(CLUSTERS, "later"))
        await work.until(lambda: work.passes[-1].name == "later")
        del work.passes[:]
        label = {"liftbridge.io/cluster": "c"}
        server.kube.put(resource(PODS, "c-0", labels=label))
        await work.until(lambda: work.passes == [CLUSTER])
        del work.passes[:]
        server.kube.remove(CLUSTERS, "n", "c")
        await work.until(lambda: work.passes == [CLUSTER])
    assert task.result() is ExitCode.OK
    assert not work.is_open


async def test_watching_writes_nothing_but_the_lease(server, work):
    held = resource(CLUSTERS, "c", finalizers=["example.org/held"])
    server.kube.put(held)
    server.kube.put(resource(STREAMS, "s"))
    async with operator(work):
        await watching(server)
        for number in range(3):
            server.kube.edit(
                CLUSTERS, "n", "c", lambda one, n=number: one["spec"].update(replicas=n)
            )
        seen = server.kube.all_of(CLUSTERS)[0]
        await server.kube.delete(CLUSTERS, "n", "c", preconditions=Preconditions.of(seen))
        before = len(work.passes)
        server.kube.edit(CLUSTERS, "n", "c", lambda one: one["metadata"].pop("finalizers"))
        await work.until(lambda: len(work.passes) > before)
        await server.until(lambda: not server.kube.all_of(CLUSTERS))
    leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases"
    assert server.writes
    assert all(one.path.startswith(leases) for one in server.writes)
    assert "managedFields" in server.kube.all_of(STREAMS)[0]["metadata"]
    assert set(server.kube.all_of(STREAMS)[0]["metadata"].get("annotations", {})) == set()


async def test_nothing_is_read_that_needs_more_rights(server, work):
    async with operator(work):
        await watching(server)
    read = {one.path for one in server.requests if one.method == "GET"}
    wanted = {kind.plural for kind in (*RESOURCES, *OWNED, LEASES)}
    objects = {path.split("/")[-1] for path in read if "/v1" in path and path.count("/") > 3}
    plain = {path.split("/")[-1] for path in read if path.startswith("/api/v1/")}
    assert objects | plain <= wanted | {"liftbridge-operator"}


async def test_namespaced_operator_asks_for_its_namespaces_only(server, work):
    server.kube.put(resource(CLUSTERS, "c"))
    other = resource(CLUSTERS, "c")
    other["metadata"]["namespace"] = "other"
    server.kube.put(other)
    for namespace in ("n", "m"):
        claim = resource(LEASES, CLAIM, annotations={SETTLED: "true"})
        claim["metadata"]["namespace"] = namespace
        server.kube.put(claim | {"spec": {"holderIdentity": "n/liftbridge-operator"}})
    async with operator(work, watch_namespaces=("n", "m")):
        await work.until(lambda: CLUSTER in work.passes)
        await server.until(lambda: server.watched == 2 * (len(RESOURCES) + len(OWNED)))
        server.kube.edit(CLUSTERS, "other", "c", lambda one: one["spec"].update(replicas=1))
        server.kube.put(resource(STREAMS, "s"))
        await work.until(lambda: STREAM in work.passes)
    assert {key.namespace for key in work.passes} == {"n"}
    places = [one.path for one in server.requests if "liftbridge.io" in one.path]
    assert all("/namespaces/" in path for path in places if path.count("/") > 3)


async def test_broken_watch_is_taken_up_again(server, work):
    async with operator(work) as task:
        await watching(server)
        server.end_watches()
        server.kube.put(resource(STREAMS, "s"))
        await work.until(lambda: STREAM in work.passes)
        assert not task.done()


async def test_probes_and_metrics_tell_of_the_process(server, work):
    work.answer = RequeueAfter(3600.0)
    server.kube.put(resource(CLUSTERS, "c"))
    url = f"http://127.0.0.1:{free_port()}"
    # It is ready by the lease that it made: the first renewal comes long after the test.
    given = {"listen": url.removeprefix("http://"), "lease_retry": 20.0}
    async with operator(work, **given), aiohttp.ClientSession() as web:
        await work.until(lambda: CLUSTER in work.passes)
        await watching(server)
        said, text = [], ""
        async with asyncio.timeout(SECONDS_MAX):
            while said[-2:] != ["ok\n"] * 2:
                for path in ("livez", "readyz"):
                    async with web.get(f"{url}/{path}") as answer:
                        said.append(await answer.text())
            while not all(line in text for line in TOLD):
                async with web.get(f"{url}/metrics") as answer:
                    text = await answer.text()
    assert set(said) <= {"ok\n", "resources: not listed yet\n"}
    assert "liftbridge_operator_lease_age_seconds" in text


async def test_passes_that_have_begun_are_finished_and_the_lease_given_up(server, work):
    work.gate = asyncio.Event()
    server.kube.put(resource(CLUSTERS, "c"))
    async with operator(work) as task:
        await work.until(lambda: CLUSTER in work.passes)
        os.kill(os.getpid(), signal.SIGTERM)
        renewals = requests_for_lease(server, "PATCH")
        await server.until(lambda: requests_for_lease(server, "PATCH") > renewals + 2)
        assert not task.done()
        assert lease_of(server)["holderIdentity"]
        work.gate.set()
    assert task.result() is ExitCode.OK
    assert "holderIdentity" not in lease_of(server)


async def test_namespace_that_another_release_claims_gets_no_pass_until_that_one_is_gone(
    server, work, monkeypatch
):
    monkeypatch.setattr("liftbridge_operator.process.claims.LOOK_S", 0.1)
    claim = resource(LEASES, CLAIM, labels={RELEASE: HERE})
    server.kube.put(claim | {"spec": {"holderIdentity": "x/other", "leaseDurationSeconds": 3600}})
    server.kube.put(resource(CLUSTERS, "c"))
    other = resource(CLUSTERS, "c")
    other["metadata"]["namespace"] = "m"
    server.kube.put(other)
    url = f"http://127.0.0.1:{free_port()}"
    async with operator(work, listen=url.removeprefix("http://")):
        await work.until(lambda: Key(CLUSTERS, "m", "c") in work.passes)
        await watching(server)
        server.kube.put(resource(STREAMS, "s"))
        async with aiohttp.ClientSession() as web, web.get(f"{url}/metrics") as answer:
            text = await answer.text()
        assert "liftbridge_operator_namespaces_left 1.0" in text
        assert "liftbridge_operator_release_conflict 0.0" in text
        assert {key.namespace for key in work.passes} == {"m"}
        with pytest.raises(FencedError):
            work.context.fence.check("n")
        work.context.fence.check("m")
        server.kube.edit(LEASES, "n", CLAIM, lambda one: one["spec"].pop("holderIdentity"))
        await work.until(lambda: {CLUSTER, STREAM} <= set(work.passes))
        work.context.fence.check("n")
        assert server.kube.look(LEASES, "n", CLAIM) is None


async def test_lost_lease_ends_the_process_without_waiting_for_passes(server, work):
    work.gate = asyncio.Event()
    server.kube.put(resource(CLUSTERS, "c"))
    async with operator(work) as task:
        await work.until(lambda: CLUSTER in work.passes)
        server.kube.edit(
            LEASES, "n", "liftbridge-operator", lambda one: one["spec"].update(holderIdentity="x")
        )
        async with asyncio.timeout(SECONDS_MAX):
            assert await task is ExitCode.LEASE_LOST
    assert lease_of(server)["holderIdentity"] == "x"


async def test_end_of_what_runs_beside_passes_ends_the_process(server, work):
    broken = asyncio.Event()

    async def look():
        await broken.wait()
        raise RuntimeError("a mistake in the looks")

    work.beside = look
    async with operator(work) as task:
        await watching(server)
        assert not task.done()
        broken.set()
        async with asyncio.timeout(SECONDS_MAX):
            assert await task is ExitCode.FAILED
    assert "holderIdentity" not in lease_of(server)


async def test_process_stands_by_until_the_lease_is_free(server, work):
    held = resource(LEASES, "liftbridge-operator")
    held["spec"] = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
    server.kube.put(held)
    server.kube.put(resource(CLUSTERS, "c"))
    url = f"http://127.0.0.1:{free_port()}"
    async with operator(work, listen=url.removeprefix("http://")) as task:
        await server.until(lambda: requests_for_lease(server, "GET") > 3)
        async with aiohttp.ClientSession() as web, web.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        # Nothing but the Lease of its release: others are looked at by who may lead.
        assert {one.path for one in server.requests} == {
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/liftbridge-operator",
        }
        server.kube.edit(
            LEASES, "n", "liftbridge-operator", lambda one: one["spec"].pop("holderIdentity")
        )
        await work.until(lambda: CLUSTER in work.passes)
    assert task.result() is ExitCode.OK


async def test_process_that_stands_by_ends_when_it_is_told_to(server, work):
    held = resource(LEASES, "liftbridge-operator")
    held["spec"] = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
    server.kube.put(held)
    async with operator(work) as task:
        await server.until(lambda: requests_for_lease(server, "GET") > 1)
    assert task.result() is ExitCode.OK
    assert work.context is None
    assert lease_of(server)["holderIdentity"] == "another"


async def test_watch_that_is_refused_for_good_ends_all_watches(server):
    fast = watch_settings(backoffs_s=(0.01, 0.01))
    watching = Watches(
        namespaces=(), notice=lambda _key: None, metrics=Metrics(), settings=fast
    ).run(lambda: None)
    for _ in range(3):
        server.refuse("GET", 403, '{"message": "no", "kind": "Status"}', path="/api/v1/pods")
    with pytest.raises(Exception, match="no"):
        async with asyncio.timeout(SECONDS_MAX):
            await watching
