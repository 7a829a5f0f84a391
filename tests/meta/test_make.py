"""The Makefile and the script behind it: what documents promise exists, and any mirror serves."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from liftbridge_testkit.repository import ROOT, files, relative

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))
COMMAND = re.compile(r"(?:^|`)make (?:[A-Z]+=\S+ )*([a-z][a-z0-9-]*)", re.MULTILINE)
PIP_CONFIG = """
[global]
index-url = https://mirror.example/simple
find-links =
    /srv/wheels
    /srv/more
timeout = 90
[install]
trusted-host = mirror.example
"""


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    path = ROOT / "requirements" / "bootstrap.py"
    spec = importlib.util.spec_from_file_location("bootstrap", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pip_configured(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "pip.conf"
    path.write_text(PIP_CONFIG, encoding="utf-8")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))


def test_make_alone_lists_every_target_with_a_description():
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    described = set(re.findall(r"^([a-z][a-z0-9-]*):.*## ", MAKEFILE, re.MULTILINE))
    assert {line.split()[1] for line in listed.splitlines()} == described
    assert {"install", "demo", "test", "check", "bench", "docs"} <= described


def test_every_make_command_in_the_documents_is_a_target():
    unknown = [
        f"{relative(page)}: make {target}"
        for page in files(".md")
        for target in COMMAND.findall(page.read_text(encoding="utf-8"))
        if target not in TARGETS
    ]
    assert unknown == []


def test_uv_is_given_what_pip_is_configured_with(bootstrap, pip_configured):
    given = bootstrap.uv_environment(Path(sys.executable))
    assert {name: value for name, value in given.items() if name.startswith("UV_")} == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_FIND_LINKS": "/srv/wheels,/srv/more",
        "UV_HTTP_TIMEOUT": "90",
        "UV_INSECURE_HOST": "mirror.example",
    }


def test_what_the_caller_tells_uv_stands(bootstrap, pip_configured, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://other.example/simple")
    given = bootstrap.uv_environment(Path(sys.executable))
    assert given["UV_DEFAULT_INDEX"] == "https://other.example/simple"


def test_without_python_the_message_says_what_to_do(tmp_path):
    command = ["make", f"VENV={tmp_path}/venv", "PYTHON=no-such-python", "install"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed; none of these is: no-such-python." in done.stdout
    assert "make PYTHON=/path/to/python3.11 install" in done.stdout
