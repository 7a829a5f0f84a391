"""Holding a publishing call back while NATS does not keep up.

Every message that is appended directly is also published to NATS. When the NATS server reads more
slowly than clients publish, the call gets no further flow-control credit until the backlog is
gone, so that copies are delayed and never dropped.
"""

import asyncio
from typing import Final

from liftbridge_broker.api.call import Call
from liftbridge_broker.node.node import Node

LOOK_SECONDS: Final = 0.002
"""Time between two looks at the backlog; 8 MiB take the server about ten of them."""


class Brake:
    """Pauses and resumes the reading of one call."""

    __slots__ = ("_call", "_is_on", "_node")

    def __init__(self, node: Node, call: Call) -> None:
        self._node = node
        self._call = call
        self._is_on = False

    def apply(self) -> None:
        """Stop reading when the node is congested; goes on by itself. Called once a turn.

        Costs two comparisons when it is not (bench: `tests/bench/run.py`, row PublishAsync).
        """
        if not self._is_on and self._node.is_congested:
            self._is_on = True
            self._call.pause_reading()
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if not self._call.is_open:
            return
        if self._node.is_congested:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
            return
        self._is_on = False
        self._call.resume_reading()
