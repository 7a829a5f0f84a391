"""People who look after a cluster under load with `kubectl liftbridge`."""

import json
import tarfile

import pytest

from liftbridge_testkit.kube.plugin import plugin, with_plugin

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.mark.story("plugin", minutes=6)
def test_people_restart_approve_drain_and_gather(play, tmp_path):
    with_plugin(tmp_path)
    with play(spec={"disruption": {"mode": "Approval"}}) as s:

        def ask(*words):
            done = plugin(s.kubernetes.environ, tmp_path, "-n", s.namespace, *words)
            assert done.returncode == 0, done.stderr
            return done.stdout

        with s.marked("restart of one"):
            uids = uids_of(s)
            ask("restart", "c", "--broker", "1", "--yes")
            s.await_condition("Stalled", "ApprovalRequired", 120)
            made = json.loads(ask("plan", "c", "-o", "json"))["plan"]
            assert [(one["action"], one["object"]) for one in made["steps"]] == [("Restart", "c-1")]
            assert uids_of(s) == uids
            ask("approve", "c", "--hash", made["hash"])
            s.await_ready()
            assert {name for name, uid in uids_of(s).items() if uid != uids[name]} == {"c-1"}
        with s.marked("drained"):
            assert "c-2" in ask("drain", "c-2", "--timeout", "90s")
            assert leaders_of(s, "c-2") == 0
        with s.marked("drain is over"):
            ask("drain", "c-2", "--undo", "--timeout", "90s")
            s.until(lambda: leaders_of(s, "c-2") > 0, "it leads again", 120)
            s.await_ready()
        assert "Ready: True" in ask("status", "c")
        ask("support-bundle", "c", "-f", str(tmp_path / "bundle.tar.gz"))
    with tarfile.open(tmp_path / "bundle.tar.gz") as bundle:
        found = {one.name.partition("/")[2] for one in bundle.getmembers()}
    assert {
        "cluster.json",
        "pods.json",
        "events.json",
        f"logs/{s.namespace}/c-0/broker.log",
    } <= found


def uids_of(s):
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in s.get("pods")}


def leaders_of(s, broker):
    return next(one["leaders"] for one in s.cluster["status"]["brokers"] if one["id"] == broker)
