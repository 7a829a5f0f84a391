"""Holds publishing calls back while NATS does not keep up, or until their quota allows more.

Every message that is appended directly is also published to NATS. When the NATS server reads more
slowly than clients publish, their calls get no more flow-control credit until the backlog is sent,
so that copies are delayed and never dropped.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from liftbridge_broker.api import quota_gate
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.scheduling.steps import in_steps

LOOK_NS: Final = 2 * MILLISECOND_NS
"""Interval of backlog checks; sending 8 MiB to the server takes about ten intervals."""

HELD_MIN: Final = 64


class _Hold(NamedTuple):
    """Why a call is held: until `due`, or until the debt by its quota is paid if that is sooner."""

    due: Instant
    owed: Callable[[], int]


def _nothing() -> int:
    return 0


class Brake:
    """Pauses and resumes reading of the calls of one node.

    One check serves all held calls, and they resume in the turns of clients: ten thousand may
    publish.
    """

    __slots__ = ("_do_later", "_held", "_held_max", "_look_at", "_node", "_now", "_timer")

    def __init__(
        self, node: Node, now: Callable[[], Instant], do_later: Callable[[Iterator[None]], None]
    ) -> None:
        """Start without held calls; `do_later` runs steps in the turns of clients."""
        self._node = node
        self._now = now
        self._do_later = do_later
        self._held: dict[Call, _Hold] = {}
        self._held_max = HELD_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = Instant(0)

    def apply(self, call: Call, delay_ns: int = 0, owed: Callable[[], int] = _nothing) -> None:
        """Pause reading of a call for a time, and while the node is congested. Called once a turn.

        `owed` returns the time that the quota still asks for, which a larger quota shortens. Cheap
        when nothing holds it back (bench: `tests/bench/run.py`, row PublishAsync).
        """
        if not delay_ns and (not self._node.is_congested or call in self._held):
            return
        if len(self._held) >= self._held_max:
            self._held = {one: hold for one, hold in self._held.items() if one.is_open}
            self._held_max = max(HELD_MIN, 2 * len(self._held))
        self._held[call] = _Hold(Instant(self._now() + delay_ns), owed)
        call.pause_reading()
        self._look_after(min(delay_ns, quota_gate.LOOK_NS))

    def _look_after(self, delay_ns: int) -> None:
        """Check the calls after a time at the latest."""
        delay_ns = max(LOOK_NS, delay_ns)
        look_at = Instant(self._now() + delay_ns)
        if self._timer is not None:
            if self._look_at <= look_at:
                return
            self._timer.cancel()
        self._look_at = look_at
        self._timer = asyncio.get_running_loop().call_later(delay_ns / SECOND_NS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._node.is_congested:
            self._look_after(LOOK_NS)
            return
        held, self._held = self._held, {}
        self._do_later(in_steps(held, partial(self._release, held)))

    def _release(self, held: Mapping[Call, _Hold], call: Call) -> None:
        """Resume a call that was held, unless it must wait longer or is held again since."""
        if call in self._held or not call.is_open:
            return
        hold = held[call]
        left_ns = min(hold.due - self._now(), hold.owed())
        if left_ns > 0:
            self._held[call] = hold
            self._look_after(min(left_ns, quota_gate.LOOK_NS))
        else:
            call.resume_reading()
