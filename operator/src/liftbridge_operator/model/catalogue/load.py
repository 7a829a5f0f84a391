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
"""Longest message of a condition or an event; longer ones are truncated."""

_CUT: Final = " ..."


class Polarity(StrEnum):
    """Desired status of a condition."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class Presence(StrEnum):
    """Situation in which a condition is reported."""

    ALWAYS = "always"
    WHEN_TRUE = "when-true"


@dataclass(frozen=True, slots=True)
class Text:
    """A message with placeholders."""

    template: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the placeholders, each once, in order."""
        found = (name for _, name, _, _ in Formatter().parse(self.template) if name)
        return tuple(dict.fromkeys(found))

    def fill(self, values: Mapping[str, object]) -> str:
        """Fill in the values; truncate the message if it is too long.

        Args:
            values: Exactly one value for each placeholder.
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
        reason: Name of the reason.
        status: `True`, `False` or `Unknown`.
        text: Message.
        runbook: Remedy.
    """

    reason: str
    status: str
    text: Text
    runbook: str


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """The alert of a condition.

    Attributes:
        name: Name of the alert.
        statuses: Statuses that trigger it.
        duration: Minimum duration of the status, in Prometheus' syntax.
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
        type: Type of the condition.
        polarity: Which status is desired.
        presence: When it is reported.
        meaning: Meaning of True.
        reasons: All its reasons by name.
        alert: Its alert, if any.
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
    """A name with its meaning: a wait, or a step or a risk of a plan.

    Attributes:
        name: Name in the status.
        meaning: Meaning of the name.
        runbook: Remedy; empty for steps and risks.
    """

    name: str
    meaning: str
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event.

    Attributes:
        resource: Kind of the resource it is about.
        reason: Name of the reason.
        type: `Normal` or `Warning`.
        text: Message.
    """

    resource: str
    reason: str
    type: str
    text: Text


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The whole catalogue, by name, in the order of the file."""

    conditions: Mapping[tuple[str, str], ConditionSpec]
    waits: Mapping[str, Word]
    steps: Mapping[str, Word]
    risks: Mapping[str, Word]
    events: Mapping[tuple[str, str], EventSpec]

    def condition(self, resource: str, kind: str) -> ConditionSpec:
        """Return a condition of a kind of resource.

        Raises:
            KeyError: It is not in the catalogue.
        """
        return self.conditions[resource, kind]

    def of_resource(self, resource: str) -> tuple[ConditionSpec, ...]:
        """Return all conditions of a kind of resource, in the order of the file."""
        return tuple(spec for spec in self.conditions.values() if spec.resource == resource)

    def label_values(self) -> tuple[tuple[str, str, str, str], ...]:
        """Return every resource, type, status and reason that a metric may have as labels."""
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
    """Parse the text of a catalogue."""
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
