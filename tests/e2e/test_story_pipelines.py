"""Pipelines archive the streams of a running cluster, to an object store beside it.

What was archived is compared with the whole logs, record by record.
"""

from datetime import UTC, datetime

import pytest

from liftbridge_testkit.kube.archives import Archives
from liftbridge_testkit.kube.audit import read, writes
from liftbridge_testkit.kube.release import USER

pytestmark = pytest.mark.e2e

CURSORS = {"config": {"cursors": {"partitions": 1}}}
"""By them an archive tells how far it has come."""

KILLED = 137
"""Exit code of what was ended by SIGKILL."""

SETTLED_SECONDS = 5
"""What it told last may still be under way."""


@pytest.fixture(scope="session")
def spark_image(kubernetes):
    return kubernetes.image("spark")


@pytest.fixture(scope="session")
def store_image(kubernetes):
    return kubernetes.image("store", "tests/e2e/manifests/Dockerfile.store")


@pytest.fixture
def archives_of(spark_image, store_image):
    def begun(s):
        archives = Archives(s, spark_image)
        with s.marked("object store"):
            archives.start_store(store_image)
        return archives

    return begun


def end_load(s):
    """Publish no more; what is committed then is all there ever will be."""
    s.await_acks()
    s.load.stop()


def rest_quietly(s, seconds):
    """Writes of the operator within a time in which nobody changed anything."""
    s.rest(SETTLED_SECONDS)
    since = datetime.now(UTC)
    with s.marked("at rest"):
        s.rest(seconds)
    return writes(read(s.machines.audit_log), USER, since)


@pytest.mark.story("archive", minutes=5)
def test_continuous_archive_is_whole_after_kills_of_its_pod_and_then_costs_no_write(
    play, archives_of
):
    with play(spec=CURSORS) as s:
        archives = archives_of(s)
        archives.apply("all", mode="Continuous", interval="2s")
        with s.marked("first round"):
            archives.await_all("all")
        with s.marked("killed"):
            (pod,) = archives.drivers("all")
            archives.kill(pod)
            archives.await_all("all")
        end_load(s)
        with s.marked("caught up"):
            archives.await_all("all")
        assert archives.status("all")["lag"] == 0
        assert archives.claims("all")["CaughtUp"] == ("True", "CaughtUp")
        assert len(archives.archived("all")) == sum(s.streams.values())
        assert archives.status("all")["lastRun"]["exitCode"] == KILLED
        assert rest_quietly(s, 65) == []
        assert archives.faults("all") == []
