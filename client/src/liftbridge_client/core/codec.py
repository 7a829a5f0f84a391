"""Conversion between public values and API messages."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from liftbridge_client.errors import UnimplementedError, UsageError
from liftbridge_client.model import (
    Ack,
    AckPolicy,
    BrokerInfo,
    EventTimes,
    FsyncPolicy,
    Metadata,
    PartitionBounds,
    PartitionInfo,
    Start,
    Stop,
    StreamDescription,
    StreamInfo,
    StreamSettings,
    UncleanMode,
    from_ns,
)
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_POLICIES: Final[dict[AckPolicy, api_pb2.AckPolicy]] = {
    "leader": api_pb2.LEADER,
    "all": api_pb2.ALL,
    "none": api_pb2.NONE,
}
START_KINDS: Final = {
    "new": api_pb2.NEW_ONLY,
    "offset": api_pb2.OFFSET,
    "earliest": api_pb2.EARLIEST,
    "latest": api_pb2.LATEST,
    "time": api_pb2.TIMESTAMP,
}
STOP_KINDS: Final = {
    "never": api_pb2.STOP_ON_CANCEL,
    "offset": api_pb2.STOP_OFFSET,
    "latest": api_pb2.STOP_LATEST,
    "time": api_pb2.STOP_TIMESTAMP,
}
_UNCLEAN: Final[dict[UncleanMode, data_pb2.UncleanMode]] = {
    "manual": data_pb2.UNCLEAN_MODE_MANUAL,
    "balanced": data_pb2.UNCLEAN_MODE_BALANCED,
    "proactive": data_pb2.UNCLEAN_MODE_PROACTIVE,
}
_FSYNC: Final[dict[FsyncPolicy, data_pb2.FsyncPolicy]] = {
    "never": data_pb2.FSYNC_POLICY_NEVER,
    "interval": data_pb2.FSYNC_POLICY_INTERVAL,
    "commit": data_pb2.FSYNC_POLICY_COMMIT,
    "auto": data_pb2.FSYNC_POLICY_AUTO,
}
_PLAIN: Final = {
    "retention_max_bytes": "retentionMaxBytes",
    "retention_max_messages": "retentionMaxMessages",
    "segment_max_bytes": "segmentMaxBytes",
    "compact_max_goroutines": "compactMaxGoroutines",
    "compact_enabled": "compactEnabled",
    "auto_pause_disable_if_subscribers": "autoPauseDisableIfSubscribers",
    "min_isr": "minIsr",
    "optimistic_concurrency_control": "optimisticConcurrencyControl",
    "encryption": "encryption",
}
_TIMES: Final = {
    "retention_max_age": "retentionMaxAge",
    "cleaner_interval": "cleanerInterval",
    "segment_max_age": "segmentMaxAge",
    "auto_pause_time": "autoPauseTime",
}
_OWN: Final = {
    field.name: field.name.removesuffix("_ms") for field in data_pb2.StreamOptions.DESCRIPTOR.fields
}
"""Setting by field of `StreamOptions`; if the names differ, the setting is a time."""
_KNOWN_TO_ALL: Final = frozenset({"fsync_policy", "unclean_mode", "tombstone_retention_ms"})
_NUMBERS: Final[dict[str, Mapping[Any, int]]] = {"fsync_policy": _FSYNC, "unclean_mode": _UNCLEAN}
_NAMES: Final = {
    field: {number: name for name, number in numbers.items()} for field, numbers in _NUMBERS.items()
}


def policy_of(ack_policy: AckPolicy) -> api_pb2.AckPolicy:
    """Convert an ack policy to the API's.

    Raises:
        UsageError: The policy does not exist.
    """
    try:
        return _POLICIES[ack_policy]
    except (KeyError, TypeError):  # TypeError if it is not hashable, such as a list
        policies = ", ".join(_POLICIES)
        raise UsageError(f"ack_policy {ack_policy!r}: must be one of {policies}") from None


def _ms(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def fill_settings(settings: StreamSettings, request: api_pb2.CreateStreamRequest) -> None:
    """Fill a request with the settings that the original server supports."""
    for ours, theirs in _PLAIN.items():
        value = getattr(settings, ours)
        if value is not None:
            getattr(request, theirs).value = value
    for ours, theirs in _TIMES.items():
        time = getattr(settings, ours)
        if time is not None:
            getattr(request, theirs).value = _ms(time)


def own_options(settings: StreamSettings) -> data_pb2.StreamOptions | None:
    """Convert the settings that only servers of this project support; `None` if none is set."""
    given = {theirs: getattr(settings, ours) for theirs, ours in _OWN.items()}
    options = data_pb2.StreamOptions()
    for name, value in given.items():
        if value is not None:
            setattr(options, name, _sent(name, value))
    return options if any(value is not None for value in given.values()) else None


def _sent(name: str, value: int | str | timedelta) -> int | str:
    """Convert a setting to the value of its field."""
    if isinstance(value, timedelta):
        return _ms(value)
    return _NUMBERS[name][value] if name in _NUMBERS else value


def check_in_force(stream: str, settings: StreamSettings, options: data_pb2.StreamOptions) -> None:
    """Check that no requested setting was ignored.

    A broker that is too old for a setting ignores it, and applies the rest of the request. Settings
    that every broker of this project knows are not checked: the oldest do not report them.

    Args:
        stream: Name of the stream.
        settings: Requested settings.
        options: Settings that a server reports right after the change.

    Raises:
        UnimplementedError: A requested setting is not in effect.
    """
    for theirs, ours in _OWN.items():
        value = getattr(settings, ours)
        if not value or theirs in _KNOWN_TO_ALL or options.HasField(theirs):
            continue
        raise UnimplementedError(
            f"{ours} {value} of stream {stream} is not in effect: a broker of this cluster is too "
            "old for it, and acts as if it were not set; upgrade all brokers, then alter the "
            "stream to set it"
        )


def unlike(
    found: StreamDescription, request: api_pb2.CreateStreamRequest, settings: StreamSettings
) -> list[str]:
    """List differences of an existing stream from a request, each as `field 3, not 1`.

    Settings that the request does not set may have any value; so may the number of replicas if the
    request asks for one on every broker.
    """
    wanted: dict[str, tuple[object, object]] = {
        "subject": (found.subject, request.subject),
        "group": (found.group, request.group),
        "partitions": (found.partitions, request.partitions or 1),
    }
    if request.replicationFactor > 0:
        wanted["replication"] = (found.replication_factor, request.replicationFactor)
    for field in fields(settings):
        wanted[field.name] = (getattr(found.settings, field.name), getattr(settings, field.name))
    return [
        f"{name} {has!r}, not {asked!r}"
        for name, (has, asked) in wanted.items()
        if asked is not None and has != asked
    ]


def settings_of(
    request: api_pb2.CreateStreamRequest, options: data_pb2.StreamOptions
) -> StreamSettings:
    """Convert the settings in effect from a server's description."""
    values: dict[str, object] = {
        ours: getattr(request, theirs).value
        for ours, theirs in _PLAIN.items()
        if request.HasField(theirs)
    }
    for ours, theirs in _TIMES.items():
        if request.HasField(theirs):
            values[ours] = timedelta(milliseconds=getattr(request, theirs).value)
    for theirs, ours in _OWN.items():
        value = getattr(options, theirs)
        if theirs in _NAMES:
            value = _NAMES[theirs].get(value)
        elif theirs != ours:
            value = timedelta(milliseconds=value)
        values[ours] = value
    return StreamSettings(**values)  # type: ignore[arg-type]  # types agree by the tables above


def description_of(stream: data_pb2.StreamDescription) -> StreamDescription:
    """Convert a stream from a `ListStreams` response."""
    settings = stream.settings
    return StreamDescription(
        stream.stream_id,
        settings.name,
        settings.subject,
        settings.group,
        settings.replicationFactor,
        stream.partitions,
        from_ns(stream.creation_timestamp),
        settings_of(settings, stream.options),
        stream.owner,
    )


def metadata_of(response: api_pb2.FetchMetadataResponse) -> Metadata:
    """Convert a metadata response; streams that the server does not know are left out."""
    brokers = {
        b.id: BrokerInfo(b.id, b.host, b.port, b.partitionCount, b.leaderCount, b.zone)
        for b in response.brokers
    }
    streams = {
        s.name: StreamInfo(
            s.name,
            s.subject,
            from_ns(s.creationTimestamp),
            {number: partition_of(p) for number, p in sorted(s.partitions.items())},
        )
        for s in response.streamMetadata
        if s.error == api_pb2.StreamMetadata.OK
    }
    return Metadata(brokers, streams)


def partition_of(partition: api_pb2.PartitionMetadata) -> PartitionInfo:
    """Convert a partition of a metadata response."""
    return PartitionInfo(
        partition.id,
        partition.leader,
        tuple(partition.replicas),
        tuple(partition.isr),
        partition.highWatermark,
        partition.newestOffset,
        partition.paused,
        partition.readonly,
        _times(partition.messagesReceivedTimestamps),
        _times(partition.pauseTimestamps),
        _times(partition.readonlyTimestamps),
    )


def _times(times: api_pb2.PartitionEventTimestamps) -> EventTimes:
    return EventTimes(times.firstTimestamp, times.latestTimestamp)


def bounds_of(bounds: data_pb2.PartitionBounds) -> PartitionBounds:
    """Convert the bounds of a partition."""
    return PartitionBounds(
        bounds.partition,
        bounds.log_start,
        bounds.high_watermark,
        bounds.log_end,
        bounds.bytes,
        bounds.segments,
        tuple((epoch.leader_epoch, epoch.start_offset) for epoch in bounds.epochs),
        bounds.timestamp_offset if bounds.HasField("timestamp_offset") else None,
        bounds.first_timestamp,
        bounds.last_timestamp,
        bounds.stream_id,
        bounds.unclean_epoch if bounds.HasField("unclean_epoch") else None,
    )


def ack_of(ack: api_pb2.Ack, partition: int) -> Ack:
    """Convert an ack of the original API."""
    time = ack.receptionTimestamp
    return Ack(ack.stream, partition, ack.offset, time, leader_epoch=ack.leaderEpoch)


def subscribe_request(
    stream: str,
    partition: int,
    start: Start,
    stop: Stop,
    *,
    resume: bool,
    reverse: bool,
    read_replica: bool,
    consumer: api_pb2.Consumer | None = None,
) -> api_pb2.SubscribeRequest:
    """Build the request of a subscription by `Subscribe`."""
    return api_pb2.SubscribeRequest(
        stream=stream,
        partition=partition,
        startPosition=START_KINDS[start.kind],
        startOffset=start.offset,
        startTimestamp=start.timestamp,
        stopPosition=STOP_KINDS[stop.kind],
        stopOffset=stop.offset,
        stopTimestamp=stop.timestamp,
        resume=resume,
        reverse=reverse,
        readISRReplica=read_replica,
        consumer=consumer,
    )
