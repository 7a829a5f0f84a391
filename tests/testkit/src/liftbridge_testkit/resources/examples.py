"""Tables of accepted and refused objects, with one entry for each rule.

A table has a minimal object and, for each rule, merge patches (RFC 7386) of it: the API server
accepts the `accepted` ones and refuses the `refused` ones because of this rule. With `before`, that
patch makes the existing object, and the other patch replaces it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from liftbridge_testkit.repository import ROOT

FOLDER: Final = ROOT / "tests" / "unit" / "operator" / "examples"


@dataclass(frozen=True, slots=True)
class Example:
    """One object, or one change of an object.

    Attributes:
        rule: Name of the tested rule; empty for types and bounds.
        number: Position among the examples of the rule.
        is_accepted: Whether the API server accepts it.
        before: Existing object; `None` for a creation.
        value: Object to write.
    """

    rule: str
    number: int
    is_accepted: bool
    before: dict[str, Any] | None
    value: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the example in tests."""
        return f"{self.rule}-{'accepted' if self.is_accepted else 'refused'}-{self.number}"


def merged(value: Any, patch: Any) -> Any:
    """Return a JSON merge patch applied: null removes, objects are merged, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), part)
    return result


def load_examples(path: Path) -> list[Example]:
    """Return all examples of a table."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    base = tree["base"]
    found = []
    for entry in tree["rules"]:
        for verdict in ("accepted", "refused"):
            for number, row in enumerate(entry[verdict]):
                before = merged(base, row["before"]) if "before" in row else None
                value = merged(base, row.get("patch", {}))
                found.append(Example(entry["rule"], number, verdict == "accepted", before, value))
    return found
