"""Arguments that pods are given are those that `liftbridge spark` takes."""

import pytest
import typer.main

from liftbridge_client.cli.app import app
from liftbridge_operator.pipelines.commands import arguments
from liftbridge_operator.pipelines.resources import pipeline_of
from liftbridge_testkit.pipelines_memory import pipeline

COMMANDS = {
    "archive": {},
    "archive of several": {"source": {"streams": ["a", "b"]}},
    "archive with everything": {
        "archive": {
            "root": "s3://b",
            "endpoint": "http://store:8333",
            "region": "eu",
            "allowHttp": True,
        },
        "interval": "90s",
        "failurePolicy": {"failOnDataLoss": False},
        "runtime": "Executors",
        "executors": {},
    },
    "replay": {"type": "Replay", "mode": "Once", "sink": {"stream": "copy"}},
    "compact": {"type": "Compact", "mode": "Once"},
    "compact by key": {"type": "Compact", "mode": "Once", "compaction": "ByKey"},
    "metrics": {"type": "Metrics", "mode": "Once"},
    "audit": {"type": "Audit", "mode": "Once"},
    "audit without an archive": {"type": "Audit", "mode": "Once", "archive": None},
}


@pytest.fixture(scope="module")
def group():
    return typer.main.get_command(app).commands["spark"]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_the_arguments_of_a_pod(group, name):
    body = pipeline(**COMMANDS[name])
    body["metadata"]["uid"] = "uid-1"
    first, word, *rest = arguments(pipeline_of(body))
    assert first == "spark"
    context = group.commands[word].make_context(word, rest)
    assert context.params["master"].startswith(("local[", "k8s://"))
