"""What is loaded when Spark looks for the data source, and when the command starts.

Spark asks for it in many processes, each with seconds to answer; on a busy machine a worker that
loads too much dies with "Python worker failed to connect back".
"""

import subprocess
import sys

import pytest

from liftbridge_testkit.lone_imports import lone_imports, modules_of

HEAVY = {
    "deltalake", "google", "grpc", "liftbridge_client", "liftbridge_proto", "numpy", "obstore",
    "pandas", "py4j", "pyarrow", "pyiceberg", "pyspark", "rich", "typer",
}  # fmt: skip
OF_THE_COMMAND = {"google", "grpc", "liftbridge_client", "liftbridge_proto", "rich", "typer"}
PROGRAM = """
import sys
before = set(sys.modules)
import {module}
print(*sorted(set(sys.modules) - before))
"""


def loaded(module: str) -> set[str]:
    """Modules that importing one brings along, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return set(done.stdout.split())


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_package_alone_is_one_module():
    modules = loaded("pyspark_liftbridge")
    assert roots(modules) - sys.stdlib_module_names == {"pyspark_liftbridge"}
    assert {name for name in modules if name.startswith("pyspark_")} == {"pyspark_liftbridge"}


def test_the_command_with_our_group_loads_nothing_heavy():
    modules = loaded("liftbridge_client.cli")
    assert "pyspark_liftbridge.cli" in modules  # by its entry point
    assert roots(modules) & HEAVY <= OF_THE_COMMAND
    parts = {name.split(".")[1] for name in modules if name.startswith("pyspark_liftbridge.")}
    assert parts <= {"address", "cli", "plan", "units"}


@pytest.mark.parametrize("heavy", ["numpy", "pyarrow"])
def test_planted_heavy_import_is_found(heavy):
    assert heavy in roots(loaded(heavy)) & HEAVY


def test_each_module_can_be_imported_first():
    """Those that need Spark are imported by `tests/spark`."""
    found = lone_imports("pyspark_liftbridge")
    assert sorted(found) == modules_of("pyspark_liftbridge")
    assert {told for told in found.values() if told} <= {
        "ModuleNotFoundError: No module named 'pyspark'"
    }
