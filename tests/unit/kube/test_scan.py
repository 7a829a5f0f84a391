"""What `make scan` makes of findings and exceptions, and that exceptions are about something."""

import importlib.util

import pytest
import yaml

from liftbridge_testkit.repository import ROOT

SCRIPT = ROOT / "deploy" / "scan.py"
EXCEPTED = {"check": "C1", "where": "operator-*/Deployment", "reason": "It is so."}


@pytest.fixture(scope="module")
def scan():
    spec = importlib.util.spec_from_file_location("scan", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(name, path="/operator-plain.yaml", resource="Deployment.system.liftbridge"):
    return {
        "check_id": name,
        "check_name": "Do it",
        "file_path": path,
        "resource": resource,
    }


def report(*failed, passed=()):
    return {"results": {"passed_checks": list(passed), "failed_checks": list(failed)}}


def test_one_report_and_several_are_read_alike(scan):
    one = scan.read(report(check("C1"), passed=[check("C2", "/Dockerfile.broker")]))
    two = scan.read([report(check("C1")), report(passed=[check("C2", "/Dockerfile.broker")])])
    assert one == two
    assert one.files == {"operator-plain", "Dockerfile.broker"}
    assert one.findings[0].where == "operator-plain/Deployment"


def test_exception_is_for_its_check_and_its_place_alone(scan):
    found = scan.read(
        report(check("C1"), check("C2"), check("C1", resource="Pod.system.liftbridge-test"))
    )
    assert scan.judge(found, (), [EXCEPTED]) == [
        "operator-plain/Deployment: C2: Do it (Deployment.system.liftbridge)",
        "operator-plain/Pod: C1: Do it (Pod.system.liftbridge-test)",
    ]


def test_exception_for_nothing_and_file_that_was_not_read_are_told(scan):
    found = scan.read(report(passed=[check("C1")]))
    assert scan.judge(found, ["operator-plain", "cluster-least"], [EXCEPTED]) == [
        "C1 in operator-*/Deployment: this exception is not needed",
        "cluster-least: no object was checked",
    ]


def test_every_exception_has_its_reason():
    text = (ROOT / "deploy" / "scan.yaml").read_text(encoding="utf-8")
    for one in yaml.safe_load(text):
        assert one.keys() == {"check", "where", "reason"}
        assert one["reason"].endswith(".")
