"""Manifests for other operators of Spark: what their definitions take, and our command understands.

The schemas are those of their definitions as far as the manifests go, and closed: of Kubeflow's
operator 2.5, and of Apache's 1.0.
"""

import re

import jsonschema
import pytest
import typer.main
import yaml

from liftbridge_client.cli.app import app
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs" / "how-to" / "spark-operators.md"
STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
INTEGER = {"type": "integer"}


def closed(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


SECURITY = closed(
    runAsNonRoot={"type": "boolean"},
    runAsUser=INTEGER,
    runAsGroup=INTEGER,
    allowPrivilegeEscalation={"type": "boolean"},
    capabilities=closed(drop=STRINGS),
    seccompProfile=closed(["type"], type=STRING),
)
ENV_FROM = {"type": "array", "items": closed(secretRef=closed(name=STRING))}
POD = {"cores": INTEGER, "memory": STRING, "envFrom": ENV_FROM, "securityContext": SECURITY}
KUBEFLOW = closed(
    ["driver", "executor", "sparkVersion", "type"],
    type={"enum": ["Java", "Python", "R", "Scala"]},
    pythonVersion={"enum": ["2", "3"]},
    mode={"enum": ["client", "cluster"]},
    sparkVersion=STRING,
    image=STRING,
    imagePullPolicy=STRING,
    mainApplicationFile=STRING,
    arguments=STRINGS,
    restartPolicy=closed(
        type={"enum": ["Always", "Never", "OnFailure"]}, onFailureRetryInterval=INTEGER
    ),
    driver=closed(**POD, serviceAccount=STRING),
    executor=closed(**POD, instances=INTEGER, memoryOverhead=STRING),
)
TEMPLATE = closed(
    podTemplateSpec=closed(
        spec=closed(
            ["containers"],
            containers={"type": "array", "items": closed(["name"], name=STRING, envFrom=ENV_FROM)},
            securityContext=SECURITY,
        )
    )
)
APACHE = closed(
    ["runtimeVersions"],
    pyFiles=STRING,
    driverArgs=STRINGS,
    sparkConf={"type": "object", "additionalProperties": STRING},
    runtimeVersions=closed(["sparkVersion"], sparkVersion=STRING),
    applicationTolerations=closed(
        resourceRetainPolicy={"enum": ["Always", "Never", "OnFailure"]},
        restartConfig=closed(
            restartPolicy={"enum": ["Always", "Never", "OnFailure", "OnInfrastructureFailure"]},
            restartBackoffMillis=INTEGER,
        ),
    ),
    driverSpec=TEMPLATE,
    executorSpec=TEMPLATE,
)
SCHEMAS = {"sparkoperator.k8s.io/v1beta2": KUBEFLOW, "spark.apache.org/v1": APACHE}
ARGUMENTS = {"sparkoperator.k8s.io/v1beta2": "arguments", "spark.apache.org/v1": "driverArgs"}
FILES = {"sparkoperator.k8s.io/v1beta2": "mainApplicationFile", "spark.apache.org/v1": "pyFiles"}


def manifests():
    text = PAGE.read_text(encoding="utf-8")
    found = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return {one["apiVersion"]: one for one in found}


@pytest.mark.parametrize("version", SCHEMAS)
def test_manifest_is_what_its_definition_takes(version):
    body = manifests()[version]
    assert body["kind"] == "SparkApplication"
    jsonschema.validate(body["spec"], SCHEMAS[version])


@pytest.mark.parametrize("version", SCHEMAS)
def test_wrong_field_would_be_noticed(version):
    body = manifests()[version]
    body["spec"]["executors"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body["spec"], SCHEMAS[version])


@pytest.mark.parametrize("version", SCHEMAS)
def test_driver_runs_a_command_that_there_is_in_a_file_of_the_image(version):
    spec = manifests()[version]["spec"]
    group, word, *rest = spec[ARGUMENTS[version]]
    context = typer.main.get_command(app).commands[group].commands[word].make_context(word, rest)
    assert context.params["streams"] == ["orders.created"]
    place = spec[FILES[version]].removeprefix("local://")
    assert place in (ROOT / "Dockerfile.spark").read_text(encoding="utf-8")
