"""Stories that every run plays, each under load: what happens to a cluster on an ordinary day."""

import pytest

from liftbridge_testkit.kube.timeline import planned, reasons

pytestmark = pytest.mark.e2e

FIRST_READY_SECONDS_MAX = 60
MISSING_IMAGE = "liftbridge.test/broker:there-is-none"


@pytest.mark.story("image-roll", minutes=4)
def test_roll_for_an_image(play):
    with play() as s:
        assert s.result.marks["ready from nothing"] < FIRST_READY_SECONDS_MAX
        with s.marked("roll"):
            s.change(image=s.stage.next_image)
            s.await_ready()
        s.check_roll("roll", brokers=3)


@pytest.mark.story("three-four-three", minutes=5)
def test_cluster_grows_by_one_broker_and_shrinks_again(play):
    """And the operator is killed once meanwhile, at a write that is drawn by chance."""
    with play(kills_operator=True) as s:
        with s.marked("to four brokers"):
            s.change(replicas=4)
            s.await_ready()
        brokers = {one["id"]: one for one in s.cluster["status"]["brokers"]}
        assert sorted(brokers) == ["c-0", "c-1", "c-2", "c-3"]
        assert brokers["c-3"].get("partitions", 0) > 0
        s.await_acks()
        with s.marked("to three brokers"):
            s.change(replicas=3)
            s.await_ready()
        assert len(s.cluster["status"]["brokers"]) == 3
        claims = {one["metadata"]["name"] for one in s.get("pvc")}
        assert "liftbridge-data-c-3" in claims
    assert s.result.killed != ""
    # Nobody was restarted for it, and all of it was told before.
    assert s.result.restarts == []
    assert planned(s.timeline, "to four brokers").steps == {("AddBroker", "c-3")}
    assert planned(s.timeline, "to three brokers").steps == {("RemoveBroker", "c-3")}


@pytest.mark.story("node-crash", minutes=4)
def test_node_crashes_and_comes_back(play):
    with play() as s:
        node = s.node_of(2)
        with s.marked("node down"), s.crashed(node):
            # Others go on, on two replicas of three.
            s.await_acks(more=40)
            s.until(lambda: not s.is_ready(), "told that a broker is away", 90)
        s.await_nodes()
        with s.marked("node back"):
            s.await_ready()
        assert s.node_of(2) == node


@pytest.mark.story("bad-image", minutes=4)
def test_bad_image_stops_at_one_broker_and_is_taken_back(play):
    with play() as s:
        uids = {one["metadata"]["uid"] for one in s.get("pods")}
        with s.marked("bad image"):
            s.change(image=MISSING_IMAGE)
            s.until(lambda: stalled(s), "told that the image cannot be had")
            s.await_acks()
        kept = {one["metadata"]["uid"] for one in s.get("pods")}
        assert len(uids & kept) == 2
        with s.marked("taken back"):
            s.change(image=s.stage.image)
            s.await_ready()
        last = {one["metadata"]["uid"] for one in s.get("pods")}
        assert len(uids & last) == 2


def stalled(s):
    told = [reason for status, reason in reasons(s.timeline, "Stalled") if status == "True"]
    return {"ImagePull", "BadRevision"} & set(told)
