"""Results of stories, kept by commit, so that a full run continues where it was interrupted.

.bench/e2e/COMMIT/NAME.json      one story: whether it passed, and its figures
.bench/e2e/COMMIT/NAME/          what it wrote down, kept when it failed
.bench/e2e/COMMIT/report.md      all of them
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftbridge_testkit.bench.report import table
from liftbridge_testkit.kube.gaps import figures
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

FOLDER: Final = ROOT / ".bench" / "e2e"
ROLL: Final = "roll"
"""Names of intervals that count as rolls."""

ROLLED_MIN: Final = 20
P99_SECONDS_MAX: Final = 1.0
GAP_SECONDS_MAX: Final = 2.0


@dataclass(slots=True)
class Restart:
    """One restart of a broker.

    Attributes:
        mark: Name of its interval.
        pod: Pod of the broker.
        begin: Begin in seconds since 1970.
        end: End in seconds since 1970.
        gaps: Longest time without an acknowledgement, in seconds, by partition.
    """

    mark: str
    pod: str
    begin: float
    end: float
    gaps: dict[str, float]


@dataclass(slots=True)
class Result:
    """Outcome of a story.

    Attributes:
        story: Name of the story.
        commit: Commit under test; see `commit_key`.
        passed: Whether all checks passed.
        failures: Failed checks.
        seconds: Total duration.
        seed: Seed of all random choices.
        marks: Seconds of each interval that the story named.
        counts: Messages acknowledged, refused, unknown, delivered, stored.
        restarts: Restarts of brokers within marked intervals.
        gaps: Longest gap of any partition in each marked interval.
        killed: The write at which the operator was killed; empty if it was not killed.
        notes: Further figures.
        errors: Errors that clients received.
        unused_rights: Rights of the operator that were not used until the end of the story.
    """

    story: str
    commit: str
    passed: bool = False
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0
    marks: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    restarts: list[Restart] = field(default_factory=list)
    gaps: dict[str, float] = field(default_factory=dict)
    killed: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    unused_rights: list[str] = field(default_factory=list)


def commit_key(root: Path = ROOT) -> str:
    """Return the commit under test; with changes, a hash of them is appended."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
        )
        return done.stdout

    head = git("rev-parse", "--short=12", "HEAD").strip()
    changes = git("status", "--porcelain") and git("diff", "HEAD")
    if not changes:
        return head
    return f"{head}+{hashlib.blake2b(changes.encode(), digest_size=4).hexdigest()}"


def write(result: Result, folder: Path = FOLDER) -> Path:
    """Store a result; return its path."""
    path = folder / result.commit / f"{result.story}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def read_all(commit: str, folder: Path = FOLDER) -> dict[str, Result]:
    """Return the results of a commit, by story."""
    found = {}
    for path in sorted((folder / commit).glob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        values["restarts"] = [Restart(**one) for one in values["restarts"]]
        found[path.stem] = Result(**values)
    return found


def shard(stories: Mapping[str, float], number: int, count: int) -> list[str]:
    """Return the stories of a shard, the same in every run.

    Long ones first, to the least loaded shard.

    Args:
        stories: Expected minutes of each story.
        number: Number of the shard, from 1 on.
        count: Number of shards.
    """
    if not 1 <= number <= count:
        raise ValueError(f"shard {number}/{count}: the first is 1, the last {count}")
    loads = [0.0] * count
    chosen: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(stories, key=lambda one: (-stories[one], one)):
        least = loads.index(min(loads))
        loads[least] += stories[name]
        chosen[least].append(name)
    return sorted(chosen[number - 1])


def pending(stories: Iterable[str], results: Mapping[str, Result]) -> list[str]:
    """Return the stories that did not pass yet."""
    return [name for name in stories if name not in results or not results[name].passed]


def report(commit: str, stories: Sequence[str], results: Mapping[str, Result]) -> str:
    """Return all stories of a commit as a page of Markdown."""
    rows = []
    for name in sorted({*stories, *results}):
        one = results.get(name)
        if one is None:
            rows.append([name, "not run", "", "", "", "", ""])
            continue
        gap = max(one.gaps.values(), default=0.0)
        counts = [str(one.counts.get(key, 0)) for key in ("acked", "unknown")]
        verdict = "passed" if one.passed else "FAILED"
        rows.append(
            [name, verdict, f"{one.seconds:.0f} s", *counts, f"{gap:.2f} s", one.killed or "no"]
        )
    header = ["story", "", "took", "acked", "unknown", "longest gap", "operator killed at"]
    passed = sum(result.passed for result in results.values())
    lines = [
        f"# End-to-end stories of {commit}",
        f"{passed} of {len(rows)} passed.",
        table(header, rows),
        *rolls(results),
        *unused(results.values()),
    ]
    for name, one in sorted(results.items()):
        if one.failures:
            lines.append("\n".join([f"## {name} failed", "", *(f"- {t}" for t in one.failures)]))
    return "\n\n".join(lines) + "\n"


def unused(found: Iterable[Result]) -> list[str]:
    """Return the rights of the operator that no story used."""
    each = [set(one.unused_rights) for one in found]
    if not each:
        return []
    rights = sorted(set.intersection(*each))
    told = "\n".join(f"- `{one}`" for one in rights) if rights else "None."
    return [f"Rights of the operator that no story used:\n\n{told}"]


def rolls(results: Mapping[str, Result]) -> list[str]:
    """Return the cost of rolls: the longest gap of each partition at each restart, over all."""
    restarts = [
        restart
        for result in results.values()
        for restart in result.restarts
        if restart.mark.startswith(ROLL)
    ]
    gaps = [gap for restart in restarts for gap in restart.gaps.values()]
    if not gaps:
        return []
    found = figures(gaps)
    count = len({(name, mark) for name, one in results.items() for mark in _rolls_of(one)})
    is_met = count >= ROLLED_MIN and found.p99 < P99_SECONDS_MAX and found.longest < GAP_SECONDS_MAX
    row = [
        str(count),
        str(len(restarts)),
        *(f"{value:.3f} s" for value in (found.p50, found.p99, found.longest)),
        f"{ROLLED_MIN} rolls, p99 < {P99_SECONDS_MAX:g} s, max < {GAP_SECONDS_MAX:g} s",
        "yes" if is_met else "NO",
    ]
    header = ["rolls", "restarts", "p50", "p99", "max", "target", "met"]
    return [
        "Longest gap between acknowledgements of a partition, per restart in a roll:",
        table(header, [row]),
    ]


def _rolls_of(one: Result) -> set[str]:
    return {restart.mark for restart in one.restarts if restart.mark.startswith(ROLL)}
