"""Restarts of NATS and broken connections of brokers, spread evenly over the time of a load.

A break ends the oldest connection of one broker, or all that it has; the brokers take turns. The
broker lives and reconnects. A restart kills NATS, or stops it in order, and starts it on its port
after up to half a second.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftbridge_testkit.cluster import ClusterKit

AWAY_SECONDS: Final = (0.0, 0.25, 0.5)
"""Times for which NATS is away, in turn."""


class Disturbance(NamedTuple):
    """Something to do to the cluster.

    Attributes:
        at: Seconds after the beginning.
        is_restart: Whether NATS restarts; otherwise a connection breaks.
    """

    at: float
    is_restart: bool


def spread(seconds: float, *, restarts: int, breaks: int) -> list[Disturbance]:
    """Return restarts and breaks in the order of their times, each kind at even intervals."""
    found = [
        Disturbance((number + 0.5) * seconds / total, is_restart)
        for total, is_restart in ((restarts, True), (breaks, False))
        for number in range(total)
    ]
    return sorted(found)


class Disturber:
    """Does what is due to a cluster whose brokers reach NATS through proxies.

    Args:
        cluster: The cluster.
        due: What to do, by time.
        sleep: Waits some seconds.

    Attributes:
        restarted: Restarts of NATS so far.
        broken: Breaks so far.
    """

    def __init__(
        self, cluster: ClusterKit, due: list[Disturbance], sleep: Callable[[float], None]
    ) -> None:
        """Begin before the first."""
        self._cluster = cluster
        self._due = due
        self._sleep = sleep
        self._brokers: Iterator[str] = cycle(cluster.brokers)
        self.restarted = 0
        self.broken = 0

    def next_at(self) -> float | None:
        """Time of the next one in seconds after the beginning, `None` after the last."""
        return self._due[0].at if self._due else None

    def act(self) -> str:
        """Do the next one; return a line about it."""
        if self._due.pop(0).is_restart:
            return self._restart()
        return self._break()

    def _restart(self) -> str:
        nats, away = self._cluster.nats, AWAY_SECONDS[self.restarted % len(AWAY_SECONDS)]
        how = "killed" if self.restarted % 2 else "stopped"
        if self.restarted % 2:
            nats.kill()
        else:
            nats.stop()
        self.restarted += 1
        self._sleep(away)
        nats.start()
        return f"nats {how} for {away:g} s"

    def _break(self) -> str:
        """Break the connections of the next broker: all of them each second time round."""
        name = next(self._brokers)
        is_all = bool(self.broken // len(self._cluster.brokers) % 2)
        self._cluster.until(
            lambda: self._cluster.proxies[name].sever(is_all=is_all) > 0, f"{name} connected"
        )
        self.broken += 1
        return f"{'all connections' if is_all else 'one connection'} of {name} broken"
