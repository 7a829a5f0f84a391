"""Runs a scenario, or seeds, in a process without some guards; prints one line of JSON for each.

    python -m liftbridge_testkit.guards.child '{"remove": ["L3.d"], "seeds": [0, 1], ...}'

The keys: `remove`, names; `tell`, whether to tell which guards were at work (nothing is removed
then); `scenarios`, or `seeds` with `world`.
"""

import builtins
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, TextIO

from liftbridge_testkit.guards.listing import Guard, read_guards
from liftbridge_testkit.guards.removal import REACHED, by_file, install, instrumented, without
from liftbridge_testkit.repository import ROOT

CPU_SECONDS = 90.0
"""CPU time of one scenario or seed; without a guard it may loop forever."""

MEMORY_BYTES = 3 << 30
STEPS = 1_500
"""Steps of one random life of any kind."""

HEAL_STEPS = 20_000
"""Steps within which the system must recover."""

LIVES = {
    "cores": ("liftbridge_testkit.replica_lives", "life"),
    "replicas": ("liftbridge_testkit.replica_cluster", "ReplicaCluster"),
    "epochs": ("liftbridge_testkit.epoch_life", "life"),
    "compacted": ("liftbridge_testkit.compacted_life", "life"),
    "unclean": ("liftbridge_testkit.replica_recovery", "life"),
    "reports": ("liftbridge_testkit.replica_successions", "life"),
    "resigned": ("liftbridge_testkit.replica_successions", "resigned_life"),
    "streams": ("liftbridge_testkit.stream_life", "life"),
    "groups": ("liftbridge_testkit.group_life", "life"),
}
"""Random lives that take steps: where their makers are, which are imported after `install`."""

WHOLE_LIVES = {
    "archive": "liftbridge_testkit.archive_life",
    "elections": "liftbridge_testkit.raft.election_life",
    "logs": "liftbridge_testkit.log_life",
    "outages": "liftbridge_testkit.outage_life",
}
"""The same for lives that end by themselves."""

TEXT_MAX = 160
PYTEST_FAILED = 1
PYTEST_PASSED = 0


class OverlongError(Exception):
    """The run exceeded its CPU time."""


def _on_alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise OverlongError(f"more than {CPU_SECONDS:.0f} s of the processor")


def short(error: BaseException | str) -> str:
    """Return the failure in one line."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines)[:TEXT_MAX]


def play_scenario(scenario: str) -> str:
    """Return the failure of the scenario; empty when it passes."""
    if "::" in scenario:
        return _run_test(scenario)
    path = ROOT / scenario
    if path.parent.name == "raft":
        from liftbridge_testkit.raft.script import play as play_raft  # noqa: PLC0415 - see install

        expected, played = play_raft(path, rewrite=False)
        differing = [
            pair
            for pair in zip(expected.splitlines(), played.splitlines(), strict=False)
            if pair[0] != pair[1]
        ]
        if differing:
            return short(f"expected: {differing[0][0]} / came: {differing[0][1]}")
        return "" if expected == played else "longer or shorter than expected"
    from liftbridge_testkit.sim.scripts.play import play  # noqa: PLC0415 - after `install`

    play(path.read_text(encoding="utf-8"))
    return ""


def _run_test(scenario: str) -> str:
    import pytest  # noqa: PLC0415 - its plugins import the broker: after `install`

    class Seen:
        """Keeps what the first failing test says."""

        text = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and not self.text:
                crash = getattr(report.longrepr, "reprcrash", None)
                self.text = short(str(crash.message) if crash else str(report.longrepr))

    seen = Seen()
    os.chdir(ROOT)
    code = pytest.main(
        ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", scenario], [seen]
    )
    if code not in (PYTEST_PASSED, PYTEST_FAILED):
        raise SystemExit(f"{scenario} cannot run: pytest says {code}")
    return seen.text or ("fails" if code else "")


def run_seed(world: str, seed: int) -> tuple[str, int]:
    """Return the failure of a seed, empty for none, and the number of its events."""
    if world in LIVES:
        module, name = LIVES[world]
        life = getattr(import_module(module), name)(seed)
        for _ in range(STEPS):
            life.step()
        life.heal(HEAL_STEPS)
        return ("" if life.is_well else "does not end well"), STEPS
    if world == "sessions":
        from liftbridge_testkit.sessions.life import SessionLife  # noqa: PLC0415 - as above

        sessions = SessionLife(seed)
        sessions.run()
        return "", sessions.events
    if world == "doubts":
        from liftbridge_testkit.sessions.doubt import DoubtfulLife  # noqa: PLC0415 - as above

        doubtful = DoubtfulLife(seed)
        doubtful.run()
        return "", doubtful.events
    if world == "raft":
        from liftbridge_testkit.raft.chaos import Chaos  # noqa: PLC0415 - after `install`
        from liftbridge_testkit.raft.model import Model  # noqa: PLC0415 - as above

        chaos = Chaos(seed)
        Model(chaos.cluster)
        chaos.run(STEPS)
        return "", STEPS
    if world in WHOLE_LIVES:
        return "", import_module(WHOLE_LIVES[world]).life(seed)
    from liftbridge_testkit.sim.seeds import run_seed as run  # noqa: PLC0415 - after `install`

    result = run(seed, world)
    return short(result.failure.split("\n", 1)[0].partition(": ")[2]), result.events


def tasks(order: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Callable[[], tuple[str, int]]]]:
    """Return the work to do, each with its name in the answer."""
    for scenario in order.get("scenarios", ()):
        yield {"scenario": scenario}, partial(_scenario_alone, scenario)
    for seed in order.get("seeds", ()):
        yield {"seed": seed}, partial(run_seed, order["world"], seed)


def _scenario_alone(scenario: str) -> tuple[str, int]:
    return play_scenario(scenario), 0


def prepare(order: dict[str, Any], guards: dict[str, Guard], reached: set[str]) -> list[str]:
    """Put the changed sources in place; the guards of which nothing can be told."""
    dumb: list[str] = []
    texts: dict[str, str] = {}
    chosen = guards.values() if order.get("tell") else [guards[one] for one in order["remove"]]
    for file, group in by_file(chosen).items():
        source = (ROOT / file).read_text(encoding="utf-8")
        if order.get("tell"):
            texts[file], without_voice = instrumented(source, group)
            dumb += [guard.name for guard in without_voice]
        else:
            texts[file] = without(source, group)

    def tell(name: str, truth: object) -> object:
        if truth:
            reached.add(name)
        return truth

    setattr(builtins, REACHED, tell)
    install(texts)
    return dumb


def run(order: dict[str, Any], output: TextIO) -> None:
    """Do all that is asked, up to the first failure unless it only tells."""
    reached: set[str] = set()
    dumb = prepare(order, read_guards(), reached)
    for answer, task in tasks(order):
        reached.clear()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        events = 0
        try:
            failure, events = task()
        except Exception as error:  # noqa: BLE001 - however it shows that a guard is gone
            failure = short(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        answer |= {"failure": failure, "events": events}
        if order.get("tell"):
            answer["reached"] = sorted({*reached, *dumb})
        output.write(json.dumps(answer) + "\n")
        output.flush()
        if failure and not order.get("tell"):
            return


def main(arguments: list[str]) -> int:
    """Run with what tests print going to standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _on_alarm)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        run(json.loads(arguments[0]), output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
