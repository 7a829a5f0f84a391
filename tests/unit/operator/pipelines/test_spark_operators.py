"""Manifests for other operators of Spark: what their definitions take, and our command understands.

The schemas are those of their definitions as far as the manifests go, and closed: of Kubeflow's
operator 2.5, and of Apache's 1.0.
"""

import jsonschema
import pytest
import typer.main
import yaml

from liftbridge_client.cli.app import app
from liftbridge_testkit.repository import ROOT

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


def manifests(shown):
    """Manifests of the page by their version; there is one for each."""
    blocks = [block for title in shown.titles for block in shown.take(title)]
    found = {one["apiVersion"]: one for one in (yaml.safe_load(block.text) for block in blocks)}
    assert len(found) == len(blocks)
    assert set(found) == set(SCHEMAS)
    return found


@pytest.mark.shows("how-to/spark-operators.md")
def test_manifests_are_what_their_definitions_take(shown):
    for version, body in manifests(shown).items():
        assert body["kind"] == "SparkApplication"
        jsonschema.validate(body["spec"], SCHEMAS[version])


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.shows("how-to/spark-operators.md")
def test_wrong_field_would_be_noticed(shown, version):
    body = manifests(shown)[version]
    body["spec"]["executors"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body["spec"], SCHEMAS[version])


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.shows("how-to/spark-operators.md")
def test_driver_runs_a_command_that_there_is_in_a_file_of_the_image(shown, version):
    spec = manifests(shown)[version]["spec"]
    group, word, *rest = spec[ARGUMENTS[version]]
    context = typer.main.get_command(app).commands[group].commands[word].make_context(word, rest)
    assert context.params["streams"] == ["orders.created"]
    place = spec[FILES[version]].removeprefix("local://")
    assert place in (ROOT / "Dockerfile.spark").read_text(encoding="utf-8")
