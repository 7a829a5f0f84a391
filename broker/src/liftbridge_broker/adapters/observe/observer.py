"""Turns one transition into one log event and one count."""

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from liftbridge_broker.adapters.observe.catalogue import Catalogue, Level, Sum, TransitionSpec
from liftbridge_broker.adapters.observe.metrics import Sample

LINES_MAX: Final = 200
"""Maximum number of log events of a kind in a window; further events are only counted."""

WINDOW_NS: Final = 10_000_000_000

_UNLISTED: Final = TransitionSpec(kind="unlisted", level=Level.WARNING, doc="Not in the catalogue.")


class StructlogObserver:
    """The observer of the shipped broker (`ports.observe.Observer`).

    Counts are exact. Log events of one kind are limited to `LINES_MAX` in `WINDOW_NS`, so that a
    thousand partitions failing at once, or a hostile client, cannot drown the log; the next event
    of that kind has the number of suppressed events. Kinds without a limit are bounded by those who
    report them. A kind that is not in the catalogue is logged and counted as `unlisted`; a test
    ensures that the code has none.
    """

    def __init__(
        self, catalogue: Catalogue, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Start with all counts at 0.

        Args:
            catalogue: Known metrics and transitions.
            monotonic_ns: Clock for the limit.
        """
        self._specs = catalogue.transitions
        self._now_ns = monotonic_ns
        self._log = structlog.stdlib.get_logger("liftbridge")
        self._counts = dict.fromkeys(self._specs, 0)
        self._sums: dict[str, dict[str, int]] = {
            spec.adds.metric: {} if spec.adds.label else {"": 0}
            for spec in self._specs.values()
            if spec.adds is not None
        }
        self._windows: dict[str, tuple[int, int]] = {}

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Count a transition and log it."""
        spec = self._specs.get(kind, _UNLISTED)
        self._counts[spec.kind] = self._counts.get(spec.kind, 0) + 1
        if spec.adds is not None:
            self._add(spec.adds, fields)
        suppressed = self._suppressed(spec.kind) if spec.is_limited else 0
        if suppressed is None:
            return
        values = dict(fields)
        if spec is _UNLISTED:
            values["kind"] = kind
        if suppressed:
            values["suppressed"] = suppressed
        match spec.level:
            case Level.DEBUG:
                self._log.debug(spec.kind, **values)
            case Level.INFO:
                self._log.info(spec.kind, **values)
            case Level.WARNING:
                self._log.warning(spec.kind, **values)
            case Level.ERROR:
                self._log.error(spec.kind, **values)

    def samples(self) -> dict[str, Sample]:
        """Return counts as metrics: a kind's own metric if it has one, else `transitions_total`."""
        shared = {
            kind: count
            for kind, count in self._counts.items()
            if kind not in self._specs or not self._specs[kind].metric
        }
        own: dict[str, Sample] = {
            spec.metric: self._counts[spec.kind] for spec in self._specs.values() if spec.metric
        }
        sums: dict[str, Sample] = {
            name: sums[""] if "" in sums else dict(sums) for name, sums in self._sums.items()
        }
        return {**own, **sums, "transitions_total": shared}

    def _add(self, adds: Sum, fields: Mapping[str, object]) -> None:
        amount = fields[adds.field]
        assert isinstance(amount, int)
        sums = self._sums[adds.metric]
        label = str(fields[adds.label]) if adds.label else ""
        sums[label] = sums.get(label, 0) + amount

    def _suppressed(self, kind: str) -> int | None:
        """Return the number of suppressed events of this kind; None to suppress this event too."""
        now_ns = self._now_ns()
        start_ns, lines = self._windows.get(kind, (now_ns, 0))
        if now_ns - start_ns >= WINDOW_NS:
            self._windows[kind] = (now_ns, 1)
            return max(0, lines - LINES_MAX)
        self._windows[kind] = (start_ns, lines + 1)
        return 0 if lines < LINES_MAX else None
