"""Pods, nodes and networks that go away under load, and come back or do not."""

import threading

import pytest

from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.timeline import downs, most_down, planned

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NOTICED_SECONDS_MAX = 90


@pytest.mark.story("pod-killed", minutes=4)
def test_brokers_are_killed_one_after_another(play):
    with play() as s:
        for number in range(3):
            with s.marked(f"kill -9 of c-{number}"):
                before = restarts_of(s, number)
                s.kill_pod(number)
                s.until(lambda n=number, b=before: restarts_of(s, n) > b, "started again", 90)
                s.await_acks()
                s.await_ready()
    assert max(s.result.gaps[name] for name in s.result.gaps if "kill" in name) < 10


def restarts_of(s, number):
    listed = s.pod(number)["status"]["containerStatuses"]
    return next(one["restartCount"] for one in listed if one["name"] == "broker")


@pytest.mark.story("pod-deleted", minutes=4)
def test_pods_are_deleted_one_after_another(play):
    with play() as s:
        for number in range(3):
            uid = s.pod(number)["metadata"]["uid"]
            with s.marked(f"c-{number} deleted"):
                s.delete_pod(number)
                s.until(lambda n=number, u=uid: is_another(s, n, u), "a new pod", 120)
                s.await_ready()
    assert max(s.result.gaps[name] for name in s.result.gaps if "deleted" in name) < 10


def is_another(s, number, uid):
    return s.pod(number)["metadata"]["uid"] != uid


@pytest.mark.story("node-cut", minutes=5)
def test_node_is_cut_off_and_joined_again(play):
    with play() as s:
        with s.marked("cut off"), s.cut_off(s.node_of(0)):
            s.await_acks(more=40)
            s.until(lambda: not s.is_ready(), "told that a broker is away", NOTICED_SECONDS_MAX)
        s.await_nodes()
        with s.marked("joined"):
            s.await_ready()
    # It may have been led from there: that is how long others needed to take over.
    assert s.result.gaps["cut off"] < 10


@pytest.mark.story("node-drained", minutes=4)
def test_node_is_drained(play):
    with play() as s:
        with s.marked("drained"), s.drained(s.node_of(1)):
            s.await_acks()
        with s.marked("back"):
            s.await_ready()
        for mark in s.timeline.marks[1:]:
            assert len(most_down(downs(s.timeline), mark.begin, mark.end)) <= 1


@pytest.mark.story("two-nodes-drained", minutes=6)
def test_second_node_is_not_drained_before_the_first_broker_is_back(play):
    with play() as s:
        first, second = s.node_of(0), s.node_of(1)
        assert first != second
        errors = []

        def drain(node):
            try:
                with s.drained(node):
                    return
            except CommandError as error:
                errors.append(str(error))

        with s.marked("both drained"):
            threads = [threading.Thread(target=drain, args=(node,)) for node in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            s.await_ready()
        assert errors == []
        (mark,) = [one for one in s.timeline.marks if one.name == "both drained"]
        assert len(most_down(downs(s.timeline), mark.begin, mark.end)) == 1


@pytest.mark.story("broker-replaced", minutes=7)
def test_broker_is_replaced_on_another_node_after_its_node_and_volume_are_lost(play):
    with play() as s:
        node = s.node_of(2)
        claim = s.get("pvc", "liftbridge-data-c-2")["metadata"]["uid"]
        try:
            with s.marked("node lost"):
                s.machines.node("destroy", node)
                s.kubernetes.kubectl("delete", "node", node)
                s.await_acks(more=40)
                s.until(lambda: not s.is_ready(), "told that a broker is away", 120)
            with s.marked("replaced"):
                s.change(replaceBrokers=[{"broker": 2, "volumeUID": claim}])
                s.await_ready()
            assert s.node_of(2) != node
            assert s.get("pvc", "liftbridge-data-c-2")["metadata"]["uid"] != claim
            # It lost nothing, for it has everything from the others.
            assert set(s.timeline.isr[-1].sizes.values()) == {3}
            assert planned(s.timeline, "replaced").steps == {("ReplaceVolume", "c-2")}
        finally:
            s.machines.node("start", node)
            s.until(lambda: len(s.get("nodes")) == 3, "the node is back", 120)
            s.await_nodes()
            s.machines.load_images(s.stage.image, s.stage.operator_image)
            s.machines.retag(s.stage.image, s.stage.next_image)
