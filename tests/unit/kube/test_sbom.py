"""The bill of materials of an image, by the script that is run in it."""

import importlib.util
import json
import runpy
import sys

import pytest

from liftbridge_testkit.repository import ROOT

SCRIPT = ROOT / "deploy" / "sbom.py"
DEBIAN = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 shared libraries

Package: removed
Status: deinstall ok config-files
Version: 1
"""


@pytest.fixture
def sbom():
    spec = importlib.util.spec_from_file_location("sbom", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def image(tmp_path):
    """A root with a package of Debian in each of the two forms, and an environment."""
    dpkg = tmp_path / "var/lib/dpkg"
    (dpkg / "status.d").mkdir(parents=True)
    (dpkg / "status").write_text(DEBIAN, encoding="utf-8")
    (dpkg / "status.d/zlib1g").write_text("Package: zlib1g\nVersion: 1:1.2.13\n", encoding="utf-8")
    packages = tmp_path / "opt/lib/python3.11/site-packages"
    for name, version, rest in [
        ("liftbridge-broker", "0.1.0", "License-Expression: Apache-2.0\n"),
        ("Some_Thing", "2.0", "License: MIT\n text\nClassifier: License :: OSI Approved :: MIT\n"),
    ]:
        folder = packages / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{rest}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    return tmp_path


def test_bill_lists_packages_of_both_kinds(image, monkeypatch, capsys):
    arguments = [f"--root={image}", f"--environment={image}/opt", "--name=liftbridge-broker"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    document = json.loads(capsys.readouterr().out)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["version"] == "0.1.0"
    assert [component["purl"] for component in document["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:deb/debian/zlib1g@1%3A1.2.13?arch=all",
        "pkg:pypi/liftbridge-broker@0.1.0",
        "pkg:pypi/some-thing@2.0",
    ]
    licenses = {each["name"]: each.get("licenses") for each in document["components"]}
    assert licenses["liftbridge-broker"] == [{"license": {"name": "Apache-2.0"}}]
    assert licenses["Some_Thing"] == [{"license": {"name": "MIT"}}]


def test_references_are_unique_and_all_in_the_image(sbom, image):
    document = sbom.bill("x", sbom.debian_components(image))
    references = [component["bom-ref"] for component in document["components"]]
    assert len(set(references)) == len(references) == 2
    assert document["dependencies"] == [{"ref": "image:x", "dependsOn": references}]


def test_same_image_gives_the_same_bill_and_another_another(sbom, image):
    components = list(sbom.debian_components(image))
    assert sbom.bill("x", components) == sbom.bill("x", reversed(components))
    fewer = sbom.bill("x", components[:1])
    assert fewer["serialNumber"] != sbom.bill("x", components)["serialNumber"]
