"""The catalogue, read once from `catalogue.yaml`; a mistake in it is a bug and ends the process."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any, Final

import yaml

MESSAGE_LENGTH_MAX: Final = 1_024
"""Longest text of a condition or an event; longer ones are cut."""

_CUT: Final = " ..."


class Polarity(StrEnum):
    """Which status of a condition one wants."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class Presence(StrEnum):
    """When a condition is told."""

    ALWAYS = "always"
    WHEN_TRUE = "when-true"


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence with values in it."""

    template: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the values, each once, in order."""
        found = (name for _, name, _, _ in Formatter().parse(self.template) if name)
        return tuple(dict.fromkeys(found))

    def fill(self, values: Mapping[str, object]) -> str:
        """The sentence with its values, cut where it is too long.

        Args:
            values: Exactly the values the sentence has.
        """
        assert set(values) == set(self.fields), f"{self.template!r} has {self.fields}"
        filled = self.template.format_map(values)
        if len(filled) > MESSAGE_LENGTH_MAX:
            return filled[: MESSAGE_LENGTH_MAX - len(_CUT)] + _CUT
        return filled


@dataclass(frozen=True, slots=True)
class ReasonSpec:
    """One reason of one condition.

    Attributes:
        reason: The word.
        status: `True`, `False` or `Unknown`.
        text: What is told.
        runbook: What a human does about it.
    """

    reason: str
    status: str
    text: Text
    runbook: str


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """When a condition wakes somebody.

    Attributes:
        name: Name of the alert.
        statuses: Statuses that count.
        duration: For how long it must hold, as Prometheus writes it.
        severity: `critical`, `warning` or `info`.
    """

    name: str
    statuses: tuple[str, ...]
    duration: str
    severity: str


@dataclass(frozen=True, slots=True)
class ConditionSpec:
    """One condition of one kind of resource.

    Attributes:
        resource: Kind of the resource.
        type: The word.
        polarity: Which status one wants.
        presence: When it is told.
        meaning: What True means.
        reasons: All its reasons by their words.
        alert: When it wakes somebody; none for never.
    """

    resource: str
    type: str
    polarity: Polarity
    presence: Presence
    meaning: str
    reasons: Mapping[str, ReasonSpec]
    alert: AlertSpec | None


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its meaning: something that is waited for, a step or a risk of a plan.

    Attributes:
        name: The word.
        meaning: What it says.
        runbook: What a human does about it; empty for steps and risks.
    """

    name: str
    meaning: str
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event.

    Attributes:
        resource: Kind of the resource it is about.
        reason: The word.
        type: `Normal` or `Warning`.
        text: What is told.
    """

    resource: str
    reason: str
    type: str
    text: Text


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything that is told, by name, in the order of the file."""

    conditions: Mapping[tuple[str, str], ConditionSpec]
    waits: Mapping[str, Word]
    steps: Mapping[str, Word]
    risks: Mapping[str, Word]
    events: Mapping[tuple[str, str], EventSpec]

    def condition(self, resource: str, kind: str) -> ConditionSpec:
        """A condition of a kind of resource.

        Raises:
            KeyError: It is not in the catalogue.
        """
        return self.conditions[resource, kind]

    def of_resource(self, resource: str) -> tuple[ConditionSpec, ...]:
        """All conditions of a kind of resource, in the order they are told."""
        return tuple(spec for spec in self.conditions.values() if spec.resource == resource)

    def label_values(self) -> tuple[tuple[str, str, str, str], ...]:
        """Every resource, type, status and reason that a metric may have as labels."""
        return tuple(
            (spec.resource, spec.type, reason.status, reason.reason)
            for spec in self.conditions.values()
            for reason in spec.reasons.values()
        )


@cache
def load_catalogue() -> Catalogue:
    """The shipped catalogue."""
    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    return parse_catalogue(text)


def parse_catalogue(text: str) -> Catalogue:
    """A catalogue from its file."""
    tree = yaml.safe_load(text)
    conditions = [_condition(row) for row in tree["conditions"]]
    events = [
        EventSpec(row["resource"], row["reason"], row["type"], Text(row["text"]))
        for row in tree["events"]
    ]
    catalogue = Catalogue(
        {(spec.resource, spec.type): spec for spec in conditions},
        _words(tree["waits"], "what"),
        _words(tree["steps"], "action"),
        _words(tree["risks"], "kind"),
        {(spec.resource, spec.reason): spec for spec in events},
    )
    assert len(catalogue.conditions) == len(conditions), "a condition stands twice"
    assert len(catalogue.events) == len(events), "an event stands twice"
    return catalogue


def _words(rows: list[dict[str, str]], key: str) -> dict[str, Word]:
    words = [Word(row[key], row["meaning"], row.get("runbook", "")) for row in rows]
    found = {word.name: word for word in words}
    assert len(found) == len(words), f"a word of {key} stands twice"
    return found


def _condition(row: dict[str, Any]) -> ConditionSpec:
    reasons = [
        ReasonSpec(entry["reason"], entry["status"], Text(entry["text"]), entry["runbook"])
        for entry in row["reasons"]
    ]
    found = {spec.reason: spec for spec in reasons}
    assert len(found) == len(reasons), f"a reason of {row['type']} stands twice"
    alert = row.get("alert")
    return ConditionSpec(
        resource=row["resource"],
        type=row["type"],
        polarity=Polarity(row["polarity"]),
        presence=Presence(row.get("presence", "always")),
        meaning=row["meaning"],
        reasons=found,
        alert=AlertSpec(alert["name"], tuple(alert["statuses"]), alert["for"], alert["severity"])
        if alert
        else None,
    )
