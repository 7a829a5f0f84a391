"""No two resources of a namespace have objects of one name, as far as names decide that.

The name of an object is that of its resource with something behind it. So two of them are equal
only where one resource is called like the beginning, up to a hyphen, of a name that the other one
gives: these clusters and pipelines, and no others, are compared.
"""

import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from liftbridge_operator.cluster.observing.reads import restart_name
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import BROKERS_MAX, ClusterSpec
from liftbridge_operator.model.crds.definitions import RESOURCES, object_schema
from liftbridge_operator.pipelines.render import render as render_pipeline
from liftbridge_operator.pipelines.resources import pipeline_of
from liftbridge_operator.pipelines.subject import Means, reach_of
from liftbridge_testkit.pipelines_memory import pipeline
from liftbridge_testkit.resources.clusters import (
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)
from liftbridge_testkit.resources.rules import refusals
from liftbridge_testkit.resources.schema import created

PIPELINES = sorted((Path(__file__).parent / "pipelines" / "specs").glob("*.yaml"))
SCHEMA = next(object_schema(one) for one in RESOURCES if one.kind == "LiftbridgeCluster")
LEAST = {
    "version": "0.1.0",
    "nats": {"embedded": {}},
    "storage": {"data": {"size": "1Gi"}},
}
LISTENERS = (
    *("internal", "outside", "brokers", "pipeline", "config", "y-internal", "y-brokers"),
    *("y-pipeline", "internal-ca", "out-1", "a", "a-0"),
)


def listeners(*listed):
    return [
        {"name": name, "port": 9500 + number, "type": "NodePort"}
        for number, name in enumerate(listed)
    ]


def named(made):
    """Kinds and names; hashes, which depend on what is hashed, are all the same here."""
    digest = re.compile("-[0-9a-f]{8,}$")
    return [(one["kind"], digest.sub("-0123456789", one["metadata"]["name"])) for one in made]


def services(name, *listed):
    spec = ClusterSpec.model_validate(LEAST | {"listeners": listeners(*listed)})
    made = everything(cluster_of(spec, name), inputs_for(spec))
    return [one for one in named(made) if one[0] == "Service"]


def of_cluster(name):
    """Kinds and names of all objects of a cluster but for Services of listeners."""
    found = []
    for path in PATHS:
        spec = load_spec(path)
        found += named(everything(cluster_of(spec, name), inputs_for(spec)))
    found = [one for one in found if one[0] != "Service"]
    found.append(("Service", names.headless(name)))
    found.append(("ConfigMap", restart_name(name)))
    for ordinal in (0, BROKERS_MAX - 1):
        found.append(("Pod", names.broker(name, ordinal)))
        for volume in (names.DATA_VOLUME, names.RAFT_VOLUME):
            found.append(("PersistentVolumeClaim", names.claim(name, ordinal, volume)))
    return set(found)


def of_pipeline(name):
    """Kinds and names of all objects of a pipeline, in every mode."""
    found = []
    for path in PIPELINES:
        body = pipeline(name)
        body["spec"] = yaml.safe_load(path.read_text(encoding="utf-8"))
        body["metadata"] |= {"uid": "u", "generation": 1}
        subject = pipeline_of(body)
        means = Means("liftbridge-spark:0.1.0", "liftbridge-executors")
        reach = reach_of(subject, ClusterSpec.model_validate(LEAST))
        found += named(render_pipeline(subject, reach, means))
    return set(found)


BASE = "base"
OWN = of_cluster(BASE)
GIVEN = {("cluster", one): OWN | set(services(BASE, one)) for one in LISTENERS}
GIVEN["pipeline", ""] = of_pipeline(BASE)


def given(sort, name):
    """What a resource of another name has."""
    return {(kind, has.replace(BASE, name, 1)) for kind, has in GIVEN[sort]}


def beginnings():
    """Names of resources that could meet an object of one called `x`."""
    found = {has.replace(BASE, "x", 1) for sort in GIVEN for _, has in GIVEN[sort]}
    parts = [one.split("-") for one in found if one.split("-")[0] == "x"]
    return sorted({"-".join(one[:count]) for one in parts for count in range(1, len(one) + 1)})


def is_accepted(name, *listed):
    body = {
        "metadata": {"name": name},
        "spec": LEAST | ({"listeners": listeners(*listed)} if listed else {}),
    }
    return not list(refusals(SCHEMA, created(SCHEMA, body)))


@pytest.fixture(scope="module")
def accepted():
    """Parts of clusters that rules decide on, with whether they are accepted."""
    return {one: is_accepted(one) for one in beginnings()} | {
        ("listener", one): is_accepted("x", one) for one in LISTENERS
    }


def is_possible(sort, name, accepted):
    kind, listener = sort
    return kind == "pipeline" or (accepted[name] and accepted["listener", listener])


def meeting():
    """Pairs of resources, of which one is called `x`, with the objects that both would have."""
    for sort in GIVEN:
        has = given(sort, "x")
        for other in GIVEN:
            for name in beginnings():
                if (name, sort[0]) != ("x", other[0]) and (met := has & given(other, name)):
                    yield (sort, "x"), (other, name), sorted(met)


def test_objects_are_called_like_their_resource_with_something_behind_it():
    """So that one rendering tells the names of all others."""
    renamed = {(kind, has.replace(BASE, "another", 1)) for kind, has in OWN}
    assert of_cluster("another") == renamed
    assert of_pipeline("another") == given(("pipeline", ""), "another")
    assert set(services("another", "a")) <= given(("cluster", "a"), "another")


def test_resources_that_are_accepted_have_no_object_in_common(accepted):
    met = [
        found
        for found in meeting()
        if is_possible(*found[0], accepted) and is_possible(*found[1], accepted)
    ]
    assert met == []


@pytest.mark.parametrize("pair", list(combinations(LISTENERS, 2)), ids="+".join)
def test_listeners_of_a_cluster_that_is_accepted_have_no_service_in_common(pair, accepted):
    found = services("x", *pair)
    are_accepted = all(accepted["listener", one] for one in pair)
    assert not are_accepted or len(set(found)) == len(found)


def test_names_that_are_refused_could_meet_somebody(accepted):
    met = {owner for one, other, _ in meeting() for owner in (one, other)}
    clusters = {name for (kind, _), name in met if kind == "cluster"}
    assert {"x-internal", "x-pipeline"} <= {name for name in clusters if not accepted[name]}
    refused = {one[1] for one in accepted if one[0] == "listener" and not accepted[one]}
    assert refused >= {"brokers", "pipeline"} | {one for one in LISTENERS if "-" in one}
    assert {"internal", "outside", "config", "a"} == set(LISTENERS) - refused
