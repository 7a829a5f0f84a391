"""The table of guards in the documentation: tests that detect each loss, from lists and results."""

from collections.abc import Mapping

from liftbridge_testkit.guards.listing import Guard
from liftbridge_testkit.guards.results import PATH, Result, Results
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs/internals/guards.md"
HEAD = """# Guards and who notices

Written by `pytest tests/guards --rewrite` from `tests/guards`; [Testing](testing.md#guards)
explains the classes and columns. *Seed*: the first random life that fails without the guard (class
D: without it and its partners), by kind of world; `-` with a number: of that many
lives none failed.

| Guard | Class | Scenario that fails without it | Seed | Masked by |
| --- | --- | --- | --- | --- |
"""


def table(guards: Mapping[str, Guard]) -> str:
    """Return the page as it should be."""
    results = Results(PATH, "")
    return HEAD + "".join(_row(guard, results.known(guard)) for guard in guards.values())


def _row(guard: Guard, result: Result | None) -> str:
    file, _, test = guard.scenario.partition("::")
    name = f"`{test}`" if test else f"`{file.removeprefix('tests/scenarios/')}`"
    partners = ", ".join(guard.partners)
    return f"| {guard.name} | {guard.kind} | {name} | {_seed(guard, result)} | {partners} |\n"


def _seed(guard: Guard, result: Result | None) -> str:
    if guard.kind == "D" and guard.pair != "seeds":
        return "forged only"
    if result is None or not result.seeds:
        return "-"
    if result.found is not None:
        world, search = result.found
        return f"{world} {search.seed}"
    return "- " + ", ".join(f"{world} {one.limit}" for world, one in result.seeds.items())
