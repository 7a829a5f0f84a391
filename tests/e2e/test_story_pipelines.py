"""Pipelines archive the streams of a running cluster, to an object store beside it.

In each story what was archived is compared with the whole logs, record by record; the quick one
runs with every change, the others try each runtime with each mode.
"""

from datetime import UTC, datetime

import pytest

from liftbridge_testkit.kube.archives import Archives
from liftbridge_testkit.kube.audit import read, writes
from liftbridge_testkit.kube.release import USER

pytestmark = pytest.mark.e2e

CURSORS = {"config": {"cursors": {"partitions": 1}}}
"""By them an archive tells how far it has come."""

LONE = {
    "spec": {**CURSORS, "replicas": 1},
    "stream": {"partitions": 3, "replicationFactor": 1, "config": {"minISR": 1}},
}
"""One broker with few partitions, where pods of Spark are what a story is about."""

REFUSED_TO_DRIVERS = {"deletecollection persistentvolumeclaims"}
"""Asked for by Spark at its end, and not needed."""

AT_END = {"deletecollection configmaps", "deletecollection pods", "deletecollection services"}
"""What a driver does when its command ends; a continuous one does not end by itself."""

FOR_FAILED = {"delete pods"}
"""What it does with executors that failed."""

KILLED = 137
"""Exit code of what was ended by SIGKILL."""

SETTLED_SECONDS = 5
"""What it told last may still be under way."""

EXECUTORS = {
    "runtime": "Executors",
    "executors": {"instances": 2, "cores": 1, "memory": "1Gi"},
}


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


def two_executors(s, archives):
    """The executors as soon as there are two, and no more."""

    def both():
        found = archives.executors("all")
        return found if len(found) == 2 else []

    return s.until(both, "two executors", 120)


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


@pytest.mark.full
@pytest.mark.story("archive-executors", minutes=10)
def test_archive_by_two_executors_is_whole_after_kills_of_driver_and_executors(play, archives_of):
    with play(**LONE, kills_operator=False) as s:
        archives = archives_of(s)
        archives.apply("all", mode="Continuous", interval="2s", **EXECUTORS)
        with s.marked("first round"):
            archives.await_all("all")
        with s.marked("executor killed"):
            archives.kill(two_executors(s, archives)[0])
            archives.await_all("all")
        with s.marked("executors lost"):
            for pod in two_executors(s, archives):
                archives.lose(pod)
            archives.await_all("all")
        with s.marked("driver killed"):
            (pod,) = archives.drivers("all")
            archives.kill(pod)
            archives.await_all("all")
        with s.marked("driver lost"):
            (pod,) = archives.drivers("all")
            archives.lose(pod)
            archives.await_all("all")
        end_load(s)
        with s.marked("caught up"):
            archives.await_all("all")
        assert archives.status("all")["lag"] == 0
        assert archives.claims("all")["CaughtUp"] == ("True", "CaughtUp")
        assert rest_quietly(s, 65) == []
        assert archives.faults("all") == []
        # Those of drivers that are gone went with them.
        two_executors(s, archives)
        found = archives.driver_rights("all")
        assert found.denied <= REFUSED_TO_DRIVERS
        assert set(found.unused) <= AT_END


@pytest.mark.full
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param({}, marks=pytest.mark.story("archive-runs", minutes=8)),
        pytest.param(EXECUTORS, marks=pytest.mark.story("archive-executor-runs", minutes=10)),
    ],
    ids=["local", "executors"],
)
def test_single_and_scheduled_archives_are_whole(play, archives_of, runtime):
    with play(**LONE, kills_operator=False) as s:
        archives = archives_of(s)
        with s.marked("once"):
            archives.apply("once", mode="Once", **runtime)
            archives.await_all("once")
            archives.await_claim("once", "Ready", "True", "Complete")
        schedule = {"mode": "Scheduled", "schedule": {"cron": "* * * * *"}}
        archives.apply("often", **schedule, **runtime)
        with s.marked("first run by schedule"):
            archives.await_all("often")
        with s.marked("second run by schedule, killed"):
            s.until(lambda: archives.drivers("often"), "a second run", 120)
            archives.kill(archives.drivers("often")[0])
            archives.await_all("often")
        end_load(s)
        with s.marked("last runs"):
            archives.await_all("often")
            assert archives.status("often")["lag"] == 0
        assert archives.claims("once")["CaughtUp"] == ("Unknown", "NotMeasured")
        if runtime:
            found = archives.driver_rights("once")
            assert found.denied <= REFUSED_TO_DRIVERS
            assert set(found.unused) <= FOR_FAILED
        assert archives.faults("often") == []
