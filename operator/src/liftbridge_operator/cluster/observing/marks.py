"""Annotations that the operator or users write, besides the rendered ones."""

from typing import Final

from liftbridge_operator.model.base import GROUP

KEPT: Final = f"{GROUP}/kept"
"""On a pod: token of the restart that was cancelled before it began."""

RESTART_PODS: Final = f"{GROUP}/restart-pods"
"""On the resource: comma-separated uids of pods to restart."""

DRAIN: Final = f"{GROUP}/drain"
"""On the resource: comma-separated brokers that are to lead nothing."""

APPROVE: Final = f"{GROUP}/approve"
"""On the resource: hash of the approved plan."""
