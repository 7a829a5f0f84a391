"""The models of the custom resources: what is read, what is written, what is assumed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.config.values import parse_duration
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import check_stream_name, check_subject
from liftbridge_operator.model import conditions
from liftbridge_operator.model.base import camel
from liftbridge_operator.model.broker_config import (
    OWNED,
    BrokerConfig,
    broker_settings,
    typed_settings,
)
from liftbridge_operator.model.catalogue import load
from liftbridge_operator.model.cluster import BROKERS_MAX, ClusterSpec
from liftbridge_operator.model.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    PartitionProblem,
    PartitionSummary,
    RestartStatus,
    VolumeStatus,
)
from liftbridge_operator.model.crds.definitions import NOT_SEEN, RESOURCES, definition
from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.model.values import duration_ns, size_bytes
from liftbridge_testkit.resources.schema import defaulted, errors, faults, nodes

SCHEMAS = {
    resource.kind: definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for resource in RESOURCES
}
MINIMAL = {
    "version": "0.1.0",
    "nats": {"servers": ["nats://nats:4222"]},
    "storage": {"data": {"size": "10Gi"}},
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_is_structural_and_bounded(kind):
    schema = SCHEMAS[kind]
    found = [fault for fault in faults(schema) if not fault.startswith((".apiVersion", ".kind"))]
    assert found == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_has_a_description(kind):
    bare = [
        f"{path}.{name}"
        for path, node in nodes(SCHEMAS[kind])
        for name, part in node.get("properties", {}).items()
        if not part.get("description") and path + name != "metadata"
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "string"}, ": needs one of ('maxLength', 'enum', 'format')"),
        ({"type": "object"}, ": either named properties or values"),
        ({"type": "boolean", "title": "A"}, ": title is not structural"),
        ({"anyOf": [], "type": "boolean"}, ": alternatives"),
        ({}, ": type None"),
    ],
)
def test_planted_fault_of_a_schema_is_found(schema, fault):
    assert list(faults(schema)) == [fault]


def test_defaults_of_the_schema_are_those_of_the_model():
    schema = SCHEMAS["LiftbridgeCluster"]["properties"]["spec"]
    filled = defaulted(schema, MINIMAL)
    assert ClusterSpec.model_validate(filled) == ClusterSpec.model_validate(MINIMAL)
    assert filled["replicas"] == 3
    assert filled["listeners"] == [
        {"name": "internal", "type": "Internal", "port": 9292, "tls": False}
    ]
    assert filled["storage"]["retention"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert filled["disruption"]["gate"] == "FullISR"


def test_manifest_of_a_specification_is_taken_by_its_schema():
    schema = SCHEMAS["LiftbridgeCluster"]["properties"]["spec"]
    assert errors(schema, ClusterSpec.model_validate(MINIMAL).manifest()) == []


def test_status_of_a_new_object_is_no_healthy_one():
    for schema in SCHEMAS.values():
        status = defaulted(schema, {"spec": {}})["status"]
        assert status["observedGeneration"] == -1
        assert status["conditions"] == [NOT_SEEN]
        assert errors(schema["properties"]["status"], status) == []


def test_fields_of_a_newer_definition_are_ignored():
    spec = ClusterSpec.model_validate(MINIMAL | {"newer": {"field": 1}})
    assert spec == ClusterSpec.model_validate(MINIMAL)


def test_models_are_values():
    spec = ClusterSpec.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        spec.replicas = 5


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("volume_uid", "volumeUID"),
        ("below_min_isr", "belowMinISR"),
        ("client_ca", "clientCA"),
        ("cluster_id", "clusterId"),
        ("nats", "nats"),
    ],
)
def test_names_of_fields_follow_the_custom_of_kubernetes(name, shown):
    assert camel(name) == shown


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1", 1), ("1k", 1_000), ("1.5Ki", 1_536), ("10Gi", 10 << 30), ("0.001", 1)],
)
def test_sizes_are_read_as_kubernetes_does(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "ten", "1GiB", "-1", "1e3", "1.2345", " 1"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        size_bytes(text)


@given(
    st.lists(
        st.tuples(st.integers(0, 9_999), st.sampled_from(("ms", "s", "m", "h"))),
        min_size=1,
        max_size=4,
    )
)
def test_durations_mean_what_the_broker_takes_them_for(parts):
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert duration_ns(text) == parse_duration(text)


@pytest.mark.parametrize("text", ["", "1", "1d", "-1s", "1 s", "s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ns(text)


def accepts(check, text):
    try:
        check(text)
    except InvalidRequestError:
        return False
    return True


def stream_accepts(**fields):
    value = {"clusterRef": {"name": "a"}, "subject": "a", "replicationFactor": 1} | fields
    try:
        StreamSpec.model_validate(value)
    except ValidationError:
        return False
    return True


VISIBLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=6)
TRICKY = st.text(st.sampled_from("a$*>.,-_/ "), max_size=6)


@given(VISIBLE | TRICKY)
def test_names_of_streams_are_those_that_the_broker_takes(name):
    assert stream_accepts(streamName=name) == accepts(check_stream_name, name)


@given(VISIBLE | TRICKY)
def test_subjects_are_those_that_the_broker_takes(subject):
    assert stream_accepts(subject=subject) == accepts(check_subject, subject)


def test_typed_fields_stand_for_settings_of_the_broker():
    assert set(typed_settings(BrokerConfig)) - set(SETTINGS) == set()


def test_owned_settings_are_settings_of_the_broker():
    for owned in OWNED:
        assert set(owned.keys) - set(SETTINGS) == set()
        for prefix in owned.prefixes:
            assert any(key.startswith(prefix) for key in SETTINGS)


def test_settings_of_the_broker_are_given_in_its_syntax():
    config = BrokerConfig.model_validate(
        {
            "streams": {"retentionMaxBytes": "1.5Ki", "compactEnabled": True, "minISR": 2},
            "cursors": {"partitions": 8},
            "extra": {"clustering.replica.max.lag.time": "1s"},
        }
    )
    given = broker_settings(config)
    assert given == {
        "clustering.min.insync.replicas": "2",
        "clustering.replica.max.lag.time": "1s",
        "cursors.stream.partitions": "8",
        "logging.level": "info",
        "streams.compact.enabled": "true",
        "streams.retention.max.bytes": "1536",
    }
    assert all(SETTINGS[key].read(text) is not None for key, text in given.items())


def test_status_of_a_hundred_brokers_stays_small():
    broker = BrokerStatus(
        id="a" * 40 + "-99",
        pod_uid="7b7c2f1e-0000-4000-8000-000000000001",
        node="node-with-a-name-of-usual-length.example",
        zone="zone-a",
        ready=True,
        voter=True,
        revision="0123456789abcdef",
        partitions=10_000,
        leaders=5_000,
        volumes=(),
    )
    status = ClusterStatus(
        brokers=(broker,) * BROKERS_MAX,
        partitions=PartitionSummary(
            worst=(PartitionProblem(stream="s" * 64, partition=1, problem="Offline"),) * 10
        ),
    )
    assert len(status.model_dump_json(exclude_none=True)) < 32 << 10


def test_volumes_and_restarts_of_brokers_are_told():
    broker = BrokerStatus(
        id="orders-0",
        volumes=(VolumeStatus(name="data-orders-0", uid="u", capacity="10Gi", phase="Bound"),),
        last_restart=RestartStatus(time="2026-11-21T18:00:00Z", reason="RollingUpdate"),
    )
    schema = SCHEMAS["LiftbridgeCluster"]["properties"]["status"]
    assert errors(schema, ClusterStatus(brokers=(broker,)).manifest()) == []


def test_texts_of_conditions_fit_their_field():
    assert load.MESSAGE_LENGTH_MAX == conditions.MESSAGE_LENGTH_MAX
