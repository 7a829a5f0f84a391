"""Settings of a stream: those a client requested, and those in force.

The broker's defaults supply what the client left open.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

_LEVEL: Final = "feature_level"


class FsyncPolicy(StrEnum):
    """Time at which appended data is synced to disk (storage policy 2)."""

    NEVER = "never"
    INTERVAL = "interval"
    COMMIT = "commit"
    AUTO = "auto"


class UncleanMode(StrEnum):
    """Decides on elections of replicas that may lack acknowledged records."""

    MANUAL = "manual"
    BALANCED = "balanced"
    PROACTIVE = "proactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOverrides:
    """Settings given for one stream.

    `None` takes the broker's default, even after that default changed. Times are milliseconds,
    sizes bytes; 0 means no limit where a limit is meant. A field that was added later states the
    feature level of the first version that can read it in the metadata.
    """

    retention_bytes_max: int | None = None
    retention_messages_max: int | None = None
    retention_age_ms_max: int | None = None
    cleaner_interval_ms: int | None = None
    segment_bytes_max: int | None = None
    segment_age_ms_max: int | None = None
    compact_goroutines_max: int | None = None
    compact_enabled: bool | None = None
    auto_pause_ms: int | None = None
    auto_pause_disable_if_subscribers: bool | None = None
    min_isr: int | None = None
    optimistic_concurrency: bool | None = None
    encryption: bool | None = None
    fsync_policy: FsyncPolicy | None = None
    tombstone_retention_ms: int | None = None
    unclean_mode: UncleanMode | None = None
    retention_cursor: str | None = None
    retention_cursor_bytes_max: int | None = None
    ack_reply: bool | None = field(default=None, metadata={_LEVEL: 3})


def levels_needed(overrides: StreamOverrides) -> Mapping[str, int]:
    """Return the feature levels that brokers must know to read the settings, by setting."""
    given = (one for one in fields(overrides) if getattr(overrides, one.name) is not None)
    return {one.name: one.metadata[_LEVEL] for one in given if one.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Settings in force for one stream: defaults of the original, and of ours where it has none.

    A `min_isr` of 0 leaves it to the replication factor: 2 from three replicas on, else 1.
    Retention removes nothing from the cursor `retention_cursor` on, empty for none, unless a
    partition holds more than `retention_cursor_bytes_max` bytes. With `ack_reply`, messages from
    NATS are acknowledged to their reply subjects.
    """

    retention_bytes_max: int = 0
    retention_messages_max: int = 0
    retention_age_ms_max: int = 168 * 3_600_000
    cleaner_interval_ms: int = 300_000
    segment_bytes_max: int = 268_435_456
    segment_age_ms_max: int = 168 * 3_600_000
    compact_goroutines_max: int = 10
    compact_enabled: bool = False
    auto_pause_ms: int = 0
    auto_pause_disable_if_subscribers: bool = False
    min_isr: int = 0
    optimistic_concurrency: bool = False
    encryption: bool = False
    fsync_policy: FsyncPolicy = FsyncPolicy.INTERVAL
    tombstone_retention_ms: int = 0
    unclean_mode: UncleanMode = UncleanMode.BALANCED
    retention_cursor: str = ""
    retention_cursor_bytes_max: int = 0
    ack_reply: bool = False

    def overridden(self, overrides: StreamOverrides) -> "StreamOptions":
        """These settings, replaced by every value that is set in `overrides`."""
        values = {f.name: getattr(overrides, f.name) for f in fields(overrides)}
        given = {name: value for name, value in values.items() if value is not None}
        return StreamOptions(
            **{f.name: given.get(f.name, getattr(self, f.name)) for f in fields(self)}
        )
