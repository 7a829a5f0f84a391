"""Outcome of applying the rendered objects of a cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.intent import Difference


@dataclass(slots=True)
class Supplied:
    """Refusals, reverted drift and writes of one pass.

    Attributes:
        refusals: Refusals by the object that is not as rendered because of it.
        drift: Reverted fields: object, field, manager that had changed it.
        writes: Objects written.
    """

    refusals: dict[str, Refusal] = field(default_factory=dict)
    drift: list[tuple[str, Difference]] = field(default_factory=list)
    writes: int = 0


@asynccontextmanager
async def refusal_noted(done: Supplied, name: str) -> AsyncIterator[None]:
    """Record a refusal within the block for one object, so that other objects are still applied."""
    try:
        yield
    except KubeError as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        done.refusals[name] = refusal
