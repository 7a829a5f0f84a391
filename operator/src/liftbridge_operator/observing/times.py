"""Moments as the API server writes them, and when windows for disruptions are open."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from liftbridge_operator.model.operations import Weekday, Window
from liftbridge_operator.model.values import duration_ns

_DAYS: Final = tuple(Weekday)
_MILLISECOND_NS: Final = 1_000_000
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(text: str | None) -> int:
    """Unix milliseconds of a moment in RFC 3339; 0 for none, or for no moment at all."""
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
    """A moment in RFC 3339, to the second, as the API server writes it."""
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_text(ms: int) -> str:
    """A moment in RFC 3339, to the millisecond: read again it is the same."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def unknown_zones(windows: Sequence[Window]) -> tuple[str, ...]:
    """Time zones of windows that this machine does not know."""
    return tuple(one.time_zone for one in windows if _zone(one.time_zone) is None)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def is_open(windows: Sequence[Window], now_ms: int) -> bool:
    """Whether disruptions may begin: in one of the windows, or always without any.

    A window whose zone is not known is never open.
    """
    return not windows or any(_is_in(one, now_ms) for one in windows)


def _is_in(window: Window, now_ms: int) -> bool:
    zone = _zone(window.time_zone)
    if zone is None:
        return False
    now = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(zone)
    length = timedelta(milliseconds=duration_ns(window.length) // _MILLISECOND_NS)
    hour, minute = (int(part) for part in window.start.split(":"))
    # A window is at most a day long, so that one which is open began today or yesterday.
    for back in (0, 1):
        day = now.date() - timedelta(days=back)
        if window.days and _DAYS[day.weekday()] not in window.days:
            continue
        begin = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
        if begin.astimezone(UTC) <= now.astimezone(UTC) < begin.astimezone(UTC) + length:
            return True
    return False
