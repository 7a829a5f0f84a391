"""The operator's rights on a real API server: each of them is used, and none is missing.

The tour is made under the account that the chart creates, with nothing but what the chart grants;
what was used is read from the audit log. An API server with its etcd is enough.
"""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from random import Random

import pytest

from liftbridge_operator.kube.client import KubeClient, connect
from liftbridge_operator.kube.kinds import CERTIFICATES, PROMETHEUS_RULES, SERVICE_MONITORS
from liftbridge_operator.process.metrics import Metrics
from liftbridge_operator.process.watches import OWNED, RESOURCES, Watches, watch_settings
from liftbridge_testkit.kube.audit import read
from liftbridge_testkit.kube.cluster import run
from liftbridge_testkit.kube.control_plane import ADMIN
from liftbridge_testkit.kube.definitions import await_use
from liftbridge_testkit.kube.many import until
from liftbridge_testkit.kube.release import CHART, RELEASE, USER, OperatorRelease
from liftbridge_testkit.kube.release import NAMESPACE as SYSTEM
from liftbridge_testkit.kube.rights import rights
from liftbridge_testkit.operator_sim.toured import NAMESPACE, tour
from liftbridge_testkit.operator_sim.traced import Cast
from liftbridge_testkit.processes import ProcessError

pytestmark = pytest.mark.e2e

SECONDS_MAX = 30.0
OTHERS = (CERTIFICATES, SERVICE_MONITORS, PROMETHEUS_RULES)
"""Kinds that others define; their schemas do not matter here."""


@pytest.fixture(scope="module")
def plane(control_plane):
    kubectl = control_plane.kubernetes.kubectl
    for name in (NAMESPACE, SYSTEM):
        kubectl("create", "namespace", name)
    for kind in OTHERS:
        kubectl("apply", "-f", "-", text=json.dumps(definition(kind)))
    await_use(control_plane.kubernetes, *(kind.qualified for kind in OTHERS))
    return control_plane


def definition(kind):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.qualified},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [version],
        },
    }


def grant(plane, *values):
    """Bring the account of the operator, with its roles; nothing of the chart runs."""
    command = ["helm", "template", RELEASE, CHART, "--namespace", SYSTEM]
    command += ["--show-only", "templates/rbac.yaml"]
    for value in values:
        command += ["--set", value]
    text = run(command, plane.kubernetes.environ)
    plane.kubernetes.kubectl("apply", "--server-side", "-f", "-", text=text)


def log_in(plane, account):
    """The kubeconfig of an account in the operator's namespace."""
    token = plane.kubernetes.kubectl("--namespace", SYSTEM, "create", "token", account).strip()
    return str(plane.kubeconfig(account, token))


def watched(plane, user):
    """Kinds of which a watch of a user has begun."""
    found = set()
    for line in plane.audit_log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event["user"]["username"] == user and event["verb"] == "watch":
            found.add((about.get("apiGroup", ""), about["resource"]))
    return found


async def watch(plane, user, *namespaces):
    """Watch everything that the operator watches, for as long as it takes to begin."""
    watches = Watches(
        namespaces=namespaces,
        notice=lambda _key: None,
        metrics=Metrics(),
        settings=watch_settings(),
    )
    wanted = {(kind.group, kind.plural) for kind in (*RESOURCES, *OWNED)}
    running = asyncio.get_running_loop().create_task(watches.run(lambda: None))

    async def has_begun():
        return running.done() or watched(plane, user) >= wanted

    await until(has_begun, "all watches")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_each_right_is_used_and_none_is_missing(plane, monkeypatch):
    since = datetime.now(UTC)
    grant(plane, "rbac.monitoring=true", "rbac.certManager=true")
    config = log_in(plane, RELEASE)
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig(ADMIN)))
    async with connect(in_flight_max=8) as everybody:
        monkeypatch.setenv("KUBECONFIG", config)
        async with connect(in_flight_max=8) as account:
            operator = KubeClient(account, fence=None, rng=Random(1))
            others = [
                KubeClient(everybody, fence=None, rng=Random(1), manager=name)
                for name in ("kubectl-edit", "kube-controller-manager")
            ]
            await tour(Cast(operator, *others))
    await watch(plane, USER)
    roles = OperatorRelease(plane.kubernetes).roles()

    def found():
        return rights(roles, read(plane.audit_log), USER, since)

    async def is_told():  # what ends is told a moment later
        return not found().unused

    with suppress(ProcessError):
        await until(is_told, "every right used", seconds_max=SECONDS_MAX)
    assert found().unused == []
    assert found().denied == set()


@pytest.fixture(scope="module")
def narrow(plane):
    """The account of an operator that looks after one namespace."""
    grant(plane, f"watchNamespaces={{{NAMESPACE}}}", "nameOverride=narrow")
    return f"system:serviceaccount:{SYSTEM}:narrow"


async def test_operator_of_some_namespaces_watches_without_asking_for_more(
    plane, narrow, monkeypatch
):
    since = datetime.now(UTC)
    monkeypatch.setenv("KUBECONFIG", log_in(plane, "narrow"))
    await watch(plane, narrow, NAMESPACE)
    asked = [one for one in read(plane.audit_log) if one.user == narrow]
    assert {one.namespace for one in asked} == {NAMESPACE}
    assert rights([], asked, narrow, since).denied == set()


@pytest.mark.parametrize(
    ("namespace", "resource", "may"),
    [(NAMESPACE, "pods", "yes"), (NAMESPACE, "secrets", "no"), ("default", "pods", "no")],
)
def test_operator_of_some_namespaces_reads_no_other(plane, narrow, namespace, resource, may):
    words = ("--namespace", namespace, "auth", "can-i", "list", resource, f"--as={narrow}")
    script = 'kubectl "$@" || true'  # it fails when it says no
    answer = run(("sh", "-c", script, "sh", *words), plane.kubernetes.environ)
    assert answer.strip() == may
