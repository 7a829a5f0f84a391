"""The single timer of a node."""

from typing import Protocol

from liftbridge_broker.model.ids import Instant


class Timer(Protocol):
    """Wakes the node; armed only with deadlines earlier than the present one."""

    def arm(self, deadline: Instant) -> None:
        """Call `Node.on_timer` at or soon after `deadline`, instead of at the previous deadline."""
        ...
