"""Rights of the operator in its chart are exactly those that its code can use.

What it does at the API server goes through one port, or through kopf, which lists and watches. So
all of it is found in the source: each call of the port with the kinds that it may be about.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from liftbridge_operator.cluster.rendering.render import render
from liftbridge_operator.kube import kinds
from liftbridge_operator.kube.kinds import (
    BUDGETS,
    CERTIFICATES,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    PIPELINES,
    PODS,
    PROMETHEUS_RULES,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    SETS,
    STREAMS,
    USERS,
    Kind,
    kind_of,
)
from liftbridge_operator.process.watches import OWNED, RESOURCES
from liftbridge_operator.users.uninstall import FINALIZERS
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.kube.rights import BINDS, granted
from liftbridge_testkit.operator_sim.toured import NAMESPACE, SYSTEM, tour
from liftbridge_testkit.operator_sim.traced import Cast
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.clusters import PATHS, cluster_of, inputs_for, load_spec

SOURCE = ROOT / "operator" / "src" / "liftbridge_operator"
OTHERS = frozenset({"plugin"})
"""Folders whose calls are made with the rights of a person."""

UNINSTALL = "users/uninstall.py"
"""Calls of the Job that helm runs before a release goes, which has rights of its own."""

TEMPLATES = ROOT / "helm" / "liftbridge-operator" / "templates"
VERBS = {
    "get": ("get",),
    "list_all": ("list",),
    "create": ("create",),
    # The API server asks for the right to create of whoever applies what is not there.
    "apply": ("patch", "create"),
    "apply_status": ("patch",),
    "patch": ("patch",),
    "delete": ("delete",),
}
"""Rights that a call of the port asks for."""

RENDERED = frozenset({SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES, CONFIG_MAPS})
OF_PIPELINES = frozenset(
    {SERVICE_ACCOUNTS, CONFIG_MAPS, SERVICES, ROLE_BINDINGS, DEPLOYMENTS, JOBS, CRON_JOBS}
)
PRUNED = OF_PIPELINES - {SERVICE_ACCOUNTS, CONFIG_MAPS}
MONITORS = frozenset({SERVICE_MONITORS, PROMETHEUS_RULES})
SITES: dict[tuple[str, str, str], frozenset[Kind]] = {
    ("cluster/acting/on_objects.py", "create_identity", "create"): frozenset({CONFIG_MAPS}),
    ("cluster/acting/on_objects.py", "_check_set", "create"): frozenset({SETS}),
    ("cluster/acting/on_objects.py", "create_set", "create"): frozenset({SETS}),
    ("cluster/acting/on_objects.py", "keep_revision", "create"): frozenset({CONFIG_MAPS}),
    ("cluster/acting/on_objects.py", "keep_token", "apply"): frozenset({CONFIG_MAPS}),
    ("cluster/acting/on_objects.py", "set_budget", "apply"): frozenset({BUDGETS}),
    ("cluster/acting/parts.py", "_patch", "patch"): frozenset({CLAIMS, PODS}),
    ("cluster/acting/supply.py", "_bring", "apply"): RENDERED | MONITORS,
    ("cluster/acting/supply.py", "_begin_with_ports", "create"): frozenset({SERVICES}),
    ("cluster/acting/supply.py", "_configs", "create"): frozenset({CONFIG_MAPS}),
    ("cluster/acting/supply.py", "_of_kind", "list_all"): RENDERED | MONITORS,
    ("cluster/acting/supply.py", "_prune", "delete"): frozenset({SERVICES, NETWORK_POLICIES})
    | MONITORS,
    ("cluster/acting/supply.py", "_unlabelled", "get"): RENDERED | MONITORS,
    ("cluster/acting/whole.py", "keep_whole", "patch"): RENDERED
    | MONITORS
    | OF_PIPELINES
    | {BUDGETS, SETS},
    ("kube/events.py", "_write", "create"): frozenset({EVENTS}),
    ("kube/finalizers.py", "write_finalizer", "patch"): frozenset({STREAMS, USERS}),
    ("cluster/observing/prerequisites.py", "_fault", "get"): frozenset({CONFIG_MAPS, SECRETS}),
    ("cluster/observing/reads.py", "_one", "get"): frozenset({BUDGETS, CONFIG_MAPS, SETS}),
    ("cluster/observing/reads.py", "_parts", "get"): frozenset({CLAIMS, PODS}),
    ("cluster/observing/reads.py", "_parts", "list_all"): frozenset({CLAIMS, PODS}),
    ("pipelines/apply.py", "_apply", "apply"): OF_PIPELINES,
    ("pipelines/apply.py", "_delete", "delete"): PRUNED,
    ("pipelines/apply.py", "_unlabelled", "get"): OF_PIPELINES,
    ("pipelines/apply.py", "_present", "list_all"): OF_PIPELINES,
    ("pipelines/reconciler.py", "_write_status", "apply_status"): frozenset({PIPELINES}),
    ("cluster/reconciling/reconciler.py", "_apply_status", "apply_status"): frozenset({CLUSTERS}),
    ("process/lease.py", "_create", "create"): frozenset({LEASES}),
    ("process/resync.py", "_keys", "list_all"): frozenset(RESOURCES),
    ("cluster/securing/secret_store.py", "_apply", "apply"): frozenset({CERTIFICATES, CONFIG_MAPS}),
    ("cluster/securing/secret_store.py", "_get", "get"): frozenset(
        {CERTIFICATES, CONFIG_MAPS, SECRETS}
    ),
    ("cluster/securing/secret_store.py", "_write", "create"): frozenset({SECRETS}),
    ("streams/reconciler.py", "_write_status", "apply_status"): frozenset({STREAMS}),
    ("users/performing.py", "_write", "create"): frozenset({SECRETS}),
    ("users/reconciler.py", "_write_status", "apply_status"): frozenset({USERS}),
}
"""Calls whose kind does not stand in them: file, function, method, and kinds it may be about."""

Site = tuple[str, str, str]


def is_port(node: ast.expr) -> bool:
    """Whether this is the port to the API server, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lstrip("_") == "kube"


def calls(path: Path, source: Path = SOURCE) -> list[tuple[Site, str]]:
    """Calls of the port in a file, with the constant that names the kind; empty for none."""
    file = path.relative_to(source).as_posix()
    found = []
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in VERBS or not is_port(node.func.value):
                continue
            first = node.args[0]
            constant = first.id if isinstance(first, ast.Name) and first.id.isupper() else ""
            found.append(((file, function.name, node.func.attr), constant))
    return found


@cache
def all_calls() -> list[tuple[Site, str]]:
    files = sorted(SOURCE.rglob("*.py"))
    return [
        one
        for path in files
        if path.relative_to(SOURCE).parts[0] not in OTHERS
        for one in calls(path)
        if one[0][0] != UNINSTALL
    ]


def needed() -> frozenset[str]:
    """All rights that the code can use."""
    found = {
        f"{verb} {kind.qualified}" for kind in (*RESOURCES, *OWNED) for verb in ("list", "watch")
    }
    for site, constant in all_calls():
        part = "/status" if site[2] == "apply_status" else ""
        about = {getattr(kinds, constant)} if constant else SITES[site]
        found |= {f"{verb} {kind.qualified}{part}" for verb in VERBS[site[2]] for kind in about}
        found |= {BINDS} if site[2] == "apply" and ROLE_BINDINGS in about else set()
    return frozenset(found)


def roles_of(template: str) -> list[dict[str, object]]:
    """Roles of a template of the chart, whatever its switches say."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    found = []
    for document in text.split("\n---\n"):
        body = yaml.safe_load(plain(document))
        if isinstance(body, dict) and isinstance(body.get("rules"), list):
            found.append(body)
    return found


def roles() -> list[dict[str, object]]:
    """Everything that the chart may render with rules for the operator."""
    found = roles_of("rbac.yaml")
    helpers = (TEMPLATES / "_helpers.tpl").read_text(encoding="utf-8")
    block = helpers.split('define "operator.rules" -}}')[1].split("{{- end -}}")[0]
    return [*found, {"metadata": {}, "rules": yaml.safe_load(plain(block))}]


def plain(template: str) -> str:
    """A template without its switches and includes; values of its own stand for all others."""
    lines = [line for line in template.splitlines() if not line.lstrip().startswith("{{")]
    return re.sub(r"\{\{.*?\}\}", "x", "\n".join(lines))


def test_every_call_names_its_kinds():
    unknown = {site for site, constant in all_calls() if not constant}
    assert unknown == SITES.keys()


def test_kinds_that_are_rendered_are_those_of_all_clusters():
    found = set()
    for path in PATHS:
        spec = load_spec(path)
        found |= {kind_of(one) for one in render(cluster_of(spec), inputs_for(spec)).objects}
    assert found == RENDERED | MONITORS


def test_rights_are_exactly_those_that_are_used():
    assert granted(roles()) - needed() == set(), "granted for nothing"
    assert needed() - granted(roles()) == set(), "not granted"


def test_job_before_the_end_has_the_rights_that_it_uses_and_no_others():
    used = {
        f"{verb} {kind.qualified}"
        for path in (UNINSTALL, "kube/finalizers.py")
        for site, constant in calls(SOURCE / path)
        for kind in ([getattr(kinds, constant)] if constant else FINALIZERS)
        for verb in VERBS[site[2]]
    }
    lease = {f"{verb} {LEASES.qualified}" for verb in ("get", "list", "create", "patch")}
    scaled = {
        "patch deployments.apps/scale" if one == "patch deployments.apps" else one for one in used
    }
    assert granted(roles_of("uninstall.yaml")) == scaled | lease


class Used:
    """The API server in memory, which writes down what rights would be asked for."""

    def __init__(self, kube: MemoryKube) -> None:
        self._kube = kube
        self.rights: set[str] = set()

    def __getattr__(self, name):
        call = getattr(self._kube, name)

        async def noted(first, *rest, **named):
            kind = kind_of(first) if isinstance(first, dict) else first
            part = "/status" if name == "apply_status" else ""
            self.rights |= {f"{verb} {kind.qualified}{part}" for verb in VERBS[name]}
            self.rights |= {BINDS} if (name, kind) == ("apply", ROLE_BINDINGS) else set()
            return await call(first, *rest, **named)

        return noted


async def test_tour_of_the_end_to_end_tests_uses_every_right():
    """All but what kopf alone does: it lists and watches."""
    kube = MemoryKube()
    for name in (NAMESPACE, SYSTEM):
        kube.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    operator = Used(kube)
    await tour(Cast(operator, kube, kube))
    watched = {
        f"{verb} {kind.qualified}" for kind in (*RESOURCES, *OWNED) for verb in ("list", "watch")
    }
    assert operator.rights <= needed()
    assert needed() - watched <= operator.rights


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def f(kube): await kube.get(PODS, n, m)", [("get", "PODS")]),
        ("async def f(self): await self._kube.create(body)", [("create", "")]),
        ("async def f(hands): await hands.kube.list_all(kind, n)", [("list_all", "")]),
        ("async def f(known): known.get(PODS, n, m)", []),
    ],
)
def test_calls_are_found(text, found, tmp_path):
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    assert [(site[2], constant) for site, constant in calls(path, tmp_path)] == found
