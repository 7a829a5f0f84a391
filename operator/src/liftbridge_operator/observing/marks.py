"""Annotations by which the operator talks to itself and to people, beside those it renders."""

from typing import Final

from liftbridge_operator.model.base import GROUP

KEPT: Final = f"{GROUP}/kept"
"""Of a pod: the restart that was given up before it began."""

APPROVE: Final = f"{GROUP}/approve"
"""Of the resource: hash of the plan that a person approves."""
