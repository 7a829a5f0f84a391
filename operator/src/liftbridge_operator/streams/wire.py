"""Convert streams between the brokers' messages and the operator's values."""

from collections.abc import Iterable, Mapping
from typing import Final

from liftbridge_operator.streams.observation import ObservedPartition, ObservedStream
from liftbridge_operator.streams.settings import Settings, Value
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2

RESERVED: Final = "__"
"""Prefix of the names of internal streams."""

_FIELDS: Final = {
    "retention_max_bytes": "retentionMaxBytes",
    "retention_max_messages": "retentionMaxMessages",
    "retention_max_age": "retentionMaxAge",
    "cleaner_interval": "cleanerInterval",
    "segment_max_bytes": "segmentMaxBytes",
    "segment_max_age": "segmentMaxAge",
    "compact_enabled": "compactEnabled",
    "compact_max_goroutines": "compactMaxGoroutines",
    "auto_pause_time": "autoPauseTime",
    "auto_pause_disable_if_subscribers": "autoPauseDisableIfSubscribers",
    "min_isr": "minIsr",
    "optimistic_concurrency_control": "optimisticConcurrencyControl",
    "encryption": "encryption",
}
_FSYNC: Final = {
    "never": data_pb2.FSYNC_POLICY_NEVER,
    "interval": data_pb2.FSYNC_POLICY_INTERVAL,
    "commit": data_pb2.FSYNC_POLICY_COMMIT,
    "auto": data_pb2.FSYNC_POLICY_AUTO,
}
_UNCLEAN: Final = {
    "manual": data_pb2.UNCLEAN_MODE_MANUAL,
    "balanced": data_pb2.UNCLEAN_MODE_BALANCED,
    "proactive": data_pb2.UNCLEAN_MODE_PROACTIVE,
}
_FSYNC_NAMES: Final = {wire: name for name, wire in _FSYNC.items()}
_UNCLEAN_NAMES: Final = {wire: name for name, wire in _UNCLEAN.items()}


def fill(
    settings: Mapping[str, Value],
    request: api_pb2.CreateStreamRequest,
    options: data_pb2.StreamOptions,
) -> None:
    """Write settings into a request."""
    for name, value in settings.items():
        if name in _FIELDS:
            getattr(request, _FIELDS[name]).value = value
        elif name == "tombstone_retention":
            assert isinstance(value, int)
            options.tombstone_retention_ms = value
        elif name == "retention_cursor":
            options.retention_cursor = str(value)
        elif name == "retention_cursor_max_bytes":
            assert isinstance(value, int)
            options.retention_cursor_max_bytes = value
        elif name == "fsync_policy":
            options.fsync_policy = _FSYNC[str(value)]
        else:
            assert name == "unclean_mode", name
            options.unclean_mode = _UNCLEAN[str(value)]


def observed(
    described: Iterable[data_pb2.StreamDescription],
    partitions: Iterable[admin_pb2.PartitionStatus],
) -> dict[str, ObservedStream]:
    """Join streams and their partitions by name, without internal streams.

    The two lists are not of one instant: a stream created between them may lack its partitions, or
    the reverse; the next poll has both.
    """
    found: dict[int, list[ObservedPartition]] = {}
    names: dict[str, str] = {}
    for one in partitions:
        replicas = tuple(
            names.setdefault(replica.broker, replica.broker) for replica in one.replicas
        )
        found.setdefault(one.stream_id, []).append(
            ObservedPartition(
                one.partition.partition,
                names.setdefault(one.leader, one.leader),
                replicas,
                len(one.isr),
                one.min_isr,
                one.is_readonly,
                bool(one.target),
            )
        )
    shared: dict[Settings, Settings] = {}
    streams: dict[str, ObservedStream] = {}
    for stream in described:
        settings = stream.settings
        if settings.name.startswith(RESERVED):
            continue
        held = sorted(found.get(stream.stream_id, ()))
        value = _settings(settings, stream.options)
        streams[settings.name] = ObservedStream(
            stream.stream_id,
            settings.name,
            settings.subject,
            settings.group,
            settings.replicationFactor,
            stream.partitions,
            stream.owner,
            stream.creation_timestamp,
            shared.setdefault(value, value),
            tuple(held),
        )
    return streams


def _settings(settings: api_pb2.CreateStreamRequest, options: data_pb2.StreamOptions) -> Settings:
    values: dict[str, Value] = {
        name: getattr(settings, theirs).value for name, theirs in _FIELDS.items()
    }
    return Settings(
        **values,  # type: ignore[arg-type]  # names and kinds are those of `_FIELDS`
        tombstone_retention=options.tombstone_retention_ms,
        fsync_policy=_FSYNC_NAMES[options.fsync_policy],
        unclean_mode=_UNCLEAN_NAMES[options.unclean_mode],
        retention_cursor=options.retention_cursor,
        retention_cursor_max_bytes=options.retention_cursor_max_bytes,
    )
