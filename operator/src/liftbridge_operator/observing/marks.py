"""Annotations by which the operator talks to itself and to people, beside those it renders."""

from typing import Final

from liftbridge_operator.model.base import GROUP

KEPT: Final = f"{GROUP}/kept"
"""Of a pod: the restart that was given up before it began."""

RESTART_PODS: Final = f"{GROUP}/restart-pods"
"""Of the resource: uids of pods, with commas between them, that a person wants restarted."""

DRAIN: Final = f"{GROUP}/drain"
"""Of the resource: brokers, with commas between them, that are to lead nothing."""

APPROVE: Final = f"{GROUP}/approve"
"""Of the resource: hash of the plan that a person approves."""
