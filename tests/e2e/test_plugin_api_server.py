"""The plugin as people call it, `kubectl liftbridge`, with their rights, on a real API server.

No operator runs: what it would tell is written by hand, and what it would read is looked at.
"""

import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from liftbridge_testkit.kube.cluster import Kubernetes
from liftbridge_testkit.kube.definitions import in_place
from liftbridge_testkit.kube.person import NAME, broker, cluster, plan, stream
from liftbridge_testkit.kube.plugin import plugin, with_plugin

pytestmark = pytest.mark.e2e

NAMESPACE = "plugin-api-server"
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "person"},
    "rules": [
        {
            "apiGroups": ["liftbridge.io"],
            "resources": ["liftbridgeclusters"],
            "verbs": ["get", "list", "patch"],
        },
        {"apiGroups": ["liftbridge.io"], "resources": ["streams"], "verbs": ["list"]},
    ],
}
"""All that the documents say a person needs."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster with its definitions, and people in it.

    Attributes:
        folder: Where the plugin lies, and kubeconfigs of people do.
    """

    kubernetes: Kubernetes
    folder: Path

    def kubectl(self, *words: str, body: object = None) -> str:
        """As the administrator."""
        text = json.dumps(body) if body is not None else ""
        return self.kubernetes.kubectl("-n", NAMESPACE, *words, text=text)

    def plugin(self, *words: str, who: str = "person") -> subprocess.CompletedProcess[str]:
        """`kubectl liftbridge` as somebody; `admin` is the administrator."""
        environ = dict(self.kubernetes.environ)
        if who != "admin":
            environ["KUBECONFIG"] = str(self.folder / who)
        return plugin(environ, self.folder, *words)

    def invite(self, who: str, token: str) -> None:
        """Write the kubeconfig of somebody whose context is the namespace."""
        raw = json.loads(
            self.kubernetes.kubectl("config", "view", "--flatten", "--minify", "-ojson")
        )
        raw["users"] = [{"name": who, "user": {"token": token}}]
        context = {"cluster": raw["clusters"][0]["name"], "user": who, "namespace": NAMESPACE}
        raw["contexts"] = [{"name": who, "context": context}]
        raw["current-context"] = who
        (self.folder / who).write_text(json.dumps(raw), encoding="utf-8")

    def tell(self, **status: Any) -> None:
        """Write a status, as the operator would."""
        made = cluster(namespace=NAMESPACE, **status)["status"]
        self.kubectl(
            *("patch", f"lbc/{NAME}", "--subresource=status", "--type=merge"),
            *("-p", json.dumps({"status": {"plan": None, "waits": None} | made})),
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Of the cluster."""
        found = self.kubectl("get", f"lbc/{NAME}", "-ojson", "--show-managed-fields")
        metadata: dict[str, Any] = json.loads(found)["metadata"]
        return metadata

    @property
    def annotations(self) -> dict[str, str]:
        """Those by which the operator is asked for something."""
        found = self.metadata.get("annotations", {})
        return {key: text for key, text in found.items() if key.startswith("liftbridge.io/")}


@pytest.fixture(scope="module")
def installed(kubernetes: Kubernetes, tmp_path_factory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("people")
    with_plugin(folder)
    with in_place(kubernetes):
        kubernetes.kubectl("create", "namespace", NAMESPACE)
        place = Place(kubernetes, folder)
        place.kubectl("create", "-f", "-", body=ROLE)
        for who in ("person", "stranger"):
            place.kubectl("create", "serviceaccount", who)
            place.invite(who, place.kubectl("create", "token", who).strip())
        account = f"--serviceaccount={NAMESPACE}:person"
        place.kubectl("create", "rolebinding", "person", "--role=person", account)
        place.invite("unknown", "nobody-knows-this-token")
        yield place
        kubernetes.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def place(installed: Place) -> Iterator[Place]:
    """With a cluster that has a plan."""
    body = cluster(namespace=NAMESPACE)
    installed.kubectl("create", "-f", "-", body={k: body[k] for k in body if k != "status"})
    installed.tell(plan=plan())
    yield installed
    installed.kubectl("delete", f"lbc/{NAME}", "--ignore-not-found")


def test_status_and_plan_show_what_the_operator_tells(place: Place) -> None:
    made = stream("created", namespace=NAMESPACE)
    place.kubectl("create", "-f", "-", body={k: made[k] for k in made if k != "status"})
    shown = place.plugin("status", NAME)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"{NAMESPACE}/{NAME}  Ready: True")
    assert "orders-2  yes" in shown.stdout
    assert f"{NAMESPACE}/created" in shown.stdout
    document = json.loads(place.plugin("status", NAME, "-o", "json").stdout)
    assert document["isCurrent"] is True
    assert document["status"]["plan"]["hash"] == "abc123"
    assert NAME in place.plugin("status").stdout
    assert "1     Restart  orders-2  spec" in place.plugin("plan").stdout
    place.kubectl("delete", "lbs/created")


def test_plan_is_approved_by_its_hash_and_owned_by_the_plugin(place: Place) -> None:
    refused = place.plugin("approve", NAME, "--hash", "def456")
    assert refused.returncode == 1
    assert "the plan is now abc123, not def456" in refused.stderr
    assert place.plugin("approve", NAME).returncode == 2  # nobody to ask
    assert place.annotations == {}
    assert place.plugin("approve", NAME, "--hash", "abc123").returncode == 0
    assert place.annotations == {"liftbridge.io/approve": "abc123"}
    fields = place.metadata["managedFields"]
    owners = {one["manager"] for one in fields if "liftbridge.io/approve" in json.dumps(one)}
    assert owners == {"kubectl-liftbridge"}


def test_plan_of_a_former_specification_is_not_approved(place: Place) -> None:
    change = json.dumps({"spec": {"disruption": {"mode": "Approval"}}})
    place.kubectl("patch", f"lbc/{NAME}", "--type=merge", "-p", change)
    refused = place.plugin("approve", NAME, "--yes")
    assert refused.returncode == 1
    assert "has not reconciled generation 2 yet" in refused.stderr
    assert place.annotations == {}


def test_restart_is_asked_for_as_the_operator_reads_it(place: Place) -> None:
    assert place.plugin("restart", NAME, "--broker", "1", "--yes").returncode == 0
    assert place.plugin("restart", NAME, "--broker", "2", "--yes").returncode == 0
    assert place.annotations == {"liftbridge.io/restart-pods": "pod-1,pod-2"}
    assert place.plugin("restart", NAME, "--yes").returncode == 0
    assert place.annotations["liftbridge.io/restart"].startswith("20")
    late = place.plugin("restart", NAME, "--broker", "1", "--yes", "--wait", "--timeout", "1s")
    assert late.returncode == 4
    assert "orders-1 not restarted yet" in late.stderr


def test_drain_is_asked_for_seen_to_be_done_and_taken_back(place: Place) -> None:
    brokers = [broker(0), broker(1, cordoned=True, leaders=0), broker(2)]
    place.tell(brokers=brokers)
    done = place.plugin("drain", "orders-1", "--timeout", "30s")
    assert (done.returncode, "(on node-1)" in done.stdout) == (0, True)
    assert place.plugin("drain", "--node", "node-2", "--no-wait").returncode == 0
    assert place.annotations == {"liftbridge.io/drain": "orders-1,orders-2"}
    assert place.plugin("drain", "orders-0").returncode == 1  # nobody would be left
    over = place.plugin("drain", "orders-1", "orders-2", "--undo", "--no-wait")
    assert over.returncode == 0
    assert place.annotations == {}


def unpacked(path: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(path) as tar:
        for one in tar.getmembers():
            content = tar.extractfile(one)
            assert content is not None
            found[one.name.partition("/")[2]] = content.read().decode()
    return found


def test_bundle_of_a_person_notes_what_is_refused(place: Place, tmp_path: Path) -> None:
    done = place.plugin("support-bundle", NAME, "-f", str(tmp_path / "b.tar.gz"))
    assert done.returncode == 0
    files = unpacked(tmp_path / "b.tar.gz")
    refused = {one["what"]: one["why"] for one in json.loads(files["manifest.json"])["refused"]}
    assert (
        refused["pods"]
        == refused["events"]
        == refused["config-maps"]
        == "you are not allowed to read it"
    )
    assert json.loads(files["cluster.json"])["metadata"]["name"] == NAME
    assert json.loads(files["versions.json"])["apiServer"]["gitVersion"].startswith("v1.")


def test_bundle_of_an_administrator_has_objects_and_events(place: Place, tmp_path: Path) -> None:
    labels = {"liftbridge.io/cluster": NAME}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "orders-config-1", "labels": labels},
        "data": {"broker.yaml": "nats:\n  password: hidden\n"},
    }
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "orders.1"},
        "eventTime": "2026-11-21T10:00:00.000000Z",
        "reportingController": "liftbridge.io/operator",
        "reportingInstance": "test",
        "action": "Ready",
        "reason": "Ready",
        "type": "Normal",
        "note": "It is ready.",
        "regarding": {"kind": "LiftbridgeCluster", "name": NAME, "namespace": NAMESPACE},
    }
    for one in (config, event):
        place.kubectl("apply", "-f", "-", body=one)
    words = ("support-bundle", NAME, "-n", NAMESPACE, "-f", str(tmp_path / "b.tar.gz"))
    done = place.plugin(*words, who="admin")
    assert done.returncode == 0
    files = unpacked(tmp_path / "b.tar.gz")
    assert [one["note"] for one in json.loads(files["events.json"])] == ["It is ready."]
    assert json.loads(files["config-maps.json"])[0]["metadata"]["name"] == "orders-config-1"
    assert not any("hidden" in text for text in files.values())
    manifest = json.loads(files["manifest.json"])
    assert [one["what"] for one in manifest["refused"]] == ["stateful set"]  # none is there


def test_people_without_rights_are_told_so(place: Place) -> None:
    stranger = place.plugin("status", NAME, who="stranger")
    assert stranger.returncode == 1
    assert stranger.stderr.startswith("kubectl liftbridge: you are not allowed to do this: GET")
    assert stranger.stderr.count("\n") == 1
    unknown = place.plugin("status", NAME, who="unknown")
    assert unknown.returncode == 3
    assert "does not accept these credentials" in unknown.stderr
