"""Removes each guard of Raft in turn and sees that its script, and random lives, notice.

    python -m liftbridge_testkit.raft.guards [seeds] [word of a guard's name]

Works on a copy of the sources. Prints a line for each guard: the scripts that no longer happen as
written, and the first seed of `chaos` that fails. Ends with 1 when a guard is not noticed as its
class in `tests/guards/raft.toml` says.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from liftbridge_testkit.raft.chaos import Chaos
from liftbridge_testkit.raft.script import play
from liftbridge_testkit.repository import ROOT

LIST: Final = ROOT / "tests/guards/raft.toml"
SCRIPTS: Final = ROOT / "tests/scenarios/raft"
PACKAGE: Final = "broker/src/liftbridge_broker"
SEEDS: Final = 2_000
STEPS: Final = 1_500

Guard = dict[str, str]


def read_guards() -> list[Guard]:
    """The list."""
    guards: list[Guard] = tomllib.loads(LIST.read_text(encoding="utf-8"))["guard"]
    return guards


def removed(guard: Guard, source: str) -> str:
    """The source without the guard.

    Raises:
        ValueError: The source does not have it exactly once.
    """
    if source.count(guard["find"]) != 1:
        raise ValueError(f"{guard['file']} has not exactly once: {guard['find']!r}")
    return source.replace(guard["find"], guard["replace"])


def failing_scripts() -> list[str]:
    """Scripts that do not happen as written, with the sources of this process."""
    failed = []
    for path in sorted(SCRIPTS.glob("*.txt")):
        try:
            expected, played = play(path, rewrite=False)
        except Exception:  # noqa: BLE001 - however it shows that the guard is gone
            failed.append(path.stem)
            continue
        if expected != played:
            failed.append(path.stem)
    return failed


def failing_seed(seeds: int) -> int | None:
    """First seed of `chaos` that breaks an invariant."""
    for seed in range(seeds):
        try:
            Chaos(seed).run(STEPS)
        except Exception:  # noqa: BLE001 - however it shows that the guard is gone
            return seed
    return None


def child(seeds: int) -> None:
    """What the process without the guard does."""
    sys.stdout.write(",".join(failing_scripts()) + "\n")
    sys.stdout.write(f"{failing_seed(seeds)}\n")


def check(guard: Guard, seeds: int) -> bool:
    """Run a process without `guard`; whether it is noticed as its class says.

    Guards of class D get a tenth of the seeds: it is not expected that any notices.
    """
    if guard["class"] == "D":
        seeds //= 10
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "liftbridge_broker"
        shutil.copytree(ROOT / PACKAGE, tree, ignore=shutil.ignore_patterns("__pycache__"))
        path = tree / "raft" / guard["file"]
        path.write_text(removed(guard, path.read_text(encoding="utf-8")), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "liftbridge_testkit.raft.guards", "--child", str(seeds)],
            env={**os.environ, "PYTHONPATH": name},
            capture_output=True,
            text=True,
            check=True,
        )
    scripts, seed = done.stdout.splitlines()
    is_script = guard["script"] in scripts.split(",")
    is_fine = is_script and (seed != "None" or guard["class"] == "D")
    verdict = "ok  " if is_fine else "MISS"
    found = f"{verdict} {guard['class']} seed={seed:5} scripts={scripts}"
    sys.stdout.write(f"{found} | {guard['name']}\n")
    sys.stdout.flush()
    return is_fine


def main(arguments: list[str]) -> int:
    """Check all guards, or those with the word in their name."""
    if arguments[:1] == ["--child"]:
        child(int(arguments[1]))
        return 0
    seeds = int(arguments[0]) if arguments else SEEDS
    word = arguments[1] if len(arguments) > 1 else ""
    results = [check(guard, seeds) for guard in read_guards() if word in guard["name"]]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
