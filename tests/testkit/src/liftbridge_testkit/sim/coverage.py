"""Coverage of a run: counters of faults, rare points and outcomes, summed over seeds, with floors.

A simulator that finds no error may simply have reached too few states. The table of counts, and the
minimum that a range of seeds must reach, show the difference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping


class Coverage:
    """Counters by group and name.

    Attributes:
        counts: (group, name) -> times; groups are `fault`, `rare`, `client`, `access`, `node` and
            `world`.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, group: str, name: str, times: int = 1) -> None:
        """Add to a counter."""
        self.counts[group, name] += times

    def rare(self, name: str) -> None:
        """Count a named rare point."""
        self.counts["rare", name] += 1

    def rare_if(self, names: Iterable[str], met: Iterable[bool]) -> None:
        """Count the rare points whose condition in `met` is true."""
        for name, is_met in zip(names, met, strict=True):
            if is_met:
                self.rare(name)

    def add(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Add the counters of another run."""
        for key, times in counts.items():
            self.counts[key] += times

    def table(self, expected: Iterable[tuple[str, str]] = ()) -> list[str]:
        """Return lines for people.

        The names of each group in order, with expected ones that are missing.
        """
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
        """Return the floors that were not reached."""
        return [
            f"{group} {name}: {self.counts[group, name]:,} of at least {least:,}"
            for (group, name), least in floors.items()
            if self.counts[group, name] < least
        ]
