"""Conversion between public values and API messages."""

from dataclasses import fields
from datetime import timedelta
from typing import Final

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
_OWN: Final = (
    "fsync_policy",
    "unclean_mode",
    "tombstone_retention",
    "retention_cursor",
    "retention_cursor_max_bytes",
)


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
    if all(getattr(settings, name) is None for name in _OWN):
        return None
    options = data_pb2.StreamOptions()
    if settings.fsync_policy is not None:
        options.fsync_policy = _FSYNC[settings.fsync_policy]
    if settings.unclean_mode is not None:
        options.unclean_mode = _UNCLEAN[settings.unclean_mode]
    if settings.tombstone_retention is not None:
        options.tombstone_retention_ms = _ms(settings.tombstone_retention)
    if settings.retention_cursor is not None:
        options.retention_cursor = settings.retention_cursor
    if settings.retention_cursor_max_bytes is not None:
        options.retention_cursor_max_bytes = settings.retention_cursor_max_bytes
    return options


def check_in_force(stream: str, settings: StreamSettings, options: data_pb2.StreamOptions) -> None:
    """Check that a requested retention cursor is in effect.

    A broker that is too old ignores this field and applies the rest of the request.

    Args:
        stream: Name of the stream.
        settings: Requested settings.
        options: Settings that a server reports right after the change.

    Raises:
        UnimplementedError: It is not in effect.
    """
    if settings.retention_cursor and not options.retention_cursor:
        raise UnimplementedError(
            f"retention_cursor {settings.retention_cursor} of stream {stream} is not in effect: "
            "a broker of this cluster is too old for it, and records that are not archived may be "
            "removed; upgrade all brokers, then alter the stream to set it"
        )


def unlike(
    found: StreamDescription, request: api_pb2.CreateStreamRequest, settings: StreamSettings
) -> list[str]:
    """List how an existing stream differs from a request, each as `field 3, not 1`.

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
    by_number = {number: name for name, number in _FSYNC.items()}
    values["fsync_policy"] = by_number.get(options.fsync_policy)
    by_mode = {number: name for name, number in _UNCLEAN.items()}
    values["unclean_mode"] = by_mode.get(options.unclean_mode)
    values["tombstone_retention"] = timedelta(milliseconds=options.tombstone_retention_ms)
    values["retention_cursor"] = options.retention_cursor
    values["retention_cursor_max_bytes"] = options.retention_cursor_max_bytes
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
    )
