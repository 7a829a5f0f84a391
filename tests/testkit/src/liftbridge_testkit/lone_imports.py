"""Imports each module of a package alone, to detect dependencies on the order of imports."""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_PROGRAM = """
import importlib, json, os, sys
for name in sys.argv[1].split():
    importlib.import_module(name)
for name in sys.argv[2:]:
    child = os.fork()
    if not child:
        told = ""
        try:
            importlib.import_module(name)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        print(json.dumps([name, told]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
_SHARED = "grpc numpy pyarrow.compute pyarrow.parquet typer"
"""Slow modules of other packages, loaded once for all."""


def modules_of(package: str) -> list[str]:
    """Return the names of all modules of a package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    root = Path(spec.origin).parent
    paths = (one.relative_to(root.parent).with_suffix("") for one in root.rglob("*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def lone_imports(package: str) -> Mapping[str, str]:
    """Return the error of importing each module of a package first, empty for none."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, _SHARED, *modules_of(package)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())
