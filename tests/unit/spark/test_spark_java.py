"""Which Java is found, and what is said when Spark would not run on it."""

import os

import pytest

from pyspark_liftbridge.java import JavaError, find_java, version_text


def java_in(folder, name="java"):
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("told", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" LTS'])
def test_java_of_the_home_goes_before_that_of_the_path(tmp_path, told):
    home, path = tmp_path / "home", tmp_path / "path"
    (home / "bin").mkdir(parents=True)
    path.mkdir()
    first, second = java_in(home / "bin"), java_in(path)
    environ = {"PATH": str(path)}
    assert find_java(environ, lambda _program: told) == second
    assert find_java({**environ, "JAVA_HOME": str(home)}, lambda _program: told) == first


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("", "java does not run"),
        ("command not found", "java does not run"),
        ('openjdk version "11.0.2" 2019-01-15', "java is Java 11"),
        ('java version "1.8.0_202"', "java is Java 8"),
        ('openjdk version "26" 2026-03-17', "java is Java 26"),
    ],
)
def test_any_other_java_is_named_with_what_to_install(tmp_path, told, text):
    java_in(tmp_path)
    with pytest.raises(JavaError, match=rf"{text}: Spark needs Java 17 or 21.*openjdk-17"):
        find_java({"PATH": str(tmp_path)}, lambda _program: told)


def test_no_java_is_named_with_what_to_install(tmp_path):
    with pytest.raises(JavaError, match=r"no Java: .*apt-get install"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaError, match="does not run"):
        find_java({"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)})


def test_a_program_that_cannot_be_started_tells_nothing(tmp_path):
    assert version_text(str(tmp_path / "none")) == ""
    assert version_text(java_in(tmp_path)) == ""
