"""`liftbridge spark doctor`: what each check finds, and what it says to do."""

import sys
from pathlib import Path

import pytest

from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.jobs import doctor
from pyspark_liftbridge.jobs.doctor import FAILED, OK, WARNING, Extra


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "state"), [("17.0.2", OK), ("21", OK), ("11.0.1", FAILED), ("", FAILED)]
)
def test_java_is_that_of_java_home(tmp_path, version, state):
    program(tmp_path / "bin/java", f"echo 'openjdk version \"{version}\"' >&2")
    found = doctor.java({"JAVA_HOME": str(tmp_path)})
    assert found.state == state
    assert str(tmp_path / "bin/java") in found.found
    assert ("apt-get install" in found.remedy) == (state == FAILED)


def test_no_java_names_the_package():
    found = doctor.java({"PATH": ""})
    assert found[:3] == ("java", FAILED, "no Java")
    assert "apt-get install openjdk-17-jre-headless" in found.remedy


def test_python_of_workers_is_this_one_unless_another_is_named(tmp_path):
    own = ".".join(map(str, sys.version_info[:3]))
    assert doctor.python({}) == ("python", OK, f"{sys.executable}, Python {own}", "")
    other = program(tmp_path / "python", "echo 3.9.1")
    found = doctor.python({"PYSPARK_PYTHON": str(other)})
    assert found.state == FAILED
    assert "Python 3.9.1; the driver has 3." in found.found
    assert "unset PYSPARK_PYTHON" in found.remedy


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo ModuleNotFoundError: pyspark_liftbridge >&2; exit 1", "ModuleNotFoundError"),
        ("exit 1", "it printed no error"),
        (None, "does not run"),
    ],
)
def test_python_without_the_package_fails(tmp_path, text, told):
    path = tmp_path / "python"
    if text is not None:
        program(path, text)
    found = doctor.python({"PYSPARK_PYTHON": str(path)})
    assert found.state == FAILED
    assert told in found.found


@pytest.mark.parametrize(
    ("requirement", "state", "remedy"),
    [
        ("pyarrow>=18", OK, ""),
        ("pyarrow>=1,<1000", OK, ""),
        ("pyarrow[x] >=1 ; python_version > '3'", OK, ""),
        ("pyarrow", OK, ""),
        ("pyarrow>=1000", FAILED, "pip install 'pyarrow>=1000'"),
        ("pyarrow<2,>=1", FAILED, "pip install 'pyarrow<2,>=1'"),
        ("no-such-package>=1", FAILED, "pip install 'no-such-package>=1'"),
    ],
)
def test_packages_are_those_that_are_declared(requirement, state, remedy):
    found = doctor.package(requirement)
    assert (found.state, found.remedy) == (state, remedy)


def test_packages_name_what_jobs_import():
    names = [one.name for one in doctor.packages()]
    assert names[0] == "liftbridge-spark"
    assert {"liftbridge", "numpy", "obstore", "pyarrow", "pyspark"} <= set(names)


def test_extras_are_no_failure():
    assert doctor.optional(Extra("no-such-package", "something", "x[y]")) == (
        "no-such-package",
        WARNING,
        "not installed; something needs it",
        "pip install 'x[y]'",
    )
    assert doctor.optional(Extra("pyarrow", "something", "pyarrow")).state == OK
    assert {"deltalake", "pyiceberg"} <= {one.name for one in doctor.EXTRAS}


def test_store_is_tried_and_left_as_it_was(tmp_path):
    assert doctor.store(str(tmp_path), {}).state == OK
    assert LocalFolder(tmp_path).listing("") == []
    (tmp_path / "file").touch()
    for root in (str(tmp_path / "file"), "ftp://x/y"):
        found = doctor.store(root, {})
        assert found.state == FAILED
        assert "use a folder" in found.remedy
