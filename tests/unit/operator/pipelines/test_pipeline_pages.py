"""What pages show of pipelines: manifests that are taken and rendered, columns that there are."""

import re
import shlex

import pytest
import yaml

from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.crds.definitions import RESOURCES, definition
from liftbridge_operator.pipelines.render import render
from liftbridge_operator.pipelines.resources import pipeline_of
from liftbridge_operator.pipelines.subject import Means, reach_of
from liftbridge_testkit.pages import commands
from liftbridge_testkit.pipelines_memory import CLUSTER, pipeline
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.examples import merged
from liftbridge_testkit.resources.rules import refusals
from liftbridge_testkit.resources.schema import defaulted, errors

PAGE = ROOT / "docs" / "how-to" / "spark-on-kubernetes.md"
TEXT = PAGE.read_text(encoding="utf-8")
(RESOURCE,) = [one for one in RESOURCES if one.kind == "StreamPipeline"]
SCHEMA = definition(RESOURCE)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TLS = {"tls": {"mode": "Generated"}, "listeners": [{"name": "internal", "tls": True}]}
MEANS = Means("liftbridge-spark:0.1.0", "liftbridge-executors")


def faults(body):
    """What the API server would say against a manifest."""
    value = defaulted(SCHEMA, body)
    return [*errors(SCHEMA, value), *refusals(SCHEMA, value)]


def rendered(body, **tls):
    body = merged(defaulted(SCHEMA, body), {"metadata": {"uid": "uid-1", "generation": 1}})
    body["metadata"].setdefault("namespace", "shop")
    cluster = ClusterSpec.model_validate(merged(CLUSTER | TLS, {"tls": tls}))
    subject = pipeline_of(body)
    return render(subject, reach_of(subject, cluster), MEANS)


def manifests(shown):
    """Manifests of the sections; parts of one are put into that of an archive without end."""
    for title in shown.titles:
        for block in shown.take(title):
            found = yaml.safe_load(block.text)
            if "kind" in found:
                yield found
            else:
                assert list(found) == ["spec"]
                yield merged(pipeline(), found)


@pytest.mark.shows("how-to/spark-on-kubernetes.md", languages=("yaml",))
def test_manifests_of_the_how_to_are_taken_and_rendered(shown):
    found = list(manifests(shown))
    assert [fault for body in found for fault in faults(body)] == []
    workloads = [rendered(body)[-1] for body in found]
    assert [one["kind"] for one in workloads] == [
        "Deployment",  # without end
        "Deployment",  # to a volume
        "CronJob",
        "Deployment",  # with executors
        "Deployment",  # with a certificate
        "Deployment",  # a job of the user's own
    ]


@pytest.mark.shows("reference/kubernetes/streampipeline.md", "")
def test_manifest_of_the_reference_is_taken_and_rendered(shown):
    (body,) = manifests(shown)
    assert faults(body) == []
    assert rendered(body)[-1]["kind"] == "Deployment"


@pytest.mark.shows("how-to/spark-on-kubernetes.md", languages=("yaml",))
def test_wrong_field_of_a_manifest_would_be_noticed(shown):
    for body in manifests(shown):
        body["spec"]["archives"] = {}
        assert faults(body) != []


@pytest.mark.shows("how-to/spark-on-kubernetes.md", languages=("console",))
def test_kubectl_knows_the_resource_and_its_fields(shown):
    for title in shown.titles:
        for line in (line for block in shown.take(title) for line in commands(block)):
            program, verb, kind, _, *rest = shlex.split(line)
            assert (program, verb, kind) == ("kubectl", "get", RESOURCE.short)
            if rest:
                option, path = rest
                assert option == "-o"
                assert_field(path)


def assert_field(path):
    """A path of kubectl, as `jsonpath={.status.lag}`, names a field of the resource."""
    found = re.fullmatch(r"jsonpath=\{\.([\w.]+)\}", path)
    assert found is not None, path
    node = SCHEMA
    for name in found[1].split("."):
        assert name in node["properties"], path
        node = node["properties"][name]


def test_objects_of_the_how_to_are_those_that_are_made():
    rows = set(re.findall(r"^\| ([A-Z][A-Za-z, ]+) \| `([^`]+)` \|", TEXT, re.MULTILINE))
    named = {(kind, name) for kinds, name in rows for kind in kinds.split(", ")}
    made = set()
    for changes in (
        {},
        {"mode": "Once"},
        {"mode": "Scheduled", "schedule": {"cron": "0 3 * * *"}},
        {"runtime": "Executors", "executors": {}},
    ):
        for one in rendered(pipeline("NAME", **changes)):
            name = re.sub(r"-pipeline-[0-9a-f]+$", "-pipeline-HASH", one["metadata"]["name"])
            made.add((one["kind"], name))
    assert named == made


def test_variables_of_the_how_to_are_those_that_jobs_get():
    script = {"configMapName": "jobs", "key": "job.py"}
    body = pipeline(type="Custom", script=script, credentials={"tlsSecretName": "client"})
    *_, workload = rendered(body, clientAuth="Required")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    given = {one["name"] for one in container["env"] if one["name"].startswith("PIPELINE_")}
    assert set(re.findall(r"`(PIPELINE_[A-Z_]+)`", TEXT)) == given
