"""Dependencies: pinned with hashes, from anywhere, and the same in every place that names them."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from liftbridge_testkit.repository import ROOT, relative

REQUIREMENTS = ROOT / "requirements"
NAMES = ("uv", "broker", "client", "operator", "build", "image", "dev")
BESIDE = ("spark",)
"""Installed with what `dev` pins."""

IMAGES = ("image-spark",)
"""Installed in an image alone."""

ALONE = ("checkov",)
"""In an environment of its own, with versions of its own."""

OWN = {
    "liftbridge-proto",
    "liftbridge-broker",
    "liftbridge",
    "liftbridge-operator",
    "liftbridge-spark",
    "liftbridge-testkit",
}
PIN = re.compile(r"^([A-Za-z0-9._-]+)(\[[^]]*\])?==(\S+)")
# Distribution -> its sources, the file that pins it, and packages it may import beyond that file.
# `liftbridge_client.testing`, for users' own tests, runs the broker and offers a pytest fixture.
SHIPPED = {
    "broker": ("broker/src", "broker.in", {"liftbridge_proto"}),
    "client": ("client/src", "client.in", {"liftbridge_proto", "liftbridge_broker", "pytest"}),
    "operator": ("operator/src", "operator.in", {"liftbridge_proto"}),
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def entries(path: Path) -> Iterator[str]:
    """Names asked for in an `.in` file, those of included files too."""
    for raw in path.read_text(encoding="utf-8").splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("-r"):
            yield from entries(path.parent / line[2:].strip())
        elif line:
            yield normal(re.split(r"[<>=!~;\[ ]", line)[0])


def extras(path: Path) -> set[str]:
    """Packages that come by an extra of an entry, as `nkeys` by `nats-py[nkeys]`."""
    found = re.findall(r"\[([\w, -]+)\]", path.read_text(encoding="utf-8"))
    return {normal(name.strip()) for group in found for name in group.split(",")}


def pins(name: str) -> dict[str, list[str]]:
    """Pinned name and version -> hashes, of a compiled file."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if match := PIN.match(line):
            current = f"{normal(match[1])}=={match[3]}"
            found[current] = []
        elif "--hash=sha256:" in line:
            found[current].append(line)
    return found


def optional(name: str) -> set[str]:
    """What a distribution uses when it is installed with an extra."""
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project.get("optional-dependencies", {}).values()
    return {normal(re.split(r"[<>=]", entry)[0]) for group in groups for entry in group}


def imported_roots(folder: Path) -> dict[str, str]:
    """First part of each absolute import below a folder -> a file that has it."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                found.setdefault(module.partition(".")[0], relative(path))
    return found


@pytest.mark.parametrize("name", [*NAMES, *BESIDE, *IMAGES, *ALONE])
def test_every_entry_is_pinned(name):
    pinned = {pin.partition("==")[0] for pin in pins(name)}
    assert set(entries(REQUIREMENTS / f"{name}.in")) - pinned == set()


@pytest.mark.parametrize("name", [*NAMES, *BESIDE, *IMAGES, *ALONE])
def test_every_pin_has_hashes_and_nothing_but_hashes(name):
    text = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    assert [pin for pin, hashes in pins(name).items() if not hashes] == []
    # No option, no address, no path: only pins, hashes and comments.
    allowed = re.compile(r"[A-Za-z0-9._-]+(\[[^]]*\])?==|    --hash=sha256:[0-9a-f]{64}|\s*#|$")
    assert [line for line in text.splitlines() if not allowed.match(line)] == []
    assert "://" not in text


def test_all_files_agree_on_versions():
    development = set(pins("dev"))
    assert {name: set(pins(name)) - development for name in NAMES} == {
        name: set() for name in NAMES
    }
    pinned = {pin.partition("==")[0] for pin in development}
    assert {
        pin
        for name in (*BESIDE, *IMAGES)
        for pin in pins(name)
        if pin not in development and pin.partition("==")[0] in pinned
    } == set()


def test_image_of_pipelines_holds_what_the_distribution_needs():
    project = tomllib.loads((ROOT / "spark" / "pyproject.toml").read_text(encoding="utf-8"))
    named = {normal(re.split(r"[<>=]", one)[0]) for one in project["project"]["dependencies"]}
    assert named - OWN <= set(entries(REQUIREMENTS / "image-spark.in"))
    tests = {pin for pin in pins("spark") if pin.startswith(("pyspark==", "py4j=="))}
    assert tests <= set(pins("image-spark"))


def test_image_holds_what_the_broker_and_the_command_need():
    wanted = {*entries(REQUIREMENTS / "broker.in"), *entries(REQUIREMENTS / "client.in")}
    # What reads into columns runs elsewhere; typing-extensions come with others.
    left_out = {"numpy", "pyarrow", "typing-extensions"}
    assert wanted - set(entries(REQUIREMENTS / "image.in")) == left_out
    assert "typing-extensions" in {pin.partition("==")[0] for pin in pins("image")}


@pytest.mark.parametrize("name", SHIPPED)
def test_distribution_declares_what_its_requirements_pin(name):
    assert declared(name) - OWN == set(entries(REQUIREMENTS / SHIPPED[name][1]))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_code_imports_only_what_it_declares(name):
    sources, requirements, extra = SHIPPED[name]
    required = set(entries(REQUIREMENTS / requirements))
    allowed = required | extras(REQUIREMENTS / requirements) | optional(name)
    assert undeclared(sources, allowed=allowed, own=extra) == {}


def test_generated_code_declares_what_it_imports_and_all_of_it_is_pinned():
    assert undeclared("proto/src", allowed=declared("proto"), own=set()) == {}
    assert declared("proto") - {pin.partition("==")[0] for pin in pins("dev")} == set()


def test_spark_distribution_declares_what_it_imports_and_all_of_it_is_pinned():
    allowed = declared("spark") | optional("spark")
    own = {"liftbridge_proto", "liftbridge_client"}
    assert undeclared("spark/src", allowed=allowed, own=own) == {}
    pinned = {pin.partition("==")[0] for name in ("dev", "spark") for pin in pins(name)}
    assert allowed - OWN - pinned == set()
    ranges = re.findall(r"pyspark(?:\[[\w,]+\])?(>=[\d.,<]+)", spark_texts())
    assert len(ranges) == 2
    assert len(set(ranges)) == 1


def spark_texts() -> str:
    """Both files that say which versions of PySpark are used."""
    paths = (ROOT / "spark/pyproject.toml", REQUIREMENTS / "spark.in")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def declared(name: str) -> set[str]:
    """What a distribution needs, its own kind included."""
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))
    return {normal(re.split(r"[<>=]", entry)[0]) for entry in project["project"]["dependencies"]}


def undeclared(sources: str, *, allowed: set[str], own: set[str]) -> dict[str, str]:
    """Imports below a folder that come neither from it, nor from `own`, nor from `allowed`."""
    own = own | {path.name for path in (ROOT / sources).iterdir()}
    providers = packages_distributions()  # PySpark is not installed here, and is its own
    return {
        root: f"{where} imports {root}"
        for root, where in imported_roots(ROOT / sources).items()
        if root not in sys.stdlib_module_names
        and root != "_typeshed"  # is there for the type checker alone
        and root not in own
        and not {normal(provider) for provider in providers.get(root, [root])} & allowed
    }


def test_generated_code_runs_on_the_declared_protobuf():
    """protoc writes its version into what it generates, and the runtime refuses to be older."""
    source = (ROOT / "proto/src/liftbridge_proto/api_pb2.py").read_text(encoding="utf-8")
    match = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+)", source)
    assert match is not None
    for name in ("proto", "broker", "client"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))
        assert "protobuf>=" + ".".join(match.groups()) in project["project"]["dependencies"]


def test_generated_stubs_run_on_the_declared_grpcio():
    """As the plugin of grpcio does: the stubs refuse an older one when they are imported."""
    stubs = sorted((ROOT / "proto/src").rglob("*_pb2_grpc.py"))
    found = {
        version
        for path in stubs
        for version in re.findall(
            r"^GRPC_GENERATED_VERSION = '(.*)'", path.read_text(), re.MULTILINE
        )
    }
    assert len(found) == 1
    for name in ("proto", "client", "operator"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))
        assert f"grpcio>={min(found)}" in project["project"]["dependencies"]
