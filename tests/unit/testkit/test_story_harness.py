"""What the harness of stories makes of its manifest, of watches and of the audit log."""

import io
import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from liftbridge_operator.model.crds.definitions import RESOURCES
from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.kube.cluster import CommandError, Kubernetes
from liftbridge_testkit.kube.definitions import in_place
from liftbridge_testkit.kube.nodes import Machines
from liftbridge_testkit.kube.release import USER, Killer, OperatorRelease, appended
from liftbridge_testkit.kube.stories import merged, objects
from liftbridge_testkit.kube.timeline import POD, SET, Timeline
from liftbridge_testkit.kube.watching import ObjectWatch, Recorder

SECONDS_MAX = 20.0


def test_manifest_gets_namespace_image_and_changes() -> None:
    found = objects(
        "story-a", "b:1", {"replicas": 5, "nats": {"embedded": None}}, {"partitions": 2}
    )
    space, cluster, *streams = found
    assert space["metadata"]["name"] == "story-a"
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {one["metadata"]["namespace"] for one in (cluster, *streams)} == {"story-a"}
    assert (cluster["spec"]["image"], cluster["spec"]["replicas"]) == ("b:1", 5)
    assert cluster["spec"]["nats"] == {}
    assert [one["spec"]["partitions"] for one in streams] == [2, 2]
    assert [one["spec"]["config"] for one in streams] == [{"minISR": 2}] * 2


def test_changes_are_merged_into_mappings_and_replace_the_rest() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert merged(base, {"a": {"b": 3, "c": None, "e": {}}, "d": [2]}) == {
        "a": {"b": 3, "e": {}},
        "d": [2],
    }
    assert base == {"a": {"b": 1, "c": 2}, "d": [1]}


def test_machines_of_others_are_not_hurt() -> None:
    with pytest.raises(CommandError, match="given"):
        Machines(Kubernetes(Cluster.GIVEN, {}))


def test_lines_are_told_when_they_are_whole() -> None:
    file = io.StringIO("one\ntwo")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        position = file.tell()
        file.write(" and more\n")
        file.seek(position)

    found = appended(file, lambda: len(waits) > 1, wait)
    assert [next(found), next(found)] == ["one\n", "two and more\n"]
    assert len(waits) == 1


class BusyRelease(OperatorRelease):
    """An operator whose API server does not answer when first asked who leads."""

    def __init__(self) -> None:
        self.asked = 0

    def signal_leader(self, number: signal.Signals) -> dict[str, Any] | None:
        self.asked += 1
        if self.asked < 3:
            raise CommandError("connection refused")
        assert number is signal.SIGKILL
        return {}


def test_operator_is_killed_although_the_api_server_is_away(tmp_path: Path) -> None:
    write = {
        "stage": "ResponseComplete",
        "objectRef": {"resource": "pods", "name": "c-0"},
        "requestReceivedTimestamp": "2026-01-01T00:00:00Z",
        "user": {"username": USER},
        "verb": "delete",
    }
    log = tmp_path / "audit.log"
    log.touch()
    kubernetes = Kubernetes(Cluster.OWN, {"KUBECONFIG": str(tmp_path / "config")})
    operator = BusyRelease()
    killer = Killer(kubernetes, operator, Random(1))
    log.write_text((json.dumps(write) + "\n") * killer.write)
    killer.start()
    killer.wait_for(1, SECONDS_MAX)
    killer.stop()
    assert (operator.asked, killer.killed) == (3, "delete pods c-0")


def replicas(name: str, count: int) -> dict[str, object]:
    metadata = {"name": name, "uid": name, "generation": 1}
    return {"kind": SET, "metadata": metadata, "spec": {"replicas": count}}


def fake_kubectl(folder: Path) -> Kubernetes:
    """A kubectl that lists once `a` and `b`, then `b` alone; each watch ends after two events."""
    events = [
        {"type": "ADDED", "object": replicas("a", 1)},
        {"type": "ADDED", "object": replicas("b", 2)},
        {"type": "DELETED", "object": replicas("b", 2)},
    ]
    (folder / "first").write_text(json.dumps({"items": [replicas("a", 1), replicas("b", 2)]}))
    (folder / "later").write_text(json.dumps({"items": [replicas("b", 2)]}))
    (folder / "watched first").write_text("\n".join(map(json.dumps, events[:2])) + "\n")
    (folder / "watched later").write_text("\n".join(map(json.dumps, events[1:])) + "\n")
    program = folder / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        f"cd '{folder}'\n"
        "if [ -e again ]; then turn=later; else turn=first; fi\n"
        'case "$*" in\n'
        '  *--watch*) cat "watched $turn"; touch again ;;\n'
        '  *) cat "$turn" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    return Kubernetes(Cluster.GIVEN, {"PATH": f"{folder}:/usr/bin:/bin"})


def test_watch_that_ends_is_made_again_and_sees_who_went_meanwhile(tmp_path: Path) -> None:
    timeline = Timeline("a")
    recorder = Recorder(timeline, tmp_path / "timeline.jsonl")
    watch = ObjectWatch(recorder, fake_kubectl(tmp_path), "ns", SET)
    watch.start()
    watch.wait_for(4, SECONDS_MAX)
    watch.stop()
    recorder.close()
    seen = [(one.name, one.body and one.body["spec"]["replicas"]) for one in timeline.seen]
    assert seen[:5] == [("a", 1), ("b", 2), ("a", None), ("b", 2), ("b", None)]
    kept = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert [line[1:3] for line in kept][:2] == [[SET, "a"], [SET, "b"]]
    assert timeline.wanted(timeline.seen[0].at) == 1
    assert list(timeline.of(POD)) == []


def test_replicas_in_sync_are_kept_when_they_change(tmp_path: Path) -> None:
    timeline = Timeline("c")
    recorder = Recorder(timeline, tmp_path / "timeline.jsonl")
    for sizes, without in [({"s/0": 3}, ()), ({"s/0": 3}, ()), ({"s/0": 2}, ("s/1",))]:
        recorder.saw_isr(sizes, without)
    recorder.close()
    assert [(one.sizes, one.leaderless) for one in timeline.isr] == [
        ({"s/0": 3}, ()),
        ({"s/0": 2}, ("s/1",)),
    ]


NEW_DEFINITION = """#!/bin/sh
cd '{folder}'
case "$*" in
  *apply*) ;;
  *delete*) echo "$*" > deleted ;;
  *"get crd "*)
    echo >> asked
    case "$(wc -l < asked)" in
      1) echo '{{"status": {{"conditions": null}}}}' ;;
      2) echo '{{"status": {{"conditions": [{{"type": "Established", "status": "False"}}]}}}}' ;;
      3) echo "the server is away" >&2; exit 1 ;;
      *) echo '{{"status": {{"conditions": [{{"type": "Established", "status": "True"}}]}}}}' ;;
    esac ;;
esac
"""


def test_definition_without_conditions_is_waited_for(tmp_path: Path) -> None:
    """`kubectl wait` fails on one that was created a moment ago."""
    program = tmp_path / "kubectl"
    program.write_text(NEW_DEFINITION.format(folder=tmp_path))
    program.chmod(0o755)
    kubernetes = Kubernetes(Cluster.GIVEN, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with in_place(kubernetes):
        assert len((tmp_path / "asked").read_text()) == 3 + len(RESOURCES)
        assert not (tmp_path / "deleted").exists()
    assert (tmp_path / "deleted").exists()
