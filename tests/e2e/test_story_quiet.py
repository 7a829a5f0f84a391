"""A cluster at rest costs the API server nothing: no write of the operator beyond its Lease."""

from datetime import UTC, datetime

import pytest
import yaml

from liftbridge_testkit.kube.audit import read, writes
from liftbridge_testkit.kube.release import USER

pytestmark = pytest.mark.e2e

STREAMS = 500
CREATED_SECONDS_MAX = 240
SETTLED_SECONDS = 15
"""Heartbeats and first looks at new streams may still be under way for so long."""


def small_stream(number):
    return {
        "apiVersion": "liftbridge.io/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": f"quiet-{number}"},
        "spec": {
            "clusterRef": {"name": "c"},
            "subject": f"quiet.{number}",
            "replicationFactor": 3,
        },
    }


def rest_quietly(s, seconds):
    """Writes of the operator within a time in which nobody changed anything."""
    s.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(map(small_stream, range(STREAMS))))
    s.until(lambda: ready_streams(s) == STREAMS + 2, "all streams ready", CREATED_SECONDS_MAX)
    s.await_ready()
    s.rest(SETTLED_SECONDS)
    since = datetime.now(UTC)
    with s.marked("at rest"):
        s.rest(seconds)
    return writes(read(s.machines.audit_log), USER, since)


def ready_streams(s):
    path = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}'
    return s.kubectl("get", "lbs", f"--output=jsonpath={path}").split().count("True")


@pytest.mark.story("quiet", minutes=5)
def test_cluster_with_500_streams_costs_no_write_for_a_minute(play):
    with play() as s:
        assert rest_quietly(s, 60) == []


@pytest.mark.full
@pytest.mark.story("quiet-long", minutes=14)
def test_cluster_with_500_streams_costs_no_write_for_ten_minutes(play):
    with play(kills_operator=False) as s:
        assert rest_quietly(s, 600) == []
