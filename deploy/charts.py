"""Generate files of the charts: definitions, alerts, dashboards, a schema of values.

    python deploy/charts.py

The definitions are copies of `deploy/crds`. The alerts follow from the catalogue of conditions, the
dashboards from the lists below, and the schema from the definitions. A test checks that the files
are up to date and that the metrics of all panels exist.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from liftbridge_operator.model.catalogue.load import ConditionSpec, load_catalogue
from liftbridge_operator.model.crds.definitions import RESOURCES, Resource, definition

ROOT: Final = Path(__file__).resolve().parent.parent
HELM: Final = ROOT / "helm"
FILES: Final = "liftbridge-operator/files"
CRDS: Final = ROOT / "deploy" / "crds"
CLUSTER_KIND: Final = "LiftbridgeCluster"

Panel = tuple[str, str, str]
"""Title, PromQL expression and unit."""

_OWN: Final = '{job=~"$job"}'

OPERATOR_PANELS: Final[Sequence[Panel]] = (
    (
        "Clusters by readiness",
        'sum by (name, reason) (liftbridge_operator_cluster_condition{type="Ready"})',
        "short",
    ),
    (
        "Streams by readiness",
        'sum by (reason) (liftbridge_operator_resources{kind="Stream",type="Ready"})',
        "short",
    ),
    (
        "Passes",
        f"sum by (kind, result) (rate(liftbridge_operator_passes_total{_OWN}[5m]))",
        "ops",
    ),
    (
        "Time of a pass, 99 %",
        (
            "histogram_quantile(0.99, sum by (kind, le) "
            f"(rate(liftbridge_operator_pass_seconds_bucket{_OWN}[5m])))"
        ),
        "s",
    ),
    ("Waiting resources", f"sum by (kind) (liftbridge_operator_queue_depth{_OWN})", "short"),
    (
        "Longest wait",
        f"max by (kind) (liftbridge_operator_queue_oldest_seconds{_OWN})",
        "s",
    ),
    (
        "Requests to the API server",
        f"sum by (verb, code) (rate(liftbridge_operator_api_requests_total{_OWN}[5m]))",
        "reqps",
    ),
    ("Leader", f"liftbridge_operator_leader{_OWN}", "short"),
    ("Age of the lease", f"liftbridge_operator_lease_age_seconds{_OWN}", "s"),
)

BROKER_PANELS: Final[Sequence[Panel]] = (
    ("Brokers", f"max by (state) (liftbridge_brokers{_OWN})", "short"),
    (
        "Partitions without a leader",
        f"max(liftbridge_partitions_leaderless{_OWN})",
        "short",
    ),
    (
        "Partitions that commit nothing",
        f"sum(liftbridge_partitions_under_min_isr{_OWN})",
        "short",
    ),
    (
        "Under-replicated partitions",
        f"sum(liftbridge_partitions_under_replicated{_OWN})",
        "short",
    ),
    ("Fenced brokers", f"sum(liftbridge_broker_fenced{_OWN})", "short"),
    ("Metadata leader known", f"min(liftbridge_raft_leader_known{_OWN})", "short"),
    ("Link to NATS", f"min by (pod) (liftbridge_nats_connected{_OWN})", "short"),
    ("Free space", f"min by (pod) (liftbridge_disk_free_bytes{_OWN})", "bytes"),
    (
        "Messages from NATS",
        f"sum by (pod) (rate(liftbridge_nats_received_messages_total{_OWN}[5m]))",
        "cps",
    ),
)


def files() -> Mapping[str, str]:
    """Return the contents of all generated files by path below `HELM`."""
    made = {
        f"{FILES}/crds/{path.name}": path.read_text(encoding="utf-8")
        for path in CRDS.glob("*.yaml")
    }
    made["liftbridge/values.schema.json"] = json.dumps(values_schema(), indent=1) + "\n"
    made[f"{FILES}/alerts.yaml"] = _ALERTS_HEADER + yaml.safe_dump(
        alerts(), sort_keys=False, width=120
    )
    made["liftbridge-operator/README.md"] = readme()
    for name, title, panels in (
        ("operator", "Liftbridge operator", OPERATOR_PANELS),
        ("brokers", "Liftbridge brokers", BROKER_PANELS),
    ):
        made[f"{FILES}/dashboards/{name}.json"] = (
            json.dumps(dashboard(name, title, panels), indent=1) + "\n"
        )
    return made


_ALERTS_HEADER: Final = "# Generated from the catalogue of conditions by deploy/charts.py.\n"


OPERATOR_ALERTS: Final[Sequence[dict[str, Any]]] = (
    {
        "alert": "LiftbridgeOperatorWithoutLeader",
        "expr": "absent(liftbridge_operator_leader == 1)",
        "for": "5m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "No process of the operator leads: no resource is reconciled.",
            "runbook": "Check the pods of the operator and its Lease; brokers continue to run.",
        },
    },
    {
        "alert": "LiftbridgeOperatorPassesFail",
        "expr": 'sum by (kind) (rate(liftbridge_operator_passes_total{result="failed"}[10m])) > 0',
        "for": "15m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "Passes over {{ $labels.kind }} fail because of a bug in the operator.",
            "runbook": "Check the log of the operator, and report the bug.",
        },
    },
)


def alerts() -> list[dict[str, Any]]:
    """Return alert rules for conditions that need attention, and for the operator itself."""
    rules = [_alert(spec) for spec in load_catalogue().conditions.values() if spec.alert]
    return [*rules, *OPERATOR_ALERTS]


def _alert(spec: ConditionSpec) -> dict[str, Any]:
    assert spec.alert is not None
    statuses = "|".join(spec.alert.statuses)
    labels = f'type="{spec.type}",status=~"{statuses}"'
    if spec.resource == CLUSTER_KIND:
        expression = f"liftbridge_operator_cluster_condition{{{labels}}} == 1"
        summary = (
            f"{spec.resource} {{{{ $labels.namespace }}}}/{{{{ $labels.name }}}}: {spec.type} is "
            "{{ $labels.status }}, {{ $labels.reason }}."
        )
    else:
        labels = f'kind="{spec.resource}",{labels}'
        expression = f"liftbridge_operator_resources{{{labels}}} > 0"
        summary = (
            f"{{{{ $value }}}} resources of kind {spec.resource}: {spec.type} is "
            "{{ $labels.status }}, {{ $labels.reason }}."
        )
    books = [
        f"{reason.reason}: {reason.runbook}"
        for reason in spec.reasons.values()
        if reason.status in spec.alert.statuses
    ]
    return {
        "alert": spec.alert.name,
        "expr": expression,
        "for": spec.alert.duration,
        "labels": {"severity": spec.alert.severity},
        "annotations": {"summary": summary, "runbook": " ".join(books)},
    }


_README: Final = """# liftbridge-operator

The operator of Liftbridge manages clusters of brokers and streams as Kubernetes resources.
`docs/how-to/install-the-operator.md` describes how to install, monitor and remove it.

## Values

| Value | Default | Meaning |
| --- | --- | --- |
"""


def readme() -> str:
    """Return the README of the operator's chart: every value with its default."""
    folder = HELM / "liftbridge-operator"
    schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{path}` | `{json.dumps(default)}` | {meaning} |\n"
        for path, default, meaning in _values(schema, values)
    ]
    return _README + "".join(rows)


def _values(schema: Mapping[str, Any], values: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """List path, default and meaning of each value that is no section, in the order of the file."""
    found: list[tuple[str, Any, str]] = []
    todo = [(name, schema["properties"][name], value) for name, value in values.items()]
    while todo:
        path, node, value = todo.pop(0)
        if "properties" in node:
            inner = [(f"{path}.{key}", node["properties"][key], one) for key, one in value.items()]
            todo = inner + todo
        else:
            found.append((path, value, node["description"]))
    return found


def values_schema() -> dict[str, Any]:
    """Return the JSON Schema for values of the chart `liftbridge`, from the definitions."""
    cluster, stream = (_specification(resource) for resource in RESOURCES[:2])
    # The chart sets these fields.
    cluster["required"] = [name for name in cluster["required"] if name != "version"]
    stream["required"] = [name for name in stream.get("required", ()) if name != "clusterRef"]
    strings = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart liftbridge",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {"type": "object", "description": "Values of a parent chart."},
            "commonLabels": strings | {"description": "Labels of all objects."},
            "cluster": {
                "type": "object",
                "additionalProperties": False,
                "required": ["enabled", "spec"],
                "description": "The cluster.",
                "properties": {
                    "enabled": {"type": "boolean", "description": "Whether it is created."},
                    "name": {"type": "string", "maxLength": 40, "description": "Its name."},
                    "annotations": strings | {"description": "Its annotations."},
                    "spec": cluster,
                },
            },
            "streams": {
                "type": "object",
                "description": "Streams by the names of their resources.",
                "propertyNames": {"maxLength": 253, "pattern": "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"},
                "additionalProperties": stream,
            },
        },
    }


def _specification(resource: Resource) -> dict[str, Any]:
    schema = definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    specification: dict[str, Any] = _plain(schema["properties"]["spec"])
    return specification


def _plain(node: Any) -> Any:
    """Convert a structural schema to JSON Schema: drop Kubernetes keywords, refuse unknown keys."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _plain(value)
        for key, value in node.items()
        if not key.startswith("x-kubernetes-") and key not in {"default", "format"}
    }
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        kept["additionalProperties"] = False
    return kept


def dashboard(name: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """Return a Grafana dashboard with three panels in a row."""
    return {
        "uid": f"liftbridge-{name}",
        "title": title,
        "tags": ["liftbridge"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": f"label_values({_anchor(name)}, job)",
                    "includeAll": True,
                    "multi": True,
                },
            ]
        },
        "panels": [
            {
                "id": number + 1,
                "title": heading,
                "type": "timeseries",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": [{"refId": "A", "expr": expression}],
            }
            for number, (heading, expression, unit) in enumerate(panels)
        ],
    }


def _anchor(name: str) -> str:
    """Return a metric that every process of the job has."""
    return "liftbridge_operator_leader" if name == "operator" else "liftbridge_brokers"


def main() -> None:
    """Write all files."""
    for name, text in files().items():
        path = HELM / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
