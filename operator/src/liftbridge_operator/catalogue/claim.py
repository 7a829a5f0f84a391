"""What is told of a resource before it is put into words."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftbridge_operator.catalogue.names import Reason


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition: its reason, from which the catalogue knows the status, and values of its text.

    Attributes:
        reason: Why.
        values: What the text of the reason has in braces.
    """

    reason: Reason
    values: Mapping[str, object] = field(default_factory=dict)
