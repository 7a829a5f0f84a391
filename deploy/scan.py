"""Have checkov read what the charts and the operator make, and the Dockerfiles.

Charts are rendered by Helm with their own values and with everything that they can have besides;
objects of clusters are those of the examples that the operator's tests render. A finding fails
unless `scan.yaml` has an exception for it, and so does an exception that excepts nothing.
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
"""Chart and values of each variant. The other chart makes resources of our own alone, which checkov
has no checks for; what becomes of them are the objects of clusters."""

DOCKERFILES: Final = ("Dockerfile.broker", "Dockerfile.operator", "Dockerfile.spark")


class Finding(NamedTuple):
    """Something that a check does not like.

    Attributes:
        check: Id of the check.
        where: File without its ending, and kind of the object in it.
        text: What is told of it.
    """

    check: str
    where: str
    text: str


class Scanned(NamedTuple):
    """What came of a scan.

    Attributes:
        files: In which something was checked, without their endings.
        findings: In their order.
    """

    files: frozenset[str]
    findings: tuple[Finding, ...]


def main() -> int:
    """Scan and tell; 1 when there is something to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkov", type=Path, required=True, help="the program")
    options = parser.parse_args()
    helm = shutil.which("helm") or shutil.which("helm", path=PROGRAMS)
    if helm is None:
        sys.exit("helm is needed; tests/e2e/cluster/build.sh builds one")
    with tempfile.TemporaryDirectory(prefix="scan-") as name:
        folder = Path(name)
        wanted = render(folder, helm)
        found = scan(folder, options.checkov)
    exceptions = yaml.safe_load((ROOT / "deploy" / "scan.yaml").read_text(encoding="utf-8"))
    told = judge(found, wanted, exceptions)
    excepted = f"{len(found.findings)} findings, each with its reason in deploy/scan.yaml"
    told_last = f"{len(told)} to mend" if told else f"{len(wanted)} files are clean: {excepted}"
    sys.stdout.write("".join(f"{line}\n" for line in (*told, told_last)))
    return 1 if told else 0


def render(folder: Path, helm: str) -> list[str]:
    """Write everything that is to be read into a folder; names of the files without endings."""
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
    """Run checkov over a folder, without asking anything of the network."""
    command = [str(checkov), "--directory", str(folder), "--skip-download", "--output", "json"]
    command += ["--framework", "kubernetes", "dockerfile", "--compact"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - ours
    try:
        return read(json.loads(done.stdout))
    except json.JSONDecodeError:
        sys.exit(f"checkov failed (status {done.returncode}): {done.stdout}{done.stderr}")


def read(reports: Any) -> Scanned:
    """What checkov tells, of one framework or of several."""
    files: set[str] = set()
    found = []
    for report in reports if isinstance(reports, list) else [reports]:
        results = report["results"]
        for one in (*results["passed_checks"], *results["failed_checks"]):
            files.add(_file(one))
        for one in results["failed_checks"]:
            kind = one["resource"].partition(".")[0]
            text = f"{one['check_name']} ({one['resource']})"
            found.append(Finding(one["check_id"], f"{_file(one)}/{kind}", text))
    return Scanned(frozenset(files), tuple(found))


def _file(check: dict[str, Any]) -> str:
    return str(check["file_path"]).lstrip("/").removesuffix(".yaml")


def judge(
    scanned: Scanned, wanted: Iterable[str], exceptions: Sequence[dict[str, str]]
) -> list[str]:
    """What is to be mended: findings, exceptions for nothing, files that nothing was found in.

    Args:
        scanned: What came of the scan.
        wanted: Files that were to be read, without endings.
        exceptions: Of `scan.yaml`.
    """
    used: set[int] = set()
    told = []
    for one in scanned.findings:
        matching = {
            number
            for number, each in enumerate(exceptions)
            if each["check"] == one.check and fnmatchcase(one.where, each["where"])
        }
        used |= matching
        if not matching:
            told.append(f"{one.where}: {one.check}: {one.text}")
    told += [
        f"{each['check']} in {each['where']}: excepted for nothing"
        for number, each in enumerate(exceptions)
        if number not in used
    ]
    return told + [f"{name}: nothing was checked" for name in wanted if name not in scanned.files]


if __name__ == "__main__":
    sys.exit(main())
