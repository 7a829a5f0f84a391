"""Budgets that distinguish a busy peer from an abusive one (RFC 9113 10.5).

Each kind of frame that costs the receiver more than the sender has a budget: a burst, and a rate at
which it refills. Spending more ends the connection with ENHANCE_YOUR_CALM and the kind as text.
"""

from typing import Final

from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.units import MILLISECOND_NS

PINGS_BURST: Final = 10
SETTINGS_BURST: Final = 1000
STREAMS_PER_SETTINGS: Final = 100
"""Streams whose windows can be changed in about the time of a SETTINGS frame."""
NEW_WINDOW_TOKENS_MAX: Final = SETTINGS_BURST // 5
"""Bound of tokens for a change, so that a few changes end no connection with many streams."""
PRIORITIES_BURST: Final = 1000
EMPTY_DATA_BURST: Final = 100
STRAYS_BURST: Final = 200
LOST_FIELDS_BURST: Final = 10_000
"""Header fields decoded in vain: the block starts no accepted call."""
RESETS_BURST: Final = 1000
"""Burst of resets: an immediate reset evades the bound of open streams (CVE-2023-44487)."""
WINDOW_UPDATES_BURST: Final = 1000
WINDOW_UPDATES_PER_REASON: Final = 10
BYTES_PER_WINDOW_UPDATE: Final = 2
"""Bytes sent for which a WINDOW_UPDATE is free: less than half of the smallest gRPC message."""


class Budget:
    """A bucket of `burst` tokens that gains one each `interval_ns`, stored as a point in time.

    At that time the bucket will be full again (generic cell rate algorithm), so no refill is
    needed.
    """

    __slots__ = ("_burst_ns", "_full_ns", "_interval_ns")

    def __init__(self, burst: int, interval_ns: int) -> None:
        assert burst > 0
        self._interval_ns = interval_ns
        self._burst_ns = burst * interval_ns
        self._full_ns = 0

    def spend(self, now: int, tokens: int = 1) -> bool:
        """Take tokens; if there are not enough, take none and return False."""
        full = max(self._full_ns, now) + tokens * self._interval_ns
        if full - now > self._burst_ns:
            return False
        self._full_ns = full
        return True


class Guard:
    """All budgets of one connection."""

    __slots__ = ("_budgets", "_window_updates")

    def __init__(self, limits: Limits) -> None:
        self._budgets = {
            "ping": Budget(PINGS_BURST, limits.ping_interval_ns),
            "settings": Budget(SETTINGS_BURST, 10 * MILLISECOND_NS),
            "reset": Budget(RESETS_BURST, MILLISECOND_NS),
            "priority": Budget(PRIORITIES_BURST, 10 * MILLISECOND_NS),
            "empty_data": Budget(EMPTY_DATA_BURST, 100 * MILLISECOND_NS),
            "stray": Budget(STRAYS_BURST, 100 * MILLISECOND_NS),
            "lost_fields": Budget(LOST_FIELDS_BURST, MILLISECOND_NS // 10),
            "unknown_frame": Budget(PRIORITIES_BURST, 10 * MILLISECOND_NS),
        }
        self._window_updates = 0

    def spend(self, kind: str, now: int, tokens: int = 1) -> None:
        """Count a frame of a kind, or several if its cost equals several frames.

        Raises:
            ConnectionFaultError: The budget is used up.
        """
        if not self._budgets[kind].spend(now, tokens):
            # gRPC clients recognise this text and lengthen their keepalive interval.
            text = "too_many_pings" if kind == "ping" else f"flood: {kind}"
            raise ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood=kind)

    def on_new_window(self, streams: int, now: int) -> None:
        """Count a change of the window of all streams.

        Raises:
            ConnectionFaultError: The budget of SETTINGS is used up.
        """
        self.spend("settings", now, min(streams // STREAMS_PER_SETTINGS, NEW_WINDOW_TOKENS_MAX))

    def on_window_update(self, reasons: int, bytes_sent: int) -> None:
        """Count a WINDOW_UPDATE against its possible causes.

        A client with a tiny window may send two for every frame, and grpcio one for every call it
        opens and two for every message it receives, hundreds of which fit one frame.

        Args:
            reasons: Streams opened and frames sent so far.
            bytes_sent: Payload of DATA sent so far.

        Raises:
            ConnectionFaultError: There are far more updates than these can cause.
        """
        self._window_updates += 1
        allowed = WINDOW_UPDATES_BURST + WINDOW_UPDATES_PER_REASON * reasons
        allowed += bytes_sent // BYTES_PER_WINDOW_UPDATE
        if self._window_updates > allowed:
            text = "flood: window_update"
            raise ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="window_update")
