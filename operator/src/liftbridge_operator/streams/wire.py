"""Convert streams between the brokers' messages and the operator's values."""

from collections.abc import Iterable, Mapping
from typing import Final

from liftbridge_operator.streams.observation import ObservedPartition, ObservedStream
from liftbridge_operator.streams.settings import Settings, Value, path_of
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
_NUMBERS: Final[dict[str, Mapping[str, int]]] = {"fsync_policy": _FSYNC, "unclean_mode": _UNCLEAN}
_NAMES: Final = {
    setting: {number: name for name, number in numbers.items()}
    for setting, numbers in _NUMBERS.items()
}
_OWN: Final = {
    field.name.removesuffix("_ms"): field.name for field in data_pb2.StreamOptions.DESCRIPTOR.fields
}
"""Setting -> field of `StreamOptions`; same units."""
_KNOWN_TO_ALL: Final = frozenset({*_NUMBERS, "tombstone_retention"})


def fill(
    settings: Mapping[str, Value],
    request: api_pb2.CreateStreamRequest,
    options: data_pb2.StreamOptions,
) -> None:
    """Write settings into a request."""
    for name, value in settings.items():
        if name in _FIELDS:
            getattr(request, _FIELDS[name]).value = value
        elif name in _NUMBERS:
            setattr(options, _OWN[name], _NUMBERS[name][str(value)])
        else:
            setattr(options, _OWN[name], value)


def passed_over(asked: data_pb2.StreamOptions, present: data_pb2.StreamOptions) -> str:
    """Return the path and value of a requested option that the broker is too old to support.

    Such a broker does not report the option. Options that every broker supports are not compared:
    the oldest brokers report none of them.

    Args:
        asked: Options of a request.
        present: Options that the brokers report right after it.

    Returns:
        Empty if there is none.
    """
    for name, field in _OWN.items():
        value = getattr(asked, field)
        if value and name not in _KNOWN_TO_ALL and not present.HasField(field):
            return f"{path_of(name)} {value}"
    return ""


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
    for partition in partitions:
        replicas = tuple(
            names.setdefault(replica.broker, replica.broker) for replica in partition.replicas
        )
        found.setdefault(partition.stream_id, []).append(
            ObservedPartition(
                partition.partition.partition,
                names.setdefault(partition.leader, partition.leader),
                replicas,
                len(partition.isr),
                partition.min_isr,
                partition.is_readonly,
                bool(partition.target),
            )
        )
    shared: dict[tuple[Value, ...], Settings] = {}
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
            shared.setdefault(tuple(value.values()), value),
            tuple(held),
        )
    return streams


def _settings(settings: api_pb2.CreateStreamRequest, options: data_pb2.StreamOptions) -> Settings:
    values: dict[str, Value] = {
        name: getattr(settings, theirs).value for name, theirs in _FIELDS.items()
    }
    for name, field in _OWN.items():
        value = getattr(options, field)
        values[name] = _NAMES[name][value] if name in _NAMES else value
    return values
