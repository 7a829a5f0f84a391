"""Check that a machine meets the requirements of jobs; each check names a remedy."""

import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final, NamedTuple

from pyspark_liftbridge.archive.errors import ArchiveError
from pyspark_liftbridge.archive.stores.store import open_store
from pyspark_liftbridge.java import JavaError, find_version

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"

PACKAGE: Final = "liftbridge-spark"

_SECONDS_MAX: Final = 30
_PROGRAM: Final = "import sys, pyspark_liftbridge; print('.'.join(map(str, sys.version_info[:3])))"
_OTHER_PYTHON: Final = (
    f"unset PYSPARK_PYTHON, or set it to a Python of the driver's version with {PACKAGE}"
)
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)")


class Check(NamedTuple):
    """Result of a check.

    Attributes:
        name: Name of the check.
        state: `OK`, `WARNING` or `FAILED`.
        found: Result in words.
        remedy: Action to take; empty for none.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


class Extra(NamedTuple):
    """A package that not every job needs.

    Attributes:
        name: Name of the package.
        use: Feature that needs it.
        install: Requirement to install with pip.
    """

    name: str
    use: str
    install: str


EXTRAS: Final = (
    Extra("deltalake", "archives as tables of Python", "deltalake"),
    Extra("pyiceberg", "archives as Iceberg tables", "liftbridge-spark[iceberg]"),
    Extra("grpcio-status", "--remote", "pyspark[connect]"),
)


def checks(environ: Mapping[str, str]) -> list[Check]:
    """Check the software installed on this machine.

    Args:
        environ: Variables of the environment.
    """
    return [java(environ), python(environ), *packages(), *map(optional, EXTRAS)]


def java(environ: Mapping[str, str]) -> Check:
    """Check the Java that Spark would start."""
    try:
        program, number = find_version(environ)
    except JavaError as error:
        found, _, remedy = str(error).partition(": ")
        return Check("java", FAILED, found, remedy)
    return Check("java", OK, f"{program}, Java {number}")


def python(environ: Mapping[str, str]) -> Check:
    """Check the Python of workers: it needs this package, and the driver's version."""
    program = environ.get("PYSPARK_PYTHON") or sys.executable
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Python
            (program, "-c", _PROGRAM),
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("python", FAILED, f"{program} does not run ({error})", _OTHER_PYTHON)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed no error"]
        return Check("python", FAILED, f"{program}: {lines[-1]}", _OTHER_PYTHON)
    text = f"{program}, Python {done.stdout.strip()}"
    own = ".".join(map(str, sys.version_info[:2]))
    if done.stdout.strip().rpartition(".")[0] != own:
        return Check("python", FAILED, f"{text}; the driver has {own}", _OTHER_PYTHON)
    return Check("python", OK, text)


def packages() -> list[Check]:
    """Check this package, and its declared dependencies."""
    installed = _version(PACKAGE)
    if installed is None:
        return [Check(PACKAGE, FAILED, "not installed", f"pip install {PACKAGE}")]
    declared = [
        requirement for requirement in requires(PACKAGE) or () if "extra ==" not in requirement
    ]
    return [Check(PACKAGE, OK, installed), *map(package, sorted(declared))]


def package(requirement: str) -> Check:
    """Check a declared dependency, such as `pyspark<5,>=4.2`."""
    parts = _REQUIREMENT.match(requirement)
    assert parts is not None, requirement
    name, bounds = parts[1], parts[2].strip()
    remedy = f"pip install '{name}{bounds}'"
    installed = _version(name)
    if installed is None:
        return Check(name, FAILED, "not installed", remedy)
    fits = all(_holds(installed, bound.strip()) for bound in bounds.split(",") if bound.strip())
    return Check(name, OK, installed) if fits else Check(name, FAILED, installed, remedy)


def _holds(found: str, bound: str) -> bool:
    """Return whether a version meets a bound; unknown kinds of bounds are ignored."""
    if bound.startswith(">="):
        return _numbers(found) >= _numbers(bound)
    return not bound.startswith("<") or _numbers(found) < _numbers(bound)


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"\d+(?:\.\d+)*", text)
    return () if match is None else tuple(int(part) for part in match[0].split("."))


def optional(wanted: Extra) -> Check:
    """Check a package that not every job needs."""
    installed = _version(wanted.name)
    if installed is not None:
        return Check(wanted.name, OK, installed)
    remedy = f"pip install '{wanted.install}'"
    return Check(wanted.name, WARNING, f"not installed; {wanted.use} needs it", remedy)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def store(root: str, options: Mapping[str, str]) -> Check:
    """Check that an address can hold an archive: write a file twice, and remove it."""
    try:
        open_store(root, options)
    except ArchiveError as error:
        text = " ".join(str(error).split())
        remedy = "use a folder that can be written, or a store that refuses to overwrite"
        return Check("archive", FAILED, text, remedy)
    return Check("archive", OK, f"{root} refuses to overwrite a file")
