"""Coverage of a run: counters of faults, rare points and outcomes, summed over seeds, with floors.

A simulator that finds nothing may simply not have gone anywhere; the table of what was met, and
the least that a range of seeds must meet, tell the difference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping


class Coverage:
    """Counters by group and name.

    Attributes:
        counts: (group, name) -> times; groups are `fault`, `rare`, `client`, `node` and `world`.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, group: str, name: str, times: int = 1) -> None:
        """Add to a counter."""
        self.counts[group, name] += times

    def rare(self, name: str) -> None:
        """A named rare point was met."""
        self.counts["rare", name] += 1

    def rare_if(self, names: Iterable[str], met: Iterable[bool]) -> None:
        """Those of some rare points were met that `met` says."""
        for name, is_met in zip(names, met, strict=True):
            if is_met:
                self.rare(name)

    def add(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Add the counters of another run."""
        for key, times in counts.items():
            self.counts[key] += times

    def table(self, expected: Iterable[tuple[str, str]] = ()) -> list[str]:
        """Lines for people: each group, its names in order; expected ones that are missing too."""
        known = sorted({*self.counts, *expected})
        width = max((len(name) for _, name in known), default=0)
        lines: list[str] = []
        group_before = ""
        for group, name in known:
            if group != group_before:
                lines.append(f"{group}:")
                group_before = group
            lines.append(f"  {name:{width}} {self.counts[group, name]:>12,}")
        return lines

    def below(self, floors: Mapping[tuple[str, str], int]) -> list[str]:
        """Return the floors that are not reached."""
        return [
            f"{group} {name}: {self.counts[group, name]:,} of at least {least:,}"
            for (group, name), least in floors.items()
            if self.counts[group, name] < least
        ]
