"""The lists of guards in `tests/guards/*.yaml`, and their marks in the code.

A mark is the comment `# guard NAME` at the end of a line; several names are put after one another.
What the keys of an entry mean is said in `tests/guards/README.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

from liftbridge_testkit.repository import ROOT

LISTS: Final = ROOT / "tests/guards"
_SPARK: Final = ROOT / "spark/src/pyspark_liftbridge"
CODE: Final = (ROOT / "broker/src", _SPARK / "archive", _SPARK / "jobs", _SPARK / "plan")
"""Folders of sources that have marks."""

MARK: Final = re.compile(r"  # guard ([A-Z][\w.]*(?: [A-Z][\w.]*)*)$")
WORLDS: Final[Mapping[str, tuple[str, ...]]] = {
    "raft": ("raft",),
    "controller": ("cores", "group", "cluster"),
    "replication": ("replicas", "sessions", "cluster"),
    "archive": ("archive",),
}
"""Worlds whose seeds suit the guards of a list, quick ones first; `cluster` for all others."""


class GuardError(Exception):
    """An entry and the code do not say the same."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One entry.

    Attributes:
        name: As in its mark: the rule of the protocol, then what it is about.
        kind: `S` or `D`.
        file: Path of the source from the root of the repository.
        old: Text that is removed from the line with the mark.
        new: Text in its place.
        scenario: A story, a script of Raft, or `file.py::test`; it fails without the guard.
        worlds: Kinds of worlds of its seeds: of the simulator, `raft`, and of `child.py`.
        partners: Guards that mask this one.
        pair: `seeds`, or `forged` when only the scenario shows that this and its partners are gone.
        reason: Reason why a guard of class D is not detected by itself.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    scenario: str
    worlds: tuple[str, ...]
    partners: tuple[str, ...]
    pair: str
    reason: str

    @property
    def digest(self) -> str:
        """Tells whether a result was got for this entry."""
        said = (self.name, self.file, self.old, self.new, self.scenario, self.partners)
        return sha256(repr(said).encode()).hexdigest()[:12]


def read_guards() -> dict[str, Guard]:
    """Return all entries by name, in the order of the lists.

    Raises:
        GuardError: A name stands twice.
    """
    guards: dict[str, Guard] = {}
    for path in sorted(LISTS.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
            guard = _guard(entry, path)
            if guard.name in guards:
                raise GuardError(f"{guard.name} is listed twice")
            guards[guard.name] = guard
    return guards


def _guard(entry: Mapping[str, Any], path: Path) -> Guard:
    partners = tuple(entry.get("partner", ()))
    return Guard(
        name=entry["guard"],
        kind=entry["class"],
        file=entry["file"],
        old=entry["old"],
        new=entry["new"],
        scenario=entry["scenario"],
        worlds=tuple(entry.get("worlds", WORLDS.get(path.stem, ("cluster",)))),
        partners=partners,
        pair=entry.get("pair", "seeds" if partners else "forged"),
        reason=entry.get("reason", ""),
    )


def read_marks() -> dict[str, list[str]]:
    """Return every mark with the places of it, as `file:line`; each should have one."""
    marks: dict[str, list[str]] = {}
    for path in sorted(path for folder in CODE for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "# guard " not in text:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = MARK.search(line)
            for name in match[1].split() if match else ():
                place = f"{path.relative_to(ROOT).as_posix()}:{number}"
                marks.setdefault(name, []).append(place)
    return marks
