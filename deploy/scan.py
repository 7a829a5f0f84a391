"""Check with checkov the objects of the charts and the operator, and the Dockerfiles.

Helm renders each chart with its default values and with all optional parts. The objects of clusters
are those of the examples that the operator's tests render. The scan fails for a finding without an
exception in `scan.yaml`, and for an exception that no finding needs.
"""

import argparse
import json
import shutil
import subprocess  # Helm and checkov have no other interface
import sys
import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.resources.clusters import (
    PATHS,
    cluster_of,
    everything,
    inputs_for,
    load_spec,
)

HELM: Final = ROOT / "helm"
PROGRAMS: Final = ROOT / ".cluster" / "out" / "bin"
CHARTS: Final = {
    "operator-plain": ("liftbridge-operator",),
    "operator-full": (
        "liftbridge-operator",
        "watchNamespaces={shop,bank}",
        "rbac.monitoring=true",
        "rbac.certManager=true",
        "monitoring.serviceMonitor.enabled=true",
        "monitoring.prometheusRule.enabled=true",
        "monitoring.dashboards.enabled=true",
    ),
}
"""Chart and values of each variant.

The chart `liftbridge` renders only custom resources, which checkov does not check; the objects that
the operator renders for them are checked instead.
"""

DOCKERFILES: Final = ("Dockerfile.broker", "Dockerfile.operator", "Dockerfile.spark")


class Finding(NamedTuple):
    """A failed check.

    Attributes:
        check: Id of the check.
        where: Name of the file without its suffix, and kind of the object.
        text: Description of the check, with the object.
    """

    check: str
    where: str
    text: str


class Scanned(NamedTuple):
    """Result of a scan.

    Attributes:
        files: Names of the files with checked objects, without suffixes.
        findings: Failed checks, in the order of checkov's reports.
    """

    files: frozenset[str]
    findings: tuple[Finding, ...]


def main() -> int:
    """Scan and print the problems; return 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkov", type=Path, required=True, help="the program")
    options = parser.parse_args()
    helm = shutil.which("helm") or shutil.which("helm", path=PROGRAMS)
    if helm is None:
        sys.exit("helm is needed; tests/e2e/cluster/build.sh builds one")
    with tempfile.TemporaryDirectory(prefix="scan-") as name:
        folder = Path(name)
        wanted = render(folder, helm)
        scanned = scan(folder, options.checkov)
    exceptions = yaml.safe_load((ROOT / "deploy" / "scan.yaml").read_text(encoding="utf-8"))
    problems = judge(scanned, wanted, exceptions)
    excepted = f"{len(scanned.findings)} findings, each with its reason in deploy/scan.yaml"
    summary = (
        f"{len(problems)} to fix" if problems else f"{len(wanted)} files are clean: {excepted}"
    )
    sys.stdout.write("".join(f"{line}\n" for line in (*problems, summary)))
    return 1 if problems else 0


def render(folder: Path, helm: str) -> list[str]:
    """Write all files to scan into a folder; return their names without suffixes."""
    for name, (chart, *values) in CHARTS.items():
        settings = [part for value in values for part in ("--set", value)]
        command = [helm, "template", "liftbridge", str(HELM / chart), "--namespace", "system"]
        done = subprocess.run([*command, *settings], check=True, capture_output=True)  # noqa: S603 - ours
        (folder / f"{name}.yaml").write_bytes(done.stdout)
    for path in PATHS:
        spec = load_spec(path)
        objects = everything(cluster_of(spec), inputs_for(spec))
        text = yaml.safe_dump_all(objects)
        (folder / f"cluster-{path.stem}.yaml").write_text(text, encoding="utf-8")
    for name in DOCKERFILES:
        shutil.copy(ROOT / name, folder)
    return [*CHARTS, *(f"cluster-{path.stem}" for path in PATHS), *DOCKERFILES]


def scan(folder: Path, checkov: Path) -> Scanned:
    """Run checkov on a folder, without network access."""
    command = [str(checkov), "--directory", str(folder), "--skip-download", "--output", "json"]
    command += ["--framework", "kubernetes", "dockerfile", "--compact"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - ours
    try:
        return read(json.loads(done.stdout))
    except json.JSONDecodeError:
        sys.exit(f"checkov failed (status {done.returncode}): {done.stdout}{done.stderr}")


def read(reports: Any) -> Scanned:
    """Parse the report of checkov, for one framework or several."""
    files: set[str] = set()
    findings = []
    for report in reports if isinstance(reports, list) else [reports]:
        results = report["results"]
        for check in (*results["passed_checks"], *results["failed_checks"]):
            files.add(_file(check))
        for check in results["failed_checks"]:
            kind = check["resource"].partition(".")[0]
            text = f"{check['check_name']} ({check['resource']})"
            findings.append(Finding(check["check_id"], f"{_file(check)}/{kind}", text))
    return Scanned(frozenset(files), tuple(findings))


def _file(check: dict[str, Any]) -> str:
    return str(check["file_path"]).lstrip("/").removesuffix(".yaml")


def judge(
    scanned: Scanned, wanted: Iterable[str], exceptions: Sequence[dict[str, str]]
) -> list[str]:
    """List the problems: findings without exception, unused exceptions, files without checks.

    Args:
        scanned: Result of the scan.
        wanted: Names of the files to scan, without suffixes.
        exceptions: Content of `scan.yaml`.
    """
    used: set[int] = set()
    problems = []
    for finding in scanned.findings:
        matching = {
            number
            for number, exception in enumerate(exceptions)
            if exception["check"] == finding.check
            and fnmatchcase(finding.where, exception["where"])
        }
        used |= matching
        if not matching:
            problems.append(f"{finding.where}: {finding.check}: {finding.text}")
    problems += [
        f"{exception['check']} in {exception['where']}: this exception is not needed"
        for number, exception in enumerate(exceptions)
        if number not in used
    ]
    unchecked = [name for name in wanted if name not in scanned.files]
    return problems + [f"{name}: no object was checked" for name in unchecked]


if __name__ == "__main__":
    sys.exit(main())
