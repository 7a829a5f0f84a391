"""Finds the stories that detect the loss of a guard, for guards whose scenario is a unit test."""

import sys
from collections.abc import Sequence

from liftbridge_testkit.guards.listing import Guard
from liftbridge_testkit.guards.run import SCENARIO_SECONDS, answers
from liftbridge_testkit.repository import ROOT

STORIES = ROOT / "tests/scenarios"


def tell_stories(guards: Sequence[Guard]) -> int:
    """Print the first story that fails without each guard that has none; 1 when there is none."""
    stories = [path.relative_to(ROOT).as_posix() for path in sorted(STORIES.glob("*.txt"))]
    at_work: dict[str, list[str]] = {}
    for answer in answers({"tell": True, "scenarios": stories}, SCENARIO_SECONDS * len(stories)):
        if answer["failure"]:
            sys.stdout.write(f"{answer['scenario']} fails by itself: {answer['failure']}\n")
            continue
        for name in answer["reached"]:
            at_work.setdefault(name, []).append(answer["scenario"])
    unseen = 0
    for guard in guards:
        if "::" in guard.scenario:
            told = _first(guard, at_work.get(guard.name, []))
            unseen += not told
            sys.stdout.write(f"{guard.kind} {guard.name:24} {told or '-'}\n")
            sys.stdout.flush()
    return 1 if unseen else 0


def _first(guard: Guard, stories: Sequence[str]) -> str:
    """Return the first story that fails without a guard, and by what; empty when none does."""
    if not stories:
        return ""
    order = {"remove": [guard.name], "scenarios": stories}
    for answer in answers(order, SCENARIO_SECONDS):
        if answer["failure"]:
            return f"{answer['scenario']}: {answer['failure']}"
    return ""
