"""The page of what is made of a cluster names what is rendered: kinds, names, ports, alerts."""

import re

import pytest

from liftbridge_operator.cluster.rendering.monitoring import BROKER_ALERTS
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.clusters import (
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

PAGE = ROOT / "docs" / "reference" / "kubernetes" / "objects.md"
TEXT = PAGE.read_text(encoding="utf-8")
BEGIN = "<!-- alerts: written by tests/meta/test_docs_objects.py --rewrite -->\n"
END = "<!-- end of alerts -->"


def documented() -> set[tuple[str, str]]:
    rows = re.findall(r"^\| ([A-Za-z]+) \| `([^`]+)` \|", TEXT, re.MULTILINE)
    return {(kind, name) for kind, name in rows}


def shown(name: str) -> str:
    """A name as the page has it: hashes and listeners as words."""
    name = re.sub(r"-(config|revision)-[0-9a-f]{12}$", r"-\1-HASH", name)
    name = re.sub(r"^orders-(nodes|balanced)-[0-9]+$", "orders-LISTENER-0", name)
    return re.sub(r"^orders-(nodes|balanced)$", "orders-internal", name)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_object_is_on_the_page_and_kept_where_it_says_so(path):
    spec = load_spec(path)
    for one in everything(cluster_of(spec), inputs_for(spec)):
        key = one["kind"], shown(one["metadata"]["name"])
        assert key in documented()
        row = next(line for line in TEXT.splitlines() if f"| {key[0]} | `{key[1]}` |" in line)
        assert ("**kept**" in row) == ("ownerReferences" not in one["metadata"])


def test_every_object_on_the_page_is_made_of_some_cluster():
    made = set()
    for path in PATHS:
        spec = load_spec(path)
        for one in everything(cluster_of(spec), inputs_for(spec)):
            made.add((one["kind"], shown(one["metadata"]["name"])))
            for claim in one["spec"].get("volumeClaimTemplates", []) if "spec" in one else []:
                made.add(("PersistentVolumeClaim", f"{claim['metadata']['name']}-orders-0"))
    assert documented() == made


def test_ports_of_pods_are_on_the_page():
    spec = load_spec(next(path for path in PATHS if path.stem == "embedded"))
    (live,) = [
        one
        for one in everything(cluster_of(spec), inputs_for(spec))
        if one["kind"] == "StatefulSet"
    ]
    pod = live["spec"]["template"]["spec"]
    for container in [*pod["containers"], *pod["initContainers"]]:
        for port in container["ports"]:
            name = re.sub("^c-.*", "c-LISTENER", port["name"])
            assert f"| {port['containerPort']} | `{name}` |" in TEXT


def test_alerts_about_brokers_are_on_the_page(rewrite):
    lines = [
        "| Alert | Severity | Holds for | Meaning | What to do |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{one.name}` | {one.severity} | {one.duration} | {one.summary} | {one.runbook} |"
        for one in BROKER_ALERTS
    ]
    wanted = "\n" + "\n".join(lines) + "\n\n"
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    found, after = rest.split(END)
    if rewrite:
        PAGE.write_text(f"{before}{BEGIN}{wanted}{END}{after}", encoding="utf-8")
    assert found == wanted or rewrite
