"""What people ask for beside changes: approval, suspension, and streams that exist already."""

import asyncio
import json

import pytest

from liftbridge_client import connect
from liftbridge_testkit.kube.timeline import planned, reasons

pytestmark = [pytest.mark.e2e, pytest.mark.full]

HELD_SECONDS = 30


@pytest.mark.story("approval", minutes=5)
def test_roll_waits_for_an_approval_that_holds_until_its_end(play):
    with play(spec={"disruption": {"mode": "Approval"}}) as s:
        with s.marked("roll"):
            s.change(image=s.stage.next_image)
            s.await_condition("Stalled", "ApprovalRequired", 120)
            uids = {one["metadata"]["uid"] for one in s.get("pods")}
            s.rest(HELD_SECONDS)
            assert {one["metadata"]["uid"] for one in s.get("pods")} == uids
            plan = s.cluster["status"]["plan"]
            assert plan["needsApproval"]
            s.annotate("liftbridge.io/approve", plan["hash"])
            s.await_ready()
        s.check_roll("roll", brokers=3, gap_seconds_max=HELD_SECONDS)
    hashes = {
        one.body["status"]["plan"]["hash"]
        for one in s.timeline.of("LiftbridgeCluster")
        if one.body is not None and one.body["status"].get("plan")
    }
    assert hashes == {plan["hash"]}


@pytest.mark.story("suspended", minutes=5)
def test_cluster_is_suspended_and_resumed(play):
    with play() as s:
        with s.marked("suspended"):
            s.change(suspend=True)
            s.until(lambda: not s.get("pods"), "no pod left", 240)
        assert len(s.get("pvc")) == 3
        with s.marked("resumed"):
            s.change(suspend=False)
            s.await_ready()
            s.await_acks()
    told = [reason for status, reason in reasons(s.timeline, "Ready") if status == "False"]
    assert {"Suspended", "Resuming"} <= set(told)
    for mark, what in (("suspended", "Stop"), ("resumed", "Start")):
        assert planned(s.timeline, mark).steps == {(what, f"c-{number}") for number in range(3)}


STREAM = {
    "apiVersion": "liftbridge.io/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "first"},
    "spec": {
        "clusterRef": {"name": "c"},
        "streamName": "present",
        "subject": "present",
        "replicationFactor": 3,
    },
}


@pytest.mark.story("streams", minutes=4)
def test_stream_that_exists_is_adopted_by_one_resource_and_deleted_behind_its_back(play):
    with play() as s:
        asyncio.run(create(s.servers, "present"))
        s.kubectl("apply", "-f", "-", text=json.dumps(STREAM))
        s.await_streams("first")
        assert s.get("lbs", "first")["status"]["adopted"] is True
        # A second resource for the same stream keeps its hands off.
        second = STREAM | {"metadata": {"name": "second"}}
        s.kubectl("apply", "-f", "-", text=json.dumps(second))
        s.until(lambda: "Conflict" in reasons_of(s, "second"), "told of the conflict", 60)
        s.kubectl("delete", "lbs", "second", "--timeout=60s")
        assert asyncio.run(names(s.servers)) >= {"present", "orders", "events"}
        with s.marked("deleted behind its back"):
            asyncio.run(delete(s.servers, "present"))
            s.until(lambda: "present" in asyncio.run(names(s.servers)), "made again", 60)
    assert s.result.marks["deleted behind its back"] < 30


def reasons_of(s, name):
    return {one["reason"] for one in s.get("lbs", name)["status"]["conditions"]}


async def create(servers, name):
    async with connect(servers) as client:
        await client.streams.create(name, replication=3)


async def delete(servers, name):
    async with connect(servers) as client:
        await client.streams.delete(name)


async def names(servers):
    async with connect(servers) as client:
        return set((await client.metadata()).streams)
