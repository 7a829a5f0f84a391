"""Generates `names.py`: the names of the catalogue as enumerations."""

from collections.abc import Iterable

from liftbridge_operator.model.catalogue.load import Catalogue

_HEADER = '''"""The words of the catalogue. Generated from `catalogue.yaml`; a test compares."""

from enum import StrEnum
'''


def names_text(catalogue: Catalogue) -> str:
    """Return the text of the file, with one enumeration for each kind of name."""
    conditions = list(catalogue.conditions.values())
    of_cluster = [spec for spec in conditions if spec.resource == "LiftbridgeCluster"]
    of_stream = [spec for spec in conditions if spec.resource == "Stream"]
    of_pipeline = [spec for spec in conditions if spec.resource == "StreamPipeline"]
    of_user = [spec for spec in conditions if spec.resource == "LiftbridgeUser"]
    reasons = (reason for spec in conditions for reason in spec.reasons)
    events = (event.reason for event in catalogue.events.values())
    parts = [
        _enumeration(
            "ClusterConditionType",
            "Conditions of a LiftbridgeCluster.",
            (spec.type for spec in of_cluster),
        ),
        _enumeration(
            "StreamConditionType", "Conditions of a Stream.", (spec.type for spec in of_stream)
        ),
        _enumeration(
            "PipelineConditionType",
            "Conditions of a StreamPipeline.",
            (spec.type for spec in of_pipeline),
        ),
        _enumeration(
            "UserConditionType",
            "Conditions of a LiftbridgeUser.",
            (spec.type for spec in of_user),
        ),
        _enumeration("Reason", "Reasons of conditions.", reasons),
        _enumeration("WaitFor", "What is waited for.", catalogue.waits),
        _enumeration("StepAction", "Steps of plans.", catalogue.steps),
        _enumeration("RiskKind", "Risks of plans.", catalogue.risks),
        _enumeration("EventReason", "Reasons of events.", events),
    ]
    return _HEADER + "".join(parts)


def _enumeration(name: str, doc: str, words: Iterable[str]) -> str:
    members = "".join(
        f'    {constant(word)} = "{word}"\n' for word in sorted(set(words), key=constant)
    )
    return f'\n\nclass {name}(StrEnum):\n    """{doc}"""\n\n{members}'


def constant(word: str) -> str:
    """Name in code: `BelowMinISR` is `BELOW_MIN_ISR`."""
    found = ""
    for position, letter in enumerate(word):
        before = word[position - 1] if position else ""
        after = word[position + 1] if position + 1 < len(word) else ""
        begins = letter.isupper() and (before.islower() or (before.isupper() and after.islower()))
        found += f"_{letter}" if position and begins else letter.upper()
    return found
