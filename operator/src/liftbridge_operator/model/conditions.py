"""What every status has: its generation, and conditions in the form of `metav1.Condition`."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import ListOf, Model
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Timestamp,
)

CONDITIONS_MAX: Final = 24
MESSAGE_LENGTH_MAX: Final = 1_024


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One condition of the resource, with the generation of the spec that it is about."""

    type: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Type of the condition; the reference lists all."
    )
    status: ConditionStatus = Field(description="Whether it holds.")
    observed_generation: int = Field(
        ge=0, le=INTEGER_MAX, description="`metadata.generation` that it is about."
    )
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    reason: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")] = (
        Field(description="Why, in one word; the reference lists all.")
    )
    message: Annotated[str, StringConstraints(max_length=MESSAGE_LENGTH_MAX)] = Field(
        description="Human-readable explanation."
    )


class Status(Model):
    """Observed state of a resource; each adds its conditions as the last field.

    Pydantic puts inherited fields first, and the definitions keep the order of fields.
    """

    observed_generation: int = Field(
        default=-1,
        ge=-1,
        le=INTEGER_MAX,
        description="`metadata.generation` that this status is about; -1 before the first pass.",
    )


Conditions = Annotated[tuple[Condition, ...], ListOf(CONDITIONS_MAX, keys=("type",))]
