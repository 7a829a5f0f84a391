"""Clients in another namespace that have nothing but the Secret of a user, and one of NATS."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from liftbridge_testkit.kube.cluster import timed
from liftbridge_testkit.kube.definitions import until
from liftbridge_testkit.repository import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.full]

OWN, OTHER = "users-cluster", "users-app"
USERS = {"billing": "token", "reports": "certificate"}
LIFETIME = "3m"
"""Of both credentials: they are replaced after two minutes, and end a minute later."""

WAYS = ("single", "batches", "read")
END_SECONDS_MAX = 5.0
MANIFESTS = ROOT / "tests" / "e2e" / "manifests"
LABELS = {"pod-security.kubernetes.io/enforce": "restricted"}


def manifests(image: str) -> list[dict[str, Any]]:
    """A cluster with access control, two streams, and two users of one of them."""
    group = {"apiVersion": "liftbridge.io/v1alpha1"}

    def named(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": OWN}
        return {**group, "kind": kind, "metadata": metadata, "spec": spec}

    cluster = {
        "version": "0.1.0",
        "image": image,
        "replicas": 3,
        "nats": {"embedded": {"cpu": "50m", "memory": "128Mi"}},
        "storage": {"data": {"size": "1Gi"}},
        "tls": {"mode": "Generated", "clientAuth": "Optional"},
        "listeners": [{"name": "inside", "tls": True}],
        "access": {"enabled": True, "superUsers": ["ops"], "tokens": True},
        "resources": {"requests": {"cpu": "50m", "memory": "192Mi"}},
    }
    proofs = {"token": {"lifetime": LIFETIME}, "certificate": {"duration": LIFETIME}}
    return [
        *(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": namespace, "labels": LABELS},
            }
            for namespace in (OWN, OTHER)
        ),
        named("LiftbridgeCluster", "c", cluster),
        *(
            named(
                "Stream",
                name,
                {"clusterRef": {"name": "c"}, "subject": name, "replicationFactor": 3},
            )
            for name in ("private", "other")
        ),
        *(
            named(
                "LiftbridgeUser",
                name,
                {
                    "clusterRef": {"name": "c"},
                    "authentication": {proof: proofs[proof]},
                    "access": [
                        {
                            "resource": "Stream",
                            "name": "private",
                            "operations": ["Publish", "Read"],
                        }
                    ],
                },
            )
            for name, proof in USERS.items()
        ),
    ]


def pod(
    name: str, namespace: str, image: str, program: str, *arguments: str, secret: str, path: str
) -> dict[str, Any]:
    """A pod that runs a program with one Secret, and nothing else."""
    text = (MANIFESTS / program).read_text(encoding="utf-8")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10_001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", text, *arguments],
                    "env": [{"name": "LIFTBRIDGE_CONFIG", "value": f"{path}/profiles.toml"}],
                    "volumeMounts": [{"name": "given", "mountPath": path, "readOnly": True}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [{"name": "given", "secret": {"secretName": secret}}],
        },
    }


class Stand:
    """The cluster, its users, and their clients in another namespace."""

    def __init__(self, stage):
        self.kubectl = stage.kubernetes.kubectl
        self.image = stage.image

    def apply(self, *bodies):
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(bodies))

    def get(self, kind, name):
        return json.loads(self.kubectl("-n", OWN, "get", kind, name, "-o", "json"))

    def credential(self, name):
        data = self.get("secret", name)["data"]
        return data.get("token") or data["tls.crt"]

    def ends(self, name):
        """When the credential in the Secret of a user ends, in Unix seconds."""
        text = self.get("lbu", name)["status"]["expires"]
        return datetime.fromisoformat(text).timestamp()

    def hand_over(self, name):
        """Copy what a Secret has into the namespace of the clients."""
        body = self.get("secret", name)
        body["metadata"] = {"name": name, "namespace": OTHER}
        self.apply(body)

    def client(self, name):
        path = "/etc/liftbridge"
        self.apply(pod(name, OTHER, self.image, "user_client.py", secret=name, path=path))

    def has(self, name, wanted):
        """Whether the client has a credential; a changed pod makes the kubelet look at once."""
        self.kubectl("-n", OTHER, "annotate", "pod", name, "--overwrite", f"looked={now()}")
        key = "token" if USERS[name] == "token" else "tls.crt"
        shown = ("exec", name, "--", "base64", "-w0", f"/etc/liftbridge/{key}")
        return self.kubectl("-n", OTHER, *shown) == wanted

    def lines(self, word, name, way="", namespace=OTHER):
        log = self.kubectl("-n", namespace, "logs", name)
        found = (line.split() for line in log.splitlines())
        return [line[1:] for line in found if line[0] == word and way in ("", line[1])]

    def await_work(self, name):
        """Wait until the client has gone on in each way."""
        before = {way: len(self.lines("done", name, way)) for way in WAYS}

        def is_further(way):
            return len(self.lines("done", name, way)) > before[way] + 2

        until(lambda: all(map(is_further, WAYS)), f"work of {name}", 60)


def now():
    return datetime.now(UTC).timestamp()


@pytest.fixture
def stand(stage):
    made = Stand(stage)
    try:
        made.apply(*manifests(stage.image))
        yield made
    finally:
        made.kubectl("delete", "namespace", OTHER, OWN, "--ignore-not-found", "--wait=true")


@pytest.mark.story("users", minutes=7)
def test_secret_of_a_user_is_all_that_a_client_needs_until_the_user_is_deleted(stand):
    ready = ("-n", OWN, "wait", "--for=condition=Ready", "--timeout=240s")
    with timed("cluster, streams and users ready"):
        stand.kubectl(*ready, "lbc/c", "lbs/private", "lbs/other", *(f"lbu/{one}" for one in USERS))
    first = {name: (stand.credential(name), stand.ends(name)) for name in USERS}
    for name in USERS:
        stand.hand_over(name)
        stand.client(name)
    for name in USERS:
        until(lambda name=name: stand.lines("sees", name), f"{name} has connected", 60)
        stand.await_work(name)
        assert stand.lines("known", name) == [["as", name]]
        assert dict(stand.lines("refused", name)) == {
            "create": "PermissionDeniedError",
            "publish": "NotFoundError",  # what it may not use is not shown to it
            "subject": "PermissionDeniedError",
        }
        assert stand.lines("sees", name) == [["private"]]
        whoami = ("exec", name, "--", "liftbridge", "whoami", "-o", "json")
        assert json.loads(stand.kubectl("-n", OTHER, *whoami))["principal"] == name

    # An application publishes by NATS, and neither hears nor says what is between brokers.
    own = f"liftbridge-{stand.get('lbc', 'c')['status']['clusterId']}"
    inside = [f"_LIFTBRIDGE.{own}.any", f"{own}.any"]
    given = {"secret": "c-nats-client", "path": "/etc/nats"}
    stand.apply(pod("application", OWN, stand.image, "nats_client.py", *inside, **given))
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    stand.kubectl("-n", OWN, "wait", phase, "--timeout=90s", "pod/application")
    denied = [" ".join(one).lower() for one in stand.lines("denied", "application", namespace=OWN)]
    for subject in inside:
        for act in ("subscription to", "publish to"):
            assert any(act in one and subject.lower() in one for one in denied), denied
    (heard,) = stand.lines("heard", "application", namespace=OWN)
    assert "private" in heard
    assert not [one for one in heard if one.startswith(("_LIFTBRIDGE", "liftbridge-"))]
    until(lambda: stand.lines("heard", "billing"), "messages of the application", 30)

    # New credentials reach the clients, the former ones end, and no call fails.
    with timed("both credentials replaced, and the former ones ended"):
        for name, (former, _) in first.items():
            until(lambda name=name, was=former: stand.credential(name) != was, "renewed", 180)
            stand.hand_over(name)
            wanted = stand.credential(name)
            until(lambda name=name, text=wanted: stand.has(name, text), f"{name} has it", 60)
        last = max(ends for _, ends in first.values())
        until(lambda: now() > last + END_SECONDS_MAX, "the end of the former credentials", 180)
    for name in USERS:
        stand.await_work(name)
        assert stand.lines("failed", name) == []

    # The end of a resource is that of its access.
    for name in USERS:
        began = now()
        with timed(f"{name} deleted, and its calls ended"):
            stand.kubectl("-n", OWN, "delete", "lbu", name, "--timeout=30s")
            until(lambda name=name: len(stand.lines("failed", name)) == len(WAYS), "refused", 30)
        took = {way: float(moment) - began for way, moment, _ in stand.lines("failed", name)}
        assert max(took.values()) < END_SECONDS_MAX, took
