"""The adapter over HTTP: what it sends, what it makes of answers, what it sends again."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest

from liftbridge_operator.kube.client import Bounds, KubeClient, connect, path_of
from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    FencedError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnansweredError,
    UnauthorizedError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import (
    CLUSTERS,
    CONFIG_MAPS,
    NODES,
    PIPELINES,
    PODS,
    SETS,
    STREAMS,
)
from liftbridge_operator.kube.port import Preconditions, Propagation
from liftbridge_testkit.kube.http import ApiOverHttp
from liftbridge_testkit.kube.memory import Deletion, MemoryKube

BOUNDS = Bounds(request_s=30.0, attempts_max=3, backoff_s=0.5, backoff_max_s=2.0)


class Fence:
    """Lets writes through until it is shut."""

    def __init__(self):
        self.is_shut = False
        self.namespaces = []

    def check(self, namespace):
        self.namespaces.append(namespace)
        if self.is_shut:
            raise FencedError("shut")


class World:
    def __init__(self, server):
        self.server = server
        self.kube = server.kube
        self.fence = Fence()
        self.waits = []
        self.answers = []
        self.client = None

    async def sleep(self, seconds):
        self.waits.append(seconds)

    @asynccontextmanager
    async def connected(self, bounds=BOUNDS):
        async with connect(in_flight_max=4) as api:
            self.client = KubeClient(
                api,
                fence=self.fence,
                rng=Random(1),
                bounds=bounds,
                sleep=self.sleep,
                on_answer=lambda verb, code: self.answers.append((verb, code)),
            )
            yield self


@pytest.fixture
async def world(tmp_path, monkeypatch):
    async with ApiOverHttp(MemoryKube()) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path)))
        world = World(server)
        async with world.connected():
            yield world


def config(name="c", **data):
    metadata = {"name": name, "namespace": "n"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_objects_are_written_read_and_deleted(world):
    client = world.client
    made = await client.create(config(a="1"))
    assert await client.get(CONFIG_MAPS, "n", "c") == made
    changed = await client.apply(config(a="1", b="2"))
    assert changed["data"] == {"a": "1", "b": "2"}
    meant = Preconditions.of(changed)
    patched = await client.patch(CONFIG_MAPS, "n", "c", {"data": {"b": "3"}}, preconditions=meant)
    operations = [{"op": "remove", "path": "/data/b"}]
    meant = Preconditions.of(patched)
    patched = await client.patch(CONFIG_MAPS, "n", "c", operations, preconditions=meant)
    assert patched["data"] == {"a": "1"}
    await client.delete(
        CONFIG_MAPS,
        "n",
        "c",
        preconditions=Preconditions.of(patched),
        propagation=Propagation.ORPHAN,
        grace_seconds=7,
    )
    assert world.kube.deletions == [Deletion(CONFIG_MAPS, "n", "c", Propagation.ORPHAN, 7)]
    assert {one.agent for one in world.server.requests} == {"liftbridge-operator"}
    assert world.fence.namespaces == ["n"] * len(world.server.writes)
    strict = [one.query.get("fieldValidation") for one in world.server.writes[:-1]]
    assert strict == ["Strict"] * 4


async def test_list_reads_all_pages_and_says_what_items_are(world):
    for number in range(1203):
        world.kube.put(config(f"c{number:04}"))
    found = await world.client.list_all(CONFIG_MAPS, "n")
    assert [one["metadata"]["name"] for one in found.items] == [f"c{n:04}" for n in range(1203)]
    assert {(one["apiVersion"], one["kind"]) for one in found.items} == {("v1", "ConfigMap")}
    # A page that takes long is asked for again.
    assert {one.query.get("continue") for one in world.server.requests} == {None, "500", "1000"}
    assert found.resource_version


async def test_status_goes_to_its_own_address(world):
    named = {"apiVersion": "liftbridge.io/v1alpha1", "kind": "LiftbridgeCluster"}
    metadata = {"name": "c", "namespace": "n"}
    world.kube.put(named | {"metadata": dict(metadata), "spec": {}})
    found = await world.client.apply_status(
        named | {"metadata": metadata, "status": {"replicas": 3}}
    )
    assert found["status"] == {"replicas": 3}
    sent = world.server.requests[-1]
    assert sent.path == "/apis/liftbridge.io/v1alpha1/namespaces/n/liftbridgeclusters/c/status"
    assert sent.query["fieldManager"] == "liftbridge-operator-status"
    assert sent.content == "application/apply-patch+yaml"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (418, KubeError),
        (422, InvalidError),
    ],
)
async def test_answer_that_is_final_is_not_asked_for_again(world, status, error):
    world.server.refuse("GET", status, '{"message": "no", "reason": "Because"}')
    with pytest.raises(error, match="no") as refused:
        await world.client.get(PODS, "n", "p")
    assert type(refused.value) is error
    assert (refused.value.status, refused.value.reason) == (status, "Because")
    assert world.waits == []


async def test_patch_of_another_uid_is_a_conflict(world):
    causes = '[{"field": "metadata.uid", "message": "field is immutable"}]'
    told = '{"reason": "Invalid", "details": {"causes": ' + causes + "}}"
    world.server.refuse("PATCH", 422, told)
    with pytest.raises(ConflictError):
        await world.client.apply(config(a="1"))


async def test_body_without_a_right_form_is_no_trouble_of_the_server(world):
    told = '{"message": "failed to create typed patch object: .spec.portz: not declared"}'
    world.server.refuse("PATCH", 500, told)
    with pytest.raises(InvalidError):
        await world.client.apply(config(a="1"))
    assert world.waits == []


async def test_conflicts_are_told_apart(world):
    await world.client.create(config(a="1"))
    with pytest.raises(AlreadyExistsError):
        await world.client.create(config(a="1"))
    await world.client.apply(config(a="2"), force=True)
    world.kube.edit(CONFIG_MAPS, "n", "c", lambda one: one["data"].update(a="3"))
    with pytest.raises(ApplyConflictError) as met:
        await world.client.apply(config(a="2"))
    assert ("kubectl", ".data.a") in met.value.fields


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_passing_trouble_is_waited_out_with_jitter(world, status):
    world.kube.put(config(a="1"))
    for _ in range(2):
        world.server.refuse("GET", status, "<html>busy</html>")
    found = await world.client.get(CONFIG_MAPS, "n", "c")
    assert found["data"] == {"a": "1"}
    assert [low <= wait <= 2 * low for low, wait in zip((0.25, 0.5), world.waits, strict=True)]
    assert world.answers == [("GET", str(status))] * 2 + [("GET", "200")]


async def test_attempts_are_bounded(world):
    for _ in range(5):
        world.server.refuse("GET", 503)
    with pytest.raises(UnavailableError):
        await world.client.get(PODS, "n", "p")
    assert len(world.server.requests) == BOUNDS.attempts_max
    assert len(world.waits) == BOUNDS.attempts_max - 1


async def test_server_says_when_to_come_again_within_the_bound(world):
    world.kube.put(config())
    world.server.refuse("GET", 429, headers={"Retry-After": "1"})
    world.server.refuse("GET", 429, headers={"Retry-After": "3600"})
    await world.client.get(CONFIG_MAPS, "n", "c")
    assert world.waits == [1.0, BOUNDS.backoff_max_s]


async def test_create_is_repeated_only_when_it_was_not_looked_at(world):
    world.server.refuse("POST", 503)
    with pytest.raises(UnavailableError):
        await world.client.create(config())
    world.server.refuse("POST", 429)
    await world.client.create(config())
    assert len(world.server.writes) == 3


async def test_writes_that_say_what_they_mean_are_repeated(world):
    seen = world.kube.put(config(a="1"))
    world.server.refuse("PATCH", 500)
    await world.client.apply(config(b="2"))
    world.server.refuse("DELETE", 500)
    meant = Preconditions(seen["metadata"]["uid"])
    await world.client.delete(CONFIG_MAPS, "n", "c", preconditions=meant)
    assert world.kube.all_of(CONFIG_MAPS) == []
    assert len(world.server.writes) == 4


async def test_request_without_an_answer_ends(world):
    world.kube.put(config())
    never = asyncio.Event()
    async with world.connected(Bounds(request_s=0.1, attempts_max=1)):
        world.server.hold("GET", never.wait)
        with pytest.raises(UnavailableError):
            await world.client.get(CONFIG_MAPS, "n", "c")
    assert world.answers == [("GET", "error")]
    never.set()


PATIENT = Bounds(request_s=30.0, attempts_max=3, hung_s=20.0, silence_s=60.0)
HASTY = Bounds(request_s=0.2, attempts_max=3, backoff_s=0.5, hung_s=0.1, silence_s=60.0)
WRITES = {
    "create": lambda client, _: client.create(config("d")),
    "apply": lambda client, _: client.apply(config(b="2")),
    "patch": lambda client, meant: client.patch(
        CONFIG_MAPS, "n", "c", {"data": {"b": "3"}}, preconditions=meant
    ),
    "delete": lambda client, meant: client.delete(CONFIG_MAPS, "n", "c", preconditions=meant),
}
METHODS = {"create": "POST", "apply": "PATCH", "patch": "PATCH", "delete": "DELETE"}
OTHER = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}}


@pytest.mark.parametrize("write", WRITES)
async def test_write_that_hangs_is_told_apart_from_an_api_server_that_is_away(world, write):
    seen = world.kube.put(config())
    meant = Preconditions(seen["metadata"]["uid"])
    never = asyncio.Event()
    method = METHODS[write]
    async with world.connected(HASTY):
        world.server.hold(method, never.wait)
        world.server.hold("GET", never.wait)
        with pytest.raises(UnavailableError) as away:
            await WRITES[write](world.client, meant)
        world.server.hold(method, never.wait)
        with pytest.raises(UnansweredError) as hung:
            await WRITES[write](world.client, meant)
        assert not isinstance(away.value, UnansweredError)
        assert hung.value.is_sent
        assert f"{method} /api/v1/namespaces/n/configmaps" in hung.value.message
        assert len(world.server.writes) == 2
        # Others of the kind do not wait for it, and other kinds are not held back.
        with pytest.raises(UnansweredError) as spared:
            await WRITES[write](world.client, meant)
        assert not spared.value.is_sent
        assert hung.value.message.removesuffix(" (reads are answered)") in spared.value.message
        await world.client.create(OTHER)
        assert len(world.server.writes) == 3
    never.set()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("write", WRITES)
async def test_write_that_fails_at_once_is_told_with_its_object_and_status(world, write, status):
    seen = world.kube.put(config())
    meant = Preconditions(seen["metadata"]["uid"])
    world.server.fail_all("/configmaps", status, "out of order")
    async with world.connected(PATIENT):
        with pytest.raises(UnansweredError) as told:
            await WRITES[write](world.client, meant)
        name = "d" if write == "create" else "c"
        assert f"/configmaps/{name}: out of order (HTTP {status}; " in told.value.message
        assert (told.value.status, told.value.is_sent) == (status, True)
        world.server.fail_all("", 0)
        await WRITES[write](world.client, meant)


async def test_write_that_is_refused_at_once_each_time_is_told_and_holds_no_other_back(world):
    for _ in range(HASTY.attempts_max):
        world.server.refuse("PATCH", 504, "context deadline exceeded")
    async with world.connected(HASTY):
        with pytest.raises(UnansweredError) as told:
            await world.client.apply(config(b="2"))
        assert "context deadline exceeded" in told.value.message
        await world.client.apply(config(b="2"))


WAYS = {
    "no bytes": lambda server, until: server.hold("PATCH", until),
    "half an answer": lambda server, until: server.halve("PATCH", until),
    "late": lambda server, until: server.hold("PATCH", until),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [CLUSTERS, STREAMS, PIPELINES], ids=lambda one: one.kind)
async def test_status_that_hangs_is_told_apart_and_holds_back_no_other_write(world, kind, way):
    metadata = {"name": "c", "namespace": "n"}
    named = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    seen = world.kube.put(named | {"spec": {}})
    meant = Preconditions(seen["metadata"]["uid"])
    told = named | {"status": {"observedGeneration": 1}}
    never = asyncio.Event()
    async with world.connected(HASTY):
        WAYS[way](world.server, never.wait)
        with pytest.raises(UnansweredError) as hung:
            async with asyncio.timeout(BOUNDS.request_s):
                await world.client.apply_status(told)
        assert f"{kind.plural}/c/status" in hung.value.message
        if way == "late":
            never.set()  # nobody waits for the answer any more
        sent = len(world.server.writes)
        with pytest.raises(UnansweredError) as spared:
            await world.client.apply_status(told)
        assert (spared.value.is_sent, len(world.server.writes)) == (False, sent)
        changes = {"metadata": {"finalizers": ["liftbridge.io/test"]}}
        await world.client.patch(kind, "n", "c", changes, preconditions=meant)
    async with world.connected(PATIENT):
        assert (await world.client.apply_status(told))["status"] == told["status"]
    never.set()


async def test_nobody_waits_for_a_write_longer_than_a_request_and_a_read(world):
    never = asyncio.Event()
    async with world.connected(HASTY):
        for _ in range(HASTY.attempts_max):
            world.server.hold("PATCH", never.wait)
            world.server.hold("GET", never.wait)
        with pytest.raises(UnavailableError):
            await world.client.apply(config())
        assert [one.method for one in world.server.requests] == ["PATCH", "GET"]
    never.set()


async def test_nobody_who_answers_is_unavailable(world):
    await world.server.__aexit__()
    async with world.connected():
        with pytest.raises(UnavailableError):
            await world.client.get(CONFIG_MAPS, "n", "c")
    await world.server.__aenter__()


async def test_fence_is_asked_before_each_attempt_of_a_write(world):
    world.kube.put(config())
    world.server.refuse("PATCH", 503)

    async def shut(_seconds):
        world.fence.is_shut = True

    world.sleep = shut
    async with world.connected():
        with pytest.raises(FencedError):
            await world.client.apply(config(a="1"))
        assert len(world.server.writes) == 1
        await world.client.get(CONFIG_MAPS, "n", "c")


async def test_what_no_caller_may_ask_for_is_not_sent(world):
    with pytest.raises(AssertionError):
        await world.client.delete(SETS, "n", "c", preconditions=Preconditions("uid"))
    forced = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "c"}}
    with pytest.raises(AssertionError):
        await world.client.apply(forced | {"spec": {"replicas": 1}}, force=True)
    assert world.server.requests == []


async def test_without_credentials_there_is_no_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UnavailableError):
        async with connect(in_flight_max=1):
            pass


def test_addresses():
    assert path_of(PODS, "n", "p") == "/api/v1/namespaces/n/pods/p"
    assert path_of(PODS, "") == "/api/v1/pods"
    assert path_of(NODES, "", "a/b") == "/api/v1/nodes/a%2Fb"
    assert path_of(CLUSTERS, "n") == "/apis/liftbridge.io/v1alpha1/namespaces/n/liftbridgeclusters"
    with pytest.raises(AssertionError):
        path_of(NODES, "n", "x")
    with pytest.raises(AssertionError):
        path_of(PODS, "", "x")
