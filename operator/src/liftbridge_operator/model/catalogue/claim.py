"""Conditions of a resource, before their messages are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftbridge_operator.model.catalogue.names import Reason


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition: its reason, which determines the status, and the values of its message.

    Attributes:
        reason: Reason in the catalogue.
        values: Values for the placeholders of the reason's message.
    """

    reason: Reason
    values: Mapping[str, object] = field(default_factory=dict)
