"""The import contracts of `pyproject.toml`: kept, and each one proven by a planted violation."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from liftbridge_testkit.repository import ROOT

SOURCES = (
    "broker/src",
    "client/src",
    "operator/src",
    "proto/src",
    "spark/src",
    "tests/testkit/src",
)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {c["id"]: c for c in SETTINGS["tool"]["importlinter"]["contracts"]}
BROKER = "broker/src/liftbridge_broker"
CLIENT = "client/src/liftbridge_client"
OPERATOR = "operator/src/liftbridge_operator"
CLUSTER = f"{OPERATOR}/cluster"
SPARK = "spark/src/pyspark_liftbridge"
# The only parts of the broker that may know the clock, the event loop, files and sockets.
SHELL = {"config", "api", "adapters", "server", "cli", "__main__"}
# Contract -> files that break it, with their contents.
PLANTED = [
    ("broker-layers", {f"{BROKER}/model/planted.py": "import liftbridge_broker.ports.files\n"}),
    ("broker-layers", {f"{BROKER}/wire/planted.py": "import liftbridge_broker.api.grpc.call\n"}),
    ("broker-layers", {f"{BROKER}/api/planted.py": "import liftbridge_broker.adapters\n"}),
    (
        "broker-layers",
        {f"{BROKER}/access/planted.py": "import liftbridge_broker.controller.state\n"},
    ),
    ("broker-layers", {f"{BROKER}/homeless/__init__.py": ""}),
    (
        "node-layers",
        {f"{BROKER}/node/partition/planted.py": "import liftbridge_broker.node.replicas\n"},
    ),
    (
        "node-layers",
        {f"{BROKER}/node/reading/planted.py": "import liftbridge_broker.node.replicas\n"},
    ),
    (
        "node-layers",
        {f"{BROKER}/node/upkeep/planted.py": "import liftbridge_broker.node.assembly\n"},
    ),
    (
        "node-layers",
        {f"{BROKER}/node/context.py": "import liftbridge_broker.node.partition.partition\n"},
    ),
    (
        "node-layers",
        {f"{BROKER}/node/control.py": "import liftbridge_broker.node.membership\n"},
    ),
    ("node-layers", {f"{BROKER}/node/held.py": "import liftbridge_broker.node.applied\n"}),
    ("node-layers", {f"{BROKER}/node/homeless/__init__.py": ""}),
    (
        "storage-layers",
        {f"{BROKER}/storage/log/planted.py": "import liftbridge_broker.storage.journal\n"},
    ),
    (
        "api-layers",
        {f"{BROKER}/api/grpc/planted.py": "import liftbridge_broker.api.subscribe\n"},
    ),
    ("deterministic", {f"{BROKER}/node/planted.py": "import time\n"}),
    ("deterministic", {f"{BROKER}/node/partition/planted.py": "import time\n"}),
    ("deterministic", {f"{BROKER}/logformat/planted.py": "from asyncio import sleep\n"}),
    (
        "deterministic",
        {
            f"{BROKER}/errors.py": "import liftbridge_proto.planted\n",
            "proto/src/liftbridge_proto/planted.py": "import socket\n",
        },
    ),
    ("operator-layers", {f"{OPERATOR}/model/planted.py": "import liftbridge_operator.kube.port\n"}),
    ("operator-layers", {f"{OPERATOR}/homeless/__init__.py": ""}),
    ("cluster-layers", {f"{CLUSTER}/homeless/__init__.py": ""}),
    (
        "cluster-layers",
        {f"{CLUSTER}/acting/planted.py": "import liftbridge_operator.cluster.reporting\n"},
    ),
    (
        "cluster-values",
        {f"{CLUSTER}/planning/planted.py": "import liftbridge_operator.kube.port\n"},
    ),
    (
        "cluster-pass",
        {f"{OPERATOR}/streams/planted.py": "import liftbridge_operator.cluster.securing\n"},
    ),
    ("model-layers", {f"{OPERATOR}/model/base.py": "import liftbridge_operator.model.cluster\n"}),
    (
        "model-layers",
        {f"{OPERATOR}/model/catalogue/planted.py": "import liftbridge_operator.model.base\n"},
    ),
    (
        "catalogue-apart",
        {f"{OPERATOR}/model/planted.py": "import liftbridge_operator.model.catalogue.names\n"},
    ),
    (
        "crds-apart",
        {f"{OPERATOR}/model/planted.py": "import liftbridge_operator.model.crds.structural\n"},
    ),
    ("operator-pure", {f"{OPERATOR}/model/planted.py": "import time\n"}),
    ("operator-pure", {f"{OPERATOR}/model/catalogue/planted.py": "from kopf import on\n"}),
    ("operator-pure", {f"{CLUSTER}/rendering/planted.py": "import random\n"}),
    ("operator-pure", {f"{OPERATOR}/kube/intent.py": "import asyncio\n"}),
    ("operator-pure", {f"{OPERATOR}/pipelines/positions.py": "import time\n"}),
    (
        "operator-layers",
        {f"{OPERATOR}/pipelines/planted.py": "import liftbridge_operator.streams\n"},
    ),
    ("operator-layers", {f"{OPERATOR}/kube/planted.py": "import liftbridge_operator.process\n"}),
    ("operator-layers", {f"{OPERATOR}/process/planted.py": "import liftbridge_operator.streams\n"}),
    (
        "kubernetes-adapter",
        {f"{CLUSTER}/brokers/planted.py": "import kubernetes.client\n"},
    ),
    ("kopf-watches", {f"{CLUSTER}/reconciling/planted.py": "import kopf\n"}),
    ("operator-pure", {f"{CLUSTER}/certificates/planted.py": "import datetime\n"}),
    (
        "cluster-layers",
        {f"{CLUSTER}/certificates/planted.py": "import liftbridge_operator.cluster.x509\n"},
    ),
    ("spark-pure", {f"{SPARK}/plan/planted.py": "import liftbridge_client\n"}),
    ("spark-pure", {f"{SPARK}/plan/planted.py": "from time import monotonic\n"}),
    ("spark-layers", {f"{SPARK}/plan/planted.py": "import pyspark_liftbridge.archive\n"}),
    ("spark-layers", {f"{SPARK}/archive/planted.py": "import pyspark_liftbridge.source\n"}),
    ("spark-layers", {f"{SPARK}/source/planted.py": "import pyspark_liftbridge.jobs.archive\n"}),
    ("spark-layers", {f"{SPARK}/homeless/__init__.py": ""}),
    ("iceberg-adapter", {f"{SPARK}/jobs/planted.py": "from pyiceberg.catalog import Catalog\n"}),
    ("archive-without-spark", {f"{SPARK}/archive/planted.py": "import pyspark.sql\n"}),
    ("archive-without-spark", {f"{SPARK}/archive/planted.py": "import liftbridge_client\n"}),
    ("spark-apart", {f"{CLIENT}/planted.py": "import pyspark_liftbridge\n"}),
    ("deployables", {f"{OPERATOR}/model/planted.py": "import liftbridge_broker.errors\n"}),
    ("deployables", {f"{BROKER}/api/planted.py": "import liftbridge_client\n"}),
    ("deployables", {f"{CLIENT}/planted.py": "import liftbridge_broker.errors\n"}),
    (
        "deployables",
        {f"{CLIENT}/planted.py": "import liftbridge_broker.server.memory\n"},
    ),
    ("testing-apart", {f"{CLIENT}/aio/planted.py": "import liftbridge_client.testing\n"}),
    ("testing-apart", {f"{CLIENT}/planted.py": "from liftbridge_client.testing import Broker\n"}),
    ("shipped", {f"{BROKER}/api/planted.py": "import liftbridge_testkit.processes\n"}),
    ("shipped", {f"{CLIENT}/planted.py": "import hypothesis\n"}),
    ("shipped", {f"{CLIENT}/testing.py": "import pytest\n"}),
    ("shipped", {f"{BROKER}/adapters/planted.py": "import pytest\n"}),
    ("broker-without-grpcio", {f"{BROKER}/api/planted.py": "import grpc\n"}),
    (
        "broker-without-grpcio",
        {f"{BROKER}/api/planted.py": "import liftbridge_proto.api_pb2_grpc\n"},
    ),
    ("nats-adapter", {f"{BROKER}/server/planted.py": "import nats\n"}),
    ("nats-adapter", {f"{CLIENT}/planted.py": "from nats.aio.client import Client\n"}),
    (
        "acyclic",
        {
            f"{BROKER}/api/planted_a.py": "import liftbridge_broker.api.planted_b\n",
            f"{BROKER}/api/planted_b.py": "import liftbridge_broker.api.planted_a\n",
        },
    ),
]


def lint(tree: Path, contract: str | None = None) -> subprocess.CompletedProcess[str]:
    """Check a tree; its own sources come before the installed ones."""
    chosen = ["--contract", contract] if contract else []
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache", *chosen],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / name) for name in SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path):
    """A copy of all sources and of the contracts."""
    for name in SOURCES:
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "bench")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_all_contracts_are_kept():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def test_every_contract_has_a_planted_violation():
    assert {contract for contract, _ in PLANTED} == set(CONTRACTS)


@pytest.mark.parametrize(
    ("contract", "planted"), PLANTED, ids=[f"{c}-{n}" for n, (c, _) in enumerate(PLANTED)]
)
def test_planted_violation_is_reported(tree, contract, planted):
    for name, text in planted.items():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    done = lint(tree, contract)
    assert done.returncode == 1
    assert f"{CONTRACTS[contract]['name']} BROKEN" in done.stdout


def test_every_part_below_the_shell_is_held_deterministic():
    parts = {
        path.stem
        for path in (ROOT / BROKER).iterdir()
        if (path.is_dir() or path.suffix == ".py") and not path.name.startswith("__")
    }
    held = CONTRACTS["deterministic"]["source_modules"]
    assert {f"liftbridge_broker.{part}" for part in parts - SHELL} == set(held)
