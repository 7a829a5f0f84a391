"""The plugin over HTTP: kubeconfigs as kubectl takes them, and the requests that are sent."""

from pathlib import Path

import pytest
import yaml

from liftbridge_operator.kube.errors import ConflictError, ForbiddenError, UnavailableError
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.kube.port import Preconditions
from liftbridge_operator.plugin.port import COMMAND, Where, reach
from liftbridge_testkit.kube.http import TOKEN, ApiOverHttp
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.kube.person import cluster


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Nothing of whoever runs the tests."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
async def api():
    async with ApiOverHttp(MemoryKube()) as server:
        yield server


def written(path: Path, host: str, *contexts: tuple[str, str | None], current: str = "") -> str:
    """A kubeconfig with these contexts and their namespaces."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "contexts": [
            {
                "name": name,
                "context": {"cluster": "t", "user": "t"}
                | ({"namespace": namespace} if namespace else {}),
            }
            for name, namespace in contexts
        ],
        "clusters": [{"name": "t", "cluster": {"server": host}}],
        "users": [{"name": "t", "user": {"token": TOKEN}}],
    } | ({"current-context": current} if current else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


async def namespace_of(**where):
    async with reach(Where(**where)) as reached:
        return reached.namespace


async def test_context_and_namespace_are_those_of_the_kubeconfig(tmp_path):
    file = written(
        tmp_path / "config", "http://h", ("shop", "shop"), ("bare", None), current="shop"
    )
    assert await namespace_of(kubeconfig=file) == "shop"
    assert await namespace_of(kubeconfig=file, context="bare") == "default"
    assert await namespace_of(kubeconfig=file, namespace="given") == "given"


async def test_context_that_is_named_needs_no_current_one(tmp_path):
    file = written(tmp_path / "config", "http://h", ("shop", "shop"))
    assert await namespace_of(kubeconfig=file, context="shop") == "shop"
    with pytest.raises(UnavailableError, match="current-context"):
        await namespace_of(kubeconfig=file)


async def test_variable_and_home_stand_in_for_the_option(tmp_path, monkeypatch):
    written(tmp_path / ".kube" / "config", "http://h", ("home", "home"), current="home")
    assert await namespace_of() == "home"
    first = written(tmp_path / "one", "http://h", ("one", "one"), current="one")
    second = written(tmp_path / "two", "http://h", ("two", "two"))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'missing'}")
    assert await namespace_of() == "one"
    assert await namespace_of(context="two") == "two"
    assert await namespace_of(kubeconfig=second, context="two") == "two"


async def test_what_is_no_kubeconfig_is_told(tmp_path):
    with pytest.raises(UnavailableError, match="neither --kubeconfig nor KUBECONFIG"):
        await namespace_of()
    with pytest.raises(UnavailableError, match="missing does not exist"):
        await namespace_of(kubeconfig=str(tmp_path / "missing"))
    file = written(tmp_path / "config", "http://h", ("shop", None), ("pay", None))
    with pytest.raises(UnavailableError, match=r"no context 'x' in .*; it has pay, shop"):
        await namespace_of(kubeconfig=file, context="x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "text",
        "a: [",
        "contexts: 3",
        "contexts: [{name: shop}]\ncurrent-context: shop",
        "contexts: [{name: shop, context: {cluster: c}}]\ncurrent-context: shop",
        "\x00",
    ],
)
async def test_broken_kubeconfig_is_told_and_nothing_else(tmp_path, text):
    (tmp_path / "config").write_text(text, encoding="utf-8")
    with pytest.raises(UnavailableError, match="config "):
        await namespace_of(kubeconfig=str(tmp_path / "config"))


async def test_patch_is_owned_by_the_plugin_and_means_the_state_that_was_seen(api, tmp_path):
    file = written(tmp_path / "config", api.host, ("shop", "shop"), current="shop")
    api.kube.put(cluster())
    async with reach(Where(kubeconfig=file)) as reached:
        seen = await reached.access.get(CLUSTERS, "shop", "orders")
        meant = Preconditions.of(seen)
        change = {"metadata": {"annotations": {"a": "b"}}}
        done = await reached.access.patch(CLUSTERS, "shop", "orders", change, preconditions=meant)
        assert done["metadata"]["annotations"] == {"a": "b"}
        with pytest.raises(ConflictError):
            await reached.access.patch(CLUSTERS, "shop", "orders", change, preconditions=meant)
        listing = await reached.access.list_all(CLUSTERS, "")
    assert [one["metadata"]["name"] for one in listing.items] == ["orders"]
    assert {one.query["fieldManager"] for one in api.writes} == {COMMAND}
    assert {one.agent for one in api.requests} == {COMMAND}


async def test_logs_are_asked_for_with_their_bounds(api, tmp_path):
    file = written(tmp_path / "config", api.host, ("shop", "shop"), current="shop")
    place = "/api/v1/namespaces/shop/pods/orders-0/log"
    api.refuse("GET", 200, "up\n\u00fcber\n", path=place)
    api.refuse("GET", 403, "no", path=place)
    async with reach(Where(kubeconfig=file)) as reached:
        log = reached.access.log
        found = await log("shop", "orders-0", "broker", is_former=True, lines_max=7)
        with pytest.raises(ForbiddenError):
            await log("shop", "orders-0", "broker", is_former=False, lines_max=7)
    assert found.decode() == "up\n\u00fcber\n"
    asked = [one.query for one in api.requests]
    assert [one["previous"] for one in asked] == ["true", "false"]
    assert {(one["container"], one["tailLines"]) for one in asked} == {("broker", "7")}
    assert int(asked[0]["limitBytes"]) >= 1 << 20


async def test_version_is_read(api, tmp_path):
    file = written(tmp_path / "config", api.host, ("shop", "shop"), current="shop")
    api.refuse("GET", 200, '{"gitVersion": "v1"}', path="/version")
    async with reach(Where(kubeconfig=file)) as reached:
        assert await reached.access.server_version() == {"gitVersion": "v1"}


async def test_api_server_that_is_away_is_told(tmp_path):
    file = written(tmp_path / "config", "http://127.0.0.1:1", ("shop", "shop"), current="shop")
    async with reach(Where(kubeconfig=file, request_s=2.0)) as reached:
        with pytest.raises(UnavailableError, match=r"GET /apis/liftbridge\.io"):
            await reached.access.get(CLUSTERS, "shop", "orders")
