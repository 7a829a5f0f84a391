"""Which stories notice that a guard is gone: for linking guards whose scenario is a unit test."""

import sys
from collections.abc import Sequence

from liftbridge_testkit.guards.listing import Guard
from liftbridge_testkit.guards.run import SCENARIO_SECONDS, answers, failure_of
from liftbridge_testkit.repository import ROOT

STORIES = ROOT / "tests/scenarios"


def tell_stories(guards: Sequence[Guard]) -> int:
    """Print the stories that fail without each guard that has none, as they are found."""
    stories = [path.relative_to(ROOT).as_posix() for path in sorted(STORIES.glob("*.txt"))]
    at_work: dict[str, set[str]] = {}
    order = {"tell": True, "scenarios": stories}
    for answer in answers(order, SCENARIO_SECONDS + len(stories)):
        at_work[answer["scenario"]] = set() if answer["failure"] else set(answer["reached"])
        if answer["failure"]:
            sys.stdout.write(f"{answer['scenario']} fails by itself: {answer['failure']}\n")
    for guard in guards:
        if "::" not in guard.scenario:
            continue
        for story, names in at_work.items():
            if guard.name in names and (failure := failure_of([guard], story)):
                sys.stdout.write(f"{guard.name} {story} {failure}\n")
                sys.stdout.flush()
    return 0
