"""Times in the API server's form, and maintenance windows."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from liftbridge_operator.model.operations import Weekday, Window
from liftbridge_operator.model.units import MILLISECOND_NS
from liftbridge_operator.model.values import duration_ns

_DAYS: Final = tuple(Weekday)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(text: str | None) -> int:
    """Parse a time in RFC 3339 to Unix milliseconds; 0 for none, or a malformed one."""
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        return 0
    return (moment - _EPOCH) // _MILLISECOND


def moment_text(ms: int) -> str:
    """Format a time in RFC 3339, to the second, as the API server does."""
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%SZ")


def since_text(before: str, now_ms: int) -> str:
    """Return the reported start of a state; now if the clock was set back since."""
    return before if 0 < moment_ms(before) <= now_ms else moment_text(now_ms)


def exact_text(ms: int) -> str:
    """Format a time in RFC 3339, to the millisecond, so that parsing restores it."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def unknown_zones(windows: Sequence[Window]) -> tuple[str, ...]:
    """Return time zones of windows that this machine does not know."""
    return tuple(window.time_zone for window in windows if _zone(window.time_zone) is None)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def is_open(windows: Sequence[Window], now_ms: int) -> bool:
    """Return whether disruptions may start: in one of the windows, or always without any.

    A window with an unknown zone is never open.
    """
    return not windows or any(_is_in(window, now_ms) for window in windows)


def next_opening_ms(windows: Sequence[Window], now_ms: int) -> int:
    """Return when the next window opens, Unix milliseconds; 0 for never."""
    now = _EPOCH + timedelta(milliseconds=now_ms)
    found = [
        begin
        for window in windows
        if (zone := _zone(window.time_zone)) is not None
        for ahead in range(-1, 9)
        if (begin := _begin(window, now, zone, ahead)) is not None and begin > now
    ]
    return (min(found) - _EPOCH) // _MILLISECOND if found else 0


def _begin(window: Window, now: datetime, zone: ZoneInfo, ahead: int) -> datetime | None:
    """Return when a window opens on the day `ahead` days from now; None if not on that day."""
    day = now.astimezone(zone).date() + timedelta(days=ahead)
    if window.days and _DAYS[day.weekday()] not in window.days:
        return None
    hour, minute = (int(part) for part in window.start.split(":"))
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC)


def _is_in(window: Window, now_ms: int) -> bool:
    zone = _zone(window.time_zone)
    if zone is None:
        return False
    now = _EPOCH + timedelta(milliseconds=now_ms)
    length = timedelta(milliseconds=duration_ns(window.length) // MILLISECOND_NS)
    # A window is at most a day long, so an open one began today or yesterday.
    begun = (_begin(window, now, zone, ahead) for ahead in (0, -1))
    return any(begin is not None and begin <= now < begin + length for begin in begun)
