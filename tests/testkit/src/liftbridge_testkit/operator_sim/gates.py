"""The gates of the planner: conditions without which the operator does harm or hangs.

Each is marked in the code by `# gate NAME` at the end of its line, and listed in
`tests/sim/operator_gates.yaml` with its replacement and the unit test that then fails. On request,
seeds run as well, in a separate process with the changed source.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from liftbridge_testkit.guards.child import play_scenario, short
from liftbridge_testkit.guards.removal import install
from liftbridge_testkit.repository import ROOT

LIST: Final = ROOT / "tests/sim/operator_gates.yaml"
CODE: Final = ROOT / "operator/src/liftbridge_operator/cluster/planning"
MARK: Final = re.compile(r"  # gate ([A-Z][A-Z_]*)$")
CHILD_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Gate:
    """One entry: in the marked line of `file`, `new` replaces `old`."""

    name: str
    file: str
    old: str
    new: str
    scenario: str


def read_gates() -> dict[str, Gate]:
    """Return all entries by name."""
    entries = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    gates = [
        Gate(entry["gate"], entry["file"], entry["old"], entry["new"], entry["scenario"])
        for entry in entries
    ]
    assert len({gate.name for gate in gates}) == len(gates)
    return {gate.name: gate for gate in gates}


def read_marks() -> dict[str, list[str]]:
    """Return every mark with its files."""
    marks: dict[str, list[str]] = {}
    for path in sorted(CODE.glob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = MARK.search(line)
            if match:
                marks.setdefault(match[1], []).append(path.name)
    return marks


def without(gate: Gate) -> str:
    """Return the source of the gate's file without the gate.

    Raises:
        ValueError: There is no such mark, or its line does not contain the text exactly once.
    """
    lines = (CODE / gate.file).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        match = MARK.search(line)
        if match and match[1] == gate.name:
            if line.count(gate.old) != 1:
                raise ValueError(f"{gate.name}: not exactly once in its line: {gate.old!r}")
            lines[number] = line.replace(gate.old, gate.new)
            return "\n".join(lines)
    raise ValueError(f"{gate.file} has no mark of {gate.name}")


def failure_of(gate: Gate, seeds: range | None = None) -> str:
    """Return the first failure of the gate's test, or of some seeds, without it; empty for none."""
    order = {"gate": gate.name, "seeds": [seeds.start, seeds.stop] if seeds else []}
    done = subprocess.run(
        [sys.executable, "-m", "liftbridge_testkit.operator_sim.gates", json.dumps(order)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=True,
    )
    return str(json.loads(done.stdout.splitlines()[-1]))


def remove_each(names: Sequence[str], seeds: range, workers: int) -> int:
    """Remove gates one by one; print the failing tests; return 1 if a loss is not detected."""
    gates = [one for one in read_gates().values() if not names or one.name in names]

    def look(gate: Gate) -> tuple[Gate, str, str]:
        return gate, failure_of(gate), failure_of(gate, seeds) if seeds else "not asked"

    missed = unseen = 0
    with ThreadPoolExecutor(workers) as pool:
        for gate, by_test, by_seed in pool.map(look, gates):
            missed += not by_test
            unseen += not by_seed
            sys.stdout.write(
                f"{gate.name:20} test: {by_test or 'MISSED'}\n{'':20} seeds: {by_seed or '-'}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(
        f"{len(gates)} gates, {missed} that their test misses, {unseen} that no seed shows\n"
    )
    return 1 if missed else 0


def _child(order: str) -> str:
    asked = json.loads(order)
    gate = read_gates()[asked["gate"]]
    file = (CODE / gate.file).relative_to(ROOT)
    install({Path(file).as_posix(): without(gate)})
    if not asked["seeds"]:
        return play_scenario(gate.scenario)
    from liftbridge_testkit.operator_sim.seeds import run_seed  # noqa: PLC0415 - after `install`

    for seed in range(*asked["seeds"]):
        failure = run_seed(seed).failure
        if failure:
            return short(failure)
    return ""


if __name__ == "__main__":
    answer = _child(sys.argv[1])
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
