"""Results of removing guards, in `tests/guards/results.json`: runs continue where earlier ended.

A result counts as long as the entry of its guard and the version of the code are the same.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from liftbridge_testkit.guards.listing import CODE, LISTS, Guard
from liftbridge_testkit.repository import ROOT

PATH: Final = LISTS / "results.json"
SIMULATOR: Final = ROOT / "tests/testkit/src/liftbridge_testkit/sim"


@dataclass(slots=True)
class Search:
    """Seeds of one kind of world that were run without some guards.

    Attributes:
        limit: All seeds below it were looked at.
        reached: How many of them meet a removed guard; other seeds are the same without it.
        seed: The first that fails; `None` when none does.
        events: Events in all that were run.
        failure: Failure of that seed.
    """

    limit: int = 0
    reached: int = 0
    seed: int | None = None
    events: int = 0
    failure: str = ""

    @property
    def needed(self) -> int:
        """Return the number of seeds needed, from the first on; 0 when none found it."""
        return 0 if self.seed is None else self.seed + 1


@dataclass(slots=True)
class Result:
    """Result of one guard.

    Attributes:
        entry: Digest of its entry.
        version: Version of the code.
        scenario: Failure of its scenario without it; empty when it passes.
        seeds: Result by kind of world: of class S without it, of class D also without partners.
    """

    entry: str
    version: str
    scenario: str = ""
    seeds: dict[str, Search] = field(default_factory=dict)

    @property
    def found(self) -> tuple[str, Search] | None:
        """The world and the search that has a seed, if any has."""
        return next((one for one in self.seeds.items() if one[1].seed is not None), None)


def version_of_code() -> str:
    """Return the digest of the broker, the archive and the simulator."""
    digest = sha256()
    for folder in (*CODE, SIMULATOR):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """The results by guard, kept in a file."""

    def __init__(self, path: Path, version: str) -> None:
        self._path = path
        self._version = version
        self._by_guard: dict[str, Result] = {}
        if path.exists():
            for name, found in json.loads(path.read_text(encoding="utf-8")).items():
                self._by_guard[name] = _read(found)

    def of(self, guard: Guard) -> Result:
        """Return the result to go on with; a new one when the guard or the code is another."""
        known = self._by_guard.get(guard.name)
        if known is None or (known.entry, known.version) != (guard.digest, self._version):
            known = self._by_guard[guard.name] = Result(guard.digest, self._version)
        return known

    def known(self, guard: Guard) -> Result | None:
        """Return the stored result of a guard as listed, of any version of the code."""
        known = self._by_guard.get(guard.name)
        return known if known is not None and known.entry == guard.digest else None

    def save(self, guards: Mapping[str, Guard]) -> None:
        """Write what is known of the guards that are listed, in their order."""
        found = {name: asdict(self._by_guard[name]) for name in guards if name in self._by_guard}
        text = json.dumps(found, indent=1) + "\n"
        self._path.write_text(text, encoding="utf-8")


def _read(found: dict[str, Any]) -> Result:
    seeds = {world: Search(**search) for world, search in found.pop("seeds").items()}
    return Result(**found, seeds=seeds)
