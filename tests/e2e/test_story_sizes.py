"""Clusters that grow and shrink under load, and volumes that grow."""

import signal

import pytest

from liftbridge_testkit.kube.timeline import planned

pytestmark = [pytest.mark.e2e, pytest.mark.full]

STOPPED_SECONDS = 30


@pytest.mark.story("three-five-three", minutes=9)
def test_cluster_grows_to_five_brokers_and_shrinks_to_three(play):
    with play() as s:
        with s.marked("to five brokers"):
            s.change(replicas=5)
            s.await_ready(900)
        voters = [one["id"] for one in s.cluster["status"]["brokers"] if one.get("voter")]
        assert len(voters) == 5
        s.await_acks()
        with s.marked("to three brokers"):
            s.change(replicas=3)
            s.await_ready(900)
        assert [one["id"] for one in s.cluster["status"]["brokers"]] == ["c-0", "c-1", "c-2"]
    assert s.result.restarts == []
    both = ("c-3", "c-4")
    assert planned(s.timeline, "to five brokers").steps == {("AddBroker", one) for one in both}
    assert planned(s.timeline, "to three brokers").steps == {("RemoveBroker", one) for one in both}


@pytest.mark.story("two-one", minutes=5)
def test_cluster_of_two_shrinks_to_one(play):
    every = {"replicationFactor": -1, "config": {"minISR": 1}}
    with play(spec={"replicas": 2}, stream=every) as s:
        with s.marked("to one broker"):
            s.change(replicas=1)
            s.await_ready()
        assert [one["id"] for one in s.cluster["status"]["brokers"]] == ["c-0"]


@pytest.mark.story("one-three", minutes=5)
def test_cluster_of_one_grows_to_three(play):
    one = {"replicationFactor": 1, "config": {"minISR": 1}}
    with play(spec={"replicas": 1}, stream=one) as s:
        with s.marked("to three brokers"):
            s.change(replicas=3)
            s.await_ready()
        s.await_acks()
        with s.marked("three replicas"):
            for name in s.streams:
                s.kubectl("patch", "lbs", name, "--type=merge", "--patch", FACTOR_THREE)
            s.await_streams(*s.streams)
            s.until(lambda: fully_replicated(s), "three replicas of each partition in sync")
        assert len(s.cluster["status"]["brokers"]) == 3


FACTOR_THREE = '{"spec": {"replicationFactor": 3, "config": {"minISR": 2}}}'


def fully_replicated(s):
    return len(s.timeline.isr[-1].sizes) == 16 and set(s.timeline.isr[-1].sizes.values()) == {3}


@pytest.mark.story("growth", minutes=6)
def test_volumes_grow_while_they_are_written_to(play):
    storage = {"data": {"size": "1Gi", "storageClassName": "disk"}}
    with play(spec={"storage": storage}) as s:
        with s.marked("growth"):
            s.change(storage={"data": {"size": "1280Mi"}})
            s.await_ready()
        sizes = {one["status"]["capacity"]["storage"] for one in s.get("pvc")}
        assert {int(size) for size in sizes} == {1280 * 2**20}
    claims = {("GrowVolume", f"liftbridge-data-c-{number}") for number in range(3)}
    assert planned(s.timeline, "growth").steps >= claims


@pytest.mark.story("leader-stopped", minutes=8)
def test_operator_that_leads_is_stopped_for_half_a_minute_in_a_scale_in(play):
    """Another one takes over; the one that was stopped must not go on with what it had in mind."""
    with play(spec={"replicas": 4}, kills_operator=False) as s:
        with s.marked("to three brokers"):
            s.change(replicas=3)
            s.until(lambda: moving(s), "that brokers are being emptied", 120)
            stopped = s.stage.operator.signal_leader(signal.SIGSTOP)
            assert stopped is not None
            try:
                s.rest(STOPPED_SECONDS)
                leads = s.stage.operator.leader()
            finally:
                s.stage.operator.signal(stopped, signal.SIGCONT)
            s.await_ready()
        assert leads is not None
        assert leads["metadata"]["name"] != stopped["metadata"]["name"]
    assert s.result.restarts == []


def moving(s):
    return any(one.get("cordoned") for one in s.cluster["status"].get("brokers", ()))
