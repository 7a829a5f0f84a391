"""Charts: what they take from elsewhere is the same there, values are closed, rights are listed."""

import importlib.util
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from liftbridge_operator.kube.kinds import ALL_KINDS
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.process.metrics import PREFIX
from liftbridge_operator.process.settings import SETTINGS
from liftbridge_testkit.repository import ROOT

_SPEC = importlib.util.spec_from_file_location("charts", ROOT / "deploy" / "charts.py")
assert _SPEC is not None
assert _SPEC.loader is not None
charts = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(charts)

HELM = ROOT / "helm"
OPERATOR = HELM / "liftbridge-operator"
CHARTS = ("liftbridge-operator", "liftbridge")


def read(path: str) -> str:
    return (HELM / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(charts.files()))
def test_file_of_a_chart_is_what_it_is_made_from(name, rewrite):
    text = charts.files()[name]
    if rewrite:
        charts.main()
    assert read(name) == text


def test_charts_have_no_definition_that_is_deployed_nowhere_else():
    deployed = {path.name for path in (ROOT / "deploy" / "crds").iterdir()}
    assert {path.name for path in (OPERATOR / "files" / "crds").iterdir()} == deployed


def test_every_condition_with_an_alert_has_its_rule_with_a_runbook():
    rules = {rule["alert"]: rule for rule in yaml.safe_load(read(f"{charts.FILES}/alerts.yaml"))}
    for spec in load_catalogue().conditions.values():
        if spec.alert is None:
            continue
        rule = rules[spec.alert.name]
        assert f'type="{spec.type}"' in rule["expr"]
        told = [one for one in spec.reasons.values() if one.status in spec.alert.statuses]
        assert all(one.runbook in rule["annotations"]["runbook"] for one in told)
    assert all(rule["annotations"]["runbook"] for rule in rules.values())


def metrics() -> set[str]:
    """All names that brokers and the operator serve, by their references."""
    found = set(
        re.findall(r"`(liftbridge_[a-z_]+)`", (ROOT / "docs/reference/metrics.md").read_text())
    )
    path = ROOT / "operator/src/liftbridge_operator/process/metrics.yaml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))["metrics"]
    return found | {PREFIX + row["name"] for row in rows}


def expressions() -> list[str]:
    found = [rule["expr"] for rule in charts.alerts()]
    panels = [*charts.OPERATOR_PANELS, *charts.BROKER_PANELS]
    return found + [expression for _, expression, _ in panels]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_ask_for_metrics_that_exist(expression):
    asked = {
        name.removesuffix("_bucket") for name in re.findall(r"\bliftbridge_[a-z_]+", expression)
    }
    assert asked
    assert asked <= metrics()


# -- values ---------------------------------------------------------------------------------------


def schema(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(f"{chart}/values.schema.json"))
    return found


def values(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(f"{chart}/values.yaml"))
    return found


def merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(value, dict):
        return patch
    return value | {key: merged(value.get(key), one) for key, one in patch.items()}


def objects(node: Any, path: str = "") -> Any:
    """Every object of a schema that names its fields, with its path."""
    if isinstance(node, dict):
        if "properties" in node:
            yield path, node
        for key, value in node.items():
            yield from objects(value, f"{path}/{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from objects(value, f"{path}/{number}")


@pytest.mark.parametrize("chart", CHARTS)
def test_own_values_are_right(chart):
    jsonschema.Draft7Validator.check_schema(schema(chart))
    jsonschema.validate(values(chart), schema(chart), jsonschema.Draft7Validator)


@pytest.mark.parametrize("chart", CHARTS)
def test_every_object_is_closed_and_every_field_described(chart):
    for path, node in objects(schema(chart)):
        assert node.get("additionalProperties") is False, path
        for name, field in node["properties"].items():
            assert field.get("description") or "$ref" in field, f"{path}/{name}"


def test_every_value_of_the_operator_has_its_place_in_the_schema():
    def fields(node, path=""):
        for key, value in node.items():
            yield f"{path}.{key}"
            if isinstance(value, dict):
                yield from fields(value, f"{path}.{key}")

    given = set(fields(values("liftbridge-operator")))
    for path, node in objects(schema("liftbridge-operator")):
        if path.startswith("/definitions"):
            continue
        place = path.replace("/properties/", ".").replace("/properties", "")
        missing = {f"{place}.{name}" for name in node["properties"]} - given
        assert missing <= {".global"}


WRONG_OPERATOR: list[dict[str, Any]] = [
    {"replica": 3},
    {"replicas": 0},
    {"replicas": "two"},
    {"replicas": 6},
    {"nameOverride": "Upper"},
    {"commonLabels": {"a": 1}},
    {"image": {"name": "x"}},
    {"image": {"digest": "sha256:short"}},
    {"image": {"pullPolicy": "Sometimes"}},
    {"image": {"repository": ""}},
    {"imagePullSecrets": [{"name": "x"}]},
    {"brokerImage": "broker@sha256:1"},
    {"watchNamespaces": "all"},
    {"watchNamespaces": ["Upper"]},
    {"watchNamespaces": ["a", "a"]},
    {"crds": {"installed": True}},
    {"crds": {"keep": "yes"}},
    {"rbac": {"secrets": True}},
    {"settings": {"logLevel": "trace"}},
    {"settings": {"resync": 1}},
    {"settings": {"leaseDuration": 1}},
    {"resources": {"limits": {"memory": "1 GB"}}},
    {"runAsUser": 0},
    {"networkPolicy": {"apiServerPorts": []}},
    {"networkPolicy": {"apiServerPorts": [70000]}},
    {"monitoring": {"serviceMonitor": {"interval": "often"}}},
    {"podDisruptionBudget": {"maxUnavailable": 0}},
]
WRONG_CLUSTER: list[dict[str, Any]] = [
    {"cluster": {"spec": {"replicas": 0}}},
    {"cluster": {"spec": {"replica": 3}}},
    {"cluster": {"spec": {"storage": {"data": {"size": "big"}}}}},
    {"cluster": {"spec": {"storage": {"data": {"sizeGB": 10}}}}},
    {"cluster": {"spec": {"listeners": [{"name": "internal", "port": 80}]}}},
    {"cluster": {"spec": {"version": "latest"}}},
    {"cluster": {"name": "a" * 41}},
    {"cluster": {"enabled": "yes"}},
    {"streams": {"Upper": {"subject": "a", "replicationFactor": 1}}},
    {"streams": {"a": {"subject": "a"}}},
    {"streams": {"a": {"subject": "a", "replicationFactor": 1, "partition": 2}}},
    {"streams": ["a"]},
]
WRONG = [("liftbridge-operator", one) for one in WRONG_OPERATOR] + [
    ("liftbridge", one) for one in WRONG_CLUSTER
]


@pytest.mark.parametrize(("chart", "patch"), WRONG, ids=lambda one: json.dumps(one)[:60])
def test_wrong_value_is_refused(chart, patch):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values(chart), patch), schema(chart), jsonschema.Draft7Validator)


def test_settings_of_the_process_are_settings():
    text = read("liftbridge-operator/templates/deployment.yaml")
    used = set(re.findall(r"LIFTBRIDGE_OPERATOR_[A-Z_]+", text))
    assert used <= {setting.variable for setting in SETTINGS}


# -- rights ---------------------------------------------------------------------------------------


ROLES = "clusterroles.rbac.authorization.k8s.io"


def rules() -> list[dict[str, list[str]]]:
    """Rights in a namespace, those behind switches included."""
    text = read("liftbridge-operator/templates/_helpers.tpl")
    block = text.split('define "operator.rules" -}}')[1].split("{{- end -}}")[0]
    plain = [line for line in block.splitlines() if not line.lstrip().startswith("{{")]
    found: list[dict[str, list[str]]] = yaml.safe_load("\n".join(plain))
    return found


def rights() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in rules():
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name = f"{resource}.{group}" if group else resource
                found.setdefault(name, set()).update(rule["verbs"])
    return found


def test_no_right_is_for_everything():
    assert "*" not in json.dumps(rules())
    verbs = set().union(*rights().values())
    assert verbs <= {"get", "list", "watch", "create", "patch", "delete", "bind"}
    assert not {"pods/exec", "pods/attach", "roles.rbac.authorization.k8s.io"} & set(rights())


def test_one_role_may_be_given_to_others_and_none_written():
    rule = next(one for one in rules() if "clusterroles" in one["resources"])
    assert rule["verbs"] == ["bind"]
    assert len(rule["resourceNames"]) == 1
    assert [one for one in rights() if "bind" in rights()[one]] == [ROLES]


def test_without_executors_there_is_no_right_about_bindings():
    text = read("liftbridge-operator/templates/_helpers.tpl")
    before, behind = text.split("{{- if .Values.rbac.executors }}")
    inside, after = behind.split("{{- end }}", 1)
    assert "rolebindings" in inside
    assert "rbac.authorization.k8s.io" not in before + after


def test_drivers_delete_no_volumes():
    text = read("liftbridge-operator/templates/rbac.yaml")
    role = text.split("liftbridge.io/role: executors")[1].split("{{- end }}")[0]
    assert "resources: [pods]" in role
    assert "persistentvolumeclaims" not in role


def test_each_switch_of_rights_is_told_of():
    page = (ROOT / "docs" / "how-to" / "install-the-operator.md").read_text(encoding="utf-8")
    switches = yaml.safe_load(read("liftbridge-operator/values.yaml"))["rbac"]
    assert [name for name in switches if f"`rbac.{name}`" not in page] == []


def test_secrets_are_neither_listed_nor_watched_nor_deleted():
    assert rights()["secrets"] == {"get", "create", "patch"}


def test_volumes_and_clusters_are_created_by_others():
    assert "create" not in rights()["persistentvolumeclaims"]
    assert not {"create", "delete"} & rights()["liftbridgeclusters.liftbridge.io"]
    assert not {"create", "delete"} & rights()["streams.liftbridge.io"]
    assert not {"create", "delete"} & rights()["liftbridgeusers.liftbridge.io"]
    assert not {"create", "patch", "delete"} & rights()["streampipelines.liftbridge.io"]


def test_rights_are_about_kinds_that_the_operator_knows():
    known = {kind.qualified for kind in ALL_KINDS}
    asked = {name.replace("/status", "") for name in rights()}
    assert asked - {ROLES} <= known
