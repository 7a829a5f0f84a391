"""Holds publishing calls back while NATS does not keep up.

Every message that is appended directly is also published to NATS. When the NATS server reads more
slowly than clients publish, their calls get no more flow-control credit until the backlog is sent,
so that copies are delayed and never dropped.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.scheduling.steps import in_steps

LOOK_SECONDS: Final = 0.002
"""Interval of backlog checks; sending 8 MiB to the server takes about ten intervals."""

HELD_MIN: Final = 64


class Brake:
    """Pauses and resumes reading of the calls of one node.

    One check serves all held calls, and they resume in the turns of clients: ten thousand may
    publish.
    """

    __slots__ = ("_do_later", "_held", "_held_max", "_node")

    def __init__(self, node: Node, do_later: Callable[[Iterator[None]], None]) -> None:
        """Start without held calls; `do_later` runs steps in the turns of clients."""
        self._node = node
        self._do_later = do_later
        self._held: dict[Call, None] = {}
        self._held_max = HELD_MIN

    def apply(self, call: Call) -> None:
        """Pause reading of a call while the node is congested. Called once a turn.

        Cheap when the node is not congested (bench: `tests/bench/run.py`, row PublishAsync).
        """
        if not self._node.is_congested or call in self._held:
            return
        if not self._held:
            self._look_later()
        elif len(self._held) >= self._held_max:
            self._held = {one: None for one in self._held if one.is_open}
            self._held_max = max(HELD_MIN, 2 * len(self._held))
        self._held[call] = None
        call.pause_reading()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._node.is_congested:
            self._look_later()
            return
        held, self._held = self._held, {}
        self._do_later(in_steps(held, self._release))

    def _release(self, call: Call) -> None:
        if call not in self._held:  # nor held again since
            call.resume_reading()
