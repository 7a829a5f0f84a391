"""Failure detector: brokers whose process has ended, by what NATS says at once (ADR 0031).

When a process ends, the operating system closes its connections. From then on NATS answers a probe
to it with "no responders". A broker that is slow, hangs or is cut off is never detected here: its
session ends by time. A broker that only lost its connections is back before it is confirmed.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.transport import Channel

PROBE_NS: Final = 30 * MILLISECOND_NS
"""Time between two probes of a broker."""

SUSPECT_PROBE_NS: Final = 15 * MILLISECOND_NS
"""Time between two probes while NATS knows no connection of a broker."""

CONFIRM_NS: Final = 60 * MILLISECOND_NS
"""Time for which a broker must be absent: twice what it takes to reconnect."""

CONFIRM_NS_MAX: Final = 200 * MILLISECOND_NS
"""The same for a broker that was slow lately."""

PUNCTUAL_NS: Final = 120 * MILLISECOND_NS
"""Longest pause of a broker that is not slow: a heartbeat of Raft comes each 100 ms."""

LATELY_NS: Final = 5_000 * MILLISECOND_NS
"""Time for which a pause is remembered at least, and half of the longest."""

GAP_NS: Final = 100 * MILLISECOND_NS
"""Longest time between two signals of one absence; a longer gap begins another one."""

SETTLE_NS: Final = 1_000 * MILLISECOND_NS
"""Time after its own connection in which a broker believes signals only about those that it has
heard since then: NATS may have restarted, and the others try to reconnect each 250 ms."""

_NEVER: Final = Instant(0)

Probe = Callable[[BrokerId, Channel, Instant], None]


class _Absence(NamedTuple):
    """Send times of the first and the latest probe of one channel without responders."""

    since: Instant
    last: Instant


@dataclass(slots=True)
class _Pauses:
    """Longest times between two messages of a broker lately: what it may be late by, under load.

    Attributes:
        heard_at: Time of its latest message.
        began_at: Start of the present period.
        is_heard: Whether a message came over the present connections of this broker.
        present_ns: Longest pause of the present period.
        former_ns: Longest pause of the period before.
    """

    heard_at: Instant
    began_at: Instant
    is_heard: bool = False
    present_ns: int = 0
    former_ns: int = 0

    def add(self, now: Instant) -> None:
        """Note a message."""
        pause_ns, self.heard_at = now - self.heard_at, now
        self.is_heard = True
        if now - self.began_at >= LATELY_NS:
            self.former_ns, self.present_ns, self.began_at = self.present_ns, 0, now
        self.present_ns = max(self.present_ns, pause_ns)

    @property
    def longest_ns(self) -> int:
        """Return the longest one."""
        return max(self.present_ns, self.former_ns)


@dataclass(slots=True)
class _Suspect:
    """A broker for which a probe met no responders.

    Attributes:
        heard_at: Time of its latest message since then.
        absences: Its channels without responders.
        has_ended: Whether its process counts as ended.
    """

    heard_at: Instant = _NEVER
    absences: dict[Channel, _Absence] = field(default_factory=dict)
    has_ended: bool = False

    def is_recent(self, now: Instant) -> bool:
        """Return whether a signal or message came a moment ago."""
        last = max((absence.last for absence in self.absences.values()), default=self.heard_at)
        return now - last <= GAP_NS


class FailureDetector:
    """Probes the watched brokers, and confirms that the processes of some have ended.

    Invariant: a broker counts as ended only after `CONFIRM_NS` without a message from it, in which
    no probe of any channel met a connection; and after a longer time, if it paused for more than
    `PUNCTUAL_NS` between two messages lately. A loaded broker takes as long to reconnect.

    Args:
        probe: Sends one probe.
        interval_ns: Time between two probes of a broker; 0 sends none.
    """

    def __init__(self, probe: Probe, interval_ns: int = PROBE_NS) -> None:
        """Watch nobody."""
        self._probe = probe
        self._interval_ns = interval_ns
        self._watched: Collection[BrokerId] = ()
        self._due: Instant | None = None
        self._suspects: dict[BrokerId, _Suspect] = {}
        self._pauses: dict[BrokerId, _Pauses] = {}
        self._settled_at = _NEVER

    def watch(self, brokers: Iterable[BrokerId], now: Instant) -> None:
        """Probe these brokers from now on, instead of others.

        The first call counts as a new connection: this process has just started.
        """
        if self._settled_at == _NEVER:
            self._settled_at = Instant(now + SETTLE_NS)
        self._watched = tuple(brokers)
        known = self._pauses
        self._pauses = {name: known.get(name) or _Pauses(now, now) for name in self._watched}
        if not self._watched or not self._interval_ns:
            self._due = None
        elif self._due is None:
            self._due = now

    def has_ended(self, broker: BrokerId) -> bool:
        """Return whether the process of a broker counts as ended, by signals of a moment ago."""
        suspect = self._suspects.get(broker)
        return suspect is not None and suspect.has_ended

    def on_connected(self, now: Instant) -> None:
        """Handle a new connection of this broker to NATS: the others may still reconnect."""
        self._suspects.clear()
        self._settled_at = Instant(now + SETTLE_NS)
        for pauses in self._pauses.values():
            pauses.heard_at, pauses.is_heard = now, False  # guard Detect.heard

    def on_message(self, sender: BrokerId, now: Instant) -> None:
        """Handle an authentic message: its sender lived."""
        pauses = self._pauses.get(sender)
        if pauses is not None:
            pauses.add(now)
        if sender in self._suspects:
            self._suspects[sender] = _Suspect(now)  # guard Detect.message

    def on_no_responders(
        self, broker: BrokerId, channel: Channel, sent_at: Instant, now: Instant
    ) -> bool:
        """Handle the answer of NATS to a probe.

        Args:
            broker: The probed broker.
            channel: The probed channel.
            sent_at: Time of the probe.
            now: Time now.

        Returns:
            Whether the process of the broker counts as ended from now on.
        """
        if sent_at > now or broker not in self._watched:
            return False
        is_heard = self._pauses[broker].is_heard
        if not is_heard and sent_at < self._settled_at:  # guard Detect.settled
            return False
        suspect = self._suspects.get(broker)
        if suspect is None:
            suspect = self._suspects[broker] = _Suspect()
            self._probe_others(broker, channel, now)
            if self._due is not None:
                self._due = min(self._due, Instant(now + SUSPECT_PROBE_NS))
        if sent_at < suspect.heard_at:
            return False
        absence = suspect.absences.get(channel)
        if absence is None or sent_at - absence.last > GAP_NS:  # guard Detect.gap
            absence = _Absence(sent_at, sent_at)
        suspect.absences[channel] = _Absence(absence.since, max(sent_at, absence.last))
        if suspect.has_ended or not self._is_absent(broker, suspect):
            return False
        suspect.has_ended = True
        return True

    def _is_absent(self, broker: BrokerId, suspect: _Suspect) -> bool:
        """Return whether all channels were without responders at the same time for long enough."""
        absences = suspect.absences.values()
        if len(absences) < len(Channel):  # guard Detect.channels
            return False
        common_ns = min(one.last for one in absences) - max(one.since for one in absences)
        lately_ns = self._pauses[broker].longest_ns
        if lately_ns > PUNCTUAL_NS:  # guard Detect.patience
            return common_ns >= min(lately_ns, CONFIRM_NS_MAX)
        return common_ns >= CONFIRM_NS  # guard Detect.time

    def _probe_others(self, broker: BrokerId, channel: Channel, now: Instant) -> None:
        """Probe a new suspect on the other channels without a wait for the next round."""
        for other in Channel:
            if other is not channel:
                self._probe(broker, other, now)

    def on_timer(self, now: Instant) -> None:
        """Send the probes that are due; on all channels to a suspect."""
        if self._due is None or now < self._due:
            return
        self._due = Instant(now + (SUSPECT_PROBE_NS if self._suspects else self._interval_ns))
        for broker in self._watched:
            self._probe(broker, Channel.METADATA, now)
            if broker in self._suspects:
                self._probe_others(broker, Channel.METADATA, now)
        for broker in [name for name, one in self._suspects.items() if not one.is_recent(now)]:
            del self._suspects[broker]

    def next_deadline(self) -> Instant | None:
        """Time of the next probes, `None` while nobody is watched."""
        return self._due
