"""The definitions on a real API server: what it takes, what it refuses, what it fills in.

The tables of examples are those that tests/unit/operator evaluates in Python; here the API server
decides, and must say the same as the rules in Python did.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from kubernetes.client import ApiClient, ApiException, CustomObjectsApi
from kubernetes.config import new_client_from_config

from liftbridge_operator.model.base import GROUP, VERSION
from liftbridge_operator.model.crds.definitions import NOT_SEEN, RESOURCES, definition
from liftbridge_testkit.kube.cluster import Kubernetes
from liftbridge_testkit.kube.definitions import in_place
from liftbridge_testkit.resources.examples import FOLDER, Example, load_examples
from liftbridge_testkit.resources.rules import refusals
from liftbridge_testkit.resources.schema import created, defaulted

pytestmark = pytest.mark.e2e

NAMESPACE = "custom-resources"
PLURALS = {resource.kind: resource.plural for resource in RESOURCES}
SCHEMAS = {
    resource.kind: definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for resource in RESOURCES
}
EXAMPLES = [
    example
    for name in ("cluster.yaml", "stream.yaml", "pipeline.yaml")
    for example in load_examples(FOLDER / name)
]


@pytest.fixture(scope="module")
def installed(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """The definitions are there, and a namespace to try them in."""
    with in_place(kubernetes):
        kubernetes.kubectl("create", "namespace", NAMESPACE)
        yield kubernetes
        kubernetes.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def api(installed: Kubernetes) -> Iterator["Objects"]:
    client = new_client_from_config(installed.environ["KUBECONFIG"])
    with client:
        yield Objects(client)


class Objects:
    """Custom objects of the namespace; validation is strict, as `kubectl` asks for."""

    def __init__(self, client: ApiClient) -> None:
        self._calls = CustomObjectsApi(client)

    def create(self, value: dict[str, Any], *, is_tried: bool) -> dict[str, Any]:
        """Create an object, or only try to."""
        created = self._calls.create_namespaced_custom_object(
            *self._place(value),
            value,
            dry_run="All" if is_tried else None,
            field_validation="Strict",
        )
        return cast("dict[str, Any]", created)

    def try_replace(self, value: dict[str, Any], version: str) -> dict[str, Any]:
        """What replacing an object would give."""
        metadata = value["metadata"] | {"resourceVersion": version}
        replaced = self._calls.replace_namespaced_custom_object(
            *self._place(value),
            metadata["name"],
            value | {"metadata": metadata},
            dry_run="All",
            field_validation="Strict",
        )
        return cast("dict[str, Any]", replaced)

    def delete(self, value: dict[str, Any]) -> None:
        """Delete an object."""
        self._calls.delete_namespaced_custom_object(*self._place(value), value["metadata"]["name"])

    @staticmethod
    def _place(value: dict[str, Any]) -> tuple[str, str, str, str]:
        return GROUP, VERSION, NAMESPACE, PLURALS[value["kind"]]


def written(api: Objects, example: Example) -> dict[str, Any]:
    """Write an example as it says, and leave nothing behind."""
    if example.before is None:
        return api.create(example.value, is_tried=True)
    created = api.create(example.before, is_tried=False)
    try:
        return api.try_replace(example.value, created["metadata"]["resourceVersion"])
    finally:
        api.delete(example.before)


def messages(example: Example) -> list[str]:
    """What the rules in Python tell of an example; nothing of one that has no right form."""
    if not example.rule:
        return []
    schema = SCHEMAS[example.value["kind"]]
    value = defaulted(schema, example.value)
    if example.before is None:
        return [refusal.message for refusal in refusals(schema, created(schema, example.value))]
    before = defaulted(schema, example.before)
    return [refusal.message for refusal in refusals(schema, value, before)]


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if one.is_accepted], ids=lambda one: one.name
)
def test_accepted_example_is_taken_with_the_defaults_of_the_schema(api, example):
    schema = SCHEMAS[example.value["kind"]]["properties"]["spec"]
    assert written(api, example)["spec"] == defaulted(schema, example.value["spec"])


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if not one.is_accepted], ids=lambda one: one.name
)
def test_refused_example_is_refused_for_what_the_rule_says(api, example):
    with pytest.raises(ApiException) as refused:
        written(api, example)
    told = json.loads(refused.value.body)
    assert refused.value.status in {400, 422}
    causes = [cause["message"] for cause in told.get("details", {}).get("causes", [])]
    for message in messages(example):
        assert any(message in cause for cause in causes)


def test_new_object_is_no_healthy_one(installed, api):
    example = next(one for one in EXAMPLES if one.is_accepted and not one.rule)
    created = api.create(example.value, is_tried=False)
    shown = installed.kubectl("get", "lbc", "-n", NAMESPACE, "--no-headers")
    api.delete(example.value)
    assert created["status"]["observedGeneration"] == -1
    assert created["status"]["conditions"] == [NOT_SEEN]
    assert shown.split()[:3] == [created["metadata"]["name"], "Unknown", "NotReconciled"]


def test_scale_goes_through_the_rules(installed, api):
    example = next(one for one in EXAMPLES if one.name == "min-isr-of-brokers-accepted-0")
    created = api.create(example.value, is_tried=False)
    name = created["metadata"]["name"]
    try:
        scale = ("scale", f"lbc/{name}", "-n", NAMESPACE)
        installed.kubectl(*scale, "--replicas=4")
        replicas = installed.kubectl(
            "get", f"lbc/{name}", "-n", NAMESPACE, "-o", "jsonpath={.spec.replicas}"
        )
        with pytest.raises(Exception, match=r"config\.streams\.minISR is greater than replicas"):
            installed.kubectl(*scale, "--replicas=2")
    finally:
        api.delete(example.value)
    assert replicas == "4"


def test_category_lists_both_kinds(installed, api):
    streams = next(one for one in EXAMPLES if one.value["kind"] == "Stream" and not one.rule)
    clusters = next(one for one in EXAMPLES if one.is_accepted and not one.rule)
    for example in (streams, clusters):
        api.create(example.value, is_tried=False)
    listed = installed.kubectl("get", "liftbridge", "-n", NAMESPACE, "-o", "name").split()
    for example in (streams, clusters):
        api.delete(example.value)
    assert listed == [
        f"liftbridgecluster.liftbridge.io/{clusters.value['metadata']['name']}",
        f"stream.liftbridge.io/{streams.value['metadata']['name']}",
    ]
