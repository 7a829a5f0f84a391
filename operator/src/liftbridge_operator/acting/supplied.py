"""What came of bringing the objects of a cluster to what was rendered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from liftbridge_operator.acting.refused import refusal_of
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.intent import Difference
from liftbridge_operator.planning.refusals import Refusal


@dataclass(slots=True)
class Supplied:
    """What was found and mended.

    Attributes:
        refusals: Objects that are not as rendered, and what was said against it.
        drift: Fields that somebody else had changed: object, field, manager.
        writes: Objects written.
    """

    refusals: dict[str, Refusal] = field(default_factory=dict)
    drift: list[tuple[str, Difference]] = field(default_factory=list)
    writes: int = 0


@asynccontextmanager
async def told(done: Supplied, name: str) -> AsyncIterator[None]:
    """What is refused within is told of one object, and keeps no other from being brought."""
    try:
        yield
    except KubeError as error:
        said = refusal_of(error)
        if said is None:
            raise
        done.refusals[name] = said
