"""Commands that create, change and show streams."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

import typer

from liftbridge_client.aio.client import Client
from liftbridge_client.cli import values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import NotFoundError, UsageError
from liftbridge_client.model import (
    FsyncPolicy,
    PartitionBounds,
    StreamDescription,
    StreamInfo,
    StreamSettings,
    UncleanMode,
    from_ns,
)
from liftbridge_client.quota_model import Limits

PANEL: Final = "Streams"
FSYNC_POLICIES: Final = ("never", "interval", "commit", "auto")
UNCLEAN_MODES: Final = ("manual", "balanced", "proactive")


class StreamRow(NamedTuple):
    """A stream."""

    name: str
    subject: str
    partitions: int
    replication: int
    paused: int
    readonly: int
    created: datetime


class PartitionRow(NamedTuple):
    """A partition in the metadata; `newest` is -1 when it is empty."""

    stream: str
    partition: int
    leader: str
    replicas: Sequence[str]
    isr: Sequence[str]
    high_watermark: int
    newest: int
    paused: bool
    readonly: bool


class BoundsRow(NamedTuple):
    """Where a partition begins and ends; ends are exclusive."""

    stream: str
    partition: int
    start: int
    high_watermark: int
    end: int
    messages: int
    bytes: int
    segments: int
    first_time: datetime | None
    last_time: datetime | None
    offset_at_time: int | None


class BrokerRow(NamedTuple):
    """A broker."""

    id: str
    host: str
    port: int
    partitions: int
    leaders: int
    zone: str


class CallerRow(NamedTuple):
    """This client as the broker sees it.

    `expires` and `proof_expires`, the ends of certificate and proof, may be absent. `limits` are
    those of the principal's quota, and the delays how long it is slowed down now.
    """

    broker: str
    address: str
    listener: str
    common_name: str
    alternative_names: Sequence[str]
    expires: datetime | None
    principal: str
    groups: Sequence[str]
    proof: str
    proof_expires: datetime | None
    limits: Sequence[str]
    publish_delay_ms: int
    read_delay_ms: int


class SettingsRow(NamedTuple):
    """Settings in effect; sizes in bytes."""

    name: str
    subject: str
    group: str
    partitions: int
    replication: int
    retention_max_bytes: int | None
    retention_max_messages: int | None
    retention_max_age_seconds: float | None
    cleaner_interval_seconds: float | None
    segment_max_bytes: int | None
    segment_max_age_seconds: float | None
    compact_max_goroutines: int | None
    compact_enabled: bool | None
    auto_pause_time_seconds: float | None
    auto_pause_disable_if_subscribers: bool | None
    min_isr: int | None
    optimistic_concurrency_control: bool | None
    encryption: bool | None
    fsync_policy: str | None
    tombstone_retention_seconds: float | None
    retention_cursor: str | None
    retention_cursor_max_bytes: int | None
    ack_reply: bool | None
    unclean_mode: str | None


class DoneRow(NamedTuple):
    """A change of partitions of a stream."""

    stream: str
    partitions: Sequence[int]
    done: str


def _option(name: str, text: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel="Settings", **more)


Name = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
Partitions = Annotated[
    list[int] | None,
    values.partition_option("A partition; may be repeated. All by default."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
INTERNAL: Final = "__"
"""Prefix of the names of the brokers' internal streams."""

_SIZE: Final = {"parser": values.size, "metavar": "SIZE"}
_TIME: Final = {"parser": values.duration, "metavar": "DURATION"}
MaxBytes = Annotated[
    int | None, _option("--max-bytes", "Keep at most this much, such as 500MB or 2GiB.", **_SIZE)
]
MaxMessages = Annotated[
    int | None,
    _option(
        "--max-messages",
        "Keep at most this many messages.",
        min=0,
        max=values.OFFSET_MAX,
        metavar="COUNT",
    ),
]
MaxAge = Annotated[
    timedelta | None,
    _option("--max-age", "Keep messages at most this long, such as 7d or 1h30m.", **_TIME),
]
CleanerInterval = Annotated[
    timedelta | None,
    _option("--cleaner-interval", "Interval at which old messages are removed.", **_TIME),
]
SegmentBytes = Annotated[
    int | None, _option("--segment-bytes", "Maximum size of a segment.", **_SIZE)
]
SegmentAge = Annotated[
    timedelta | None, _option("--segment-age", "Maximum age of a segment.", **_TIME)
]
Compact = Annotated[
    bool | None,
    _option("--compact/--no-compact", "Whether to keep only the last message of each key."),
]
AutoPause = Annotated[
    timedelta | None,
    _option("--auto-pause", "Pause after being idle this long; 0 for never.", **_TIME),
]
MinIsr = Annotated[
    int | None,
    _option(
        "--min-isr",
        "Number of in-sync replicas that acks require.",
        min=1,
        max=values.COUNT_MAX,
        metavar="COUNT",
    ),
]
Concurrency = Annotated[
    bool | None,
    _option(
        "--concurrency-control/--no-concurrency-control",
        "Whether publishers may give the offset they expect.",
    ),
]
Fsync = Annotated[
    str | None,
    _option("--fsync", "When to sync data to disk: never, interval, commit or auto.",
            parser=values.one_of(*FSYNC_POLICIES), metavar="POLICY"),
]  # fmt: skip
Unclean = Annotated[
    str | None,
    _option("--unclean", "How to elect replicas that may lack records: manual, balanced or "
            "proactive.", parser=values.one_of(*UNCLEAN_MODES), metavar="MODE"),
]  # fmt: skip
Tombstones = Annotated[
    timedelta | None,
    _option(
        "--tombstone-retention", "Time to keep tombstones (messages without a value).", **_TIME
    ),
]
RetentionCursor = Annotated[
    str | None,
    _option(
        "--retention-cursor",
        "Keep messages from this cursor on, regardless of their age; '' for none.",
        metavar="CURSOR",
    ),
]
CursorBytes = Annotated[
    int | None,
    _option(
        "--retention-cursor-max-bytes",
        "Partition size above which the retention cursor is ignored; 0 for none.",
        **_SIZE,
    ),
]
AckReply = Annotated[
    bool | None,
    _option(
        "--ack-reply/--no-ack-reply",
        "Whether plain NATS messages are acknowledged to their reply subjects, as by JetStream.",
    ),
]


def _settings(
    *,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    max_age: MaxAge = None,
    cleaner_interval: CleanerInterval = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    compact: Compact = None,
    auto_pause: AutoPause = None,
    min_isr: MinIsr = None,
    concurrency_control: Concurrency = None,
    fsync: Fsync = None,
    tombstone_retention: Tombstones = None,
    retention_cursor: RetentionCursor = None,
    retention_cursor_max_bytes: CursorBytes = None,
    ack_reply: AckReply = None,
    unclean: Unclean = None,
) -> StreamSettings:
    """Build the settings from the command line."""
    policy: FsyncPolicy | None = fsync  # type: ignore[assignment]  # checked by the parser
    mode: UncleanMode | None = unclean  # type: ignore[assignment]  # checked by the parser
    return StreamSettings(
        retention_max_bytes=max_bytes,
        retention_max_messages=max_messages,
        retention_max_age=max_age,
        cleaner_interval=cleaner_interval,
        segment_max_bytes=segment_bytes,
        segment_max_age=segment_age,
        compact_enabled=compact,
        auto_pause_time=auto_pause,
        min_isr=min_isr,
        optimistic_concurrency_control=concurrency_control,
        fsync_policy=policy,
        tombstone_retention=tombstone_retention,
        retention_cursor=retention_cursor,
        retention_cursor_max_bytes=retention_cursor_max_bytes,
        ack_reply=ack_reply,
        unclean_mode=mode,
    )


async def create(
    run: Run[StreamRow],
    name: Name,
    *,
    subject: Annotated[
        str,
        typer.Option(
            metavar="SUBJECT",
            help="NATS subject to store; may contain * and >; by default the name of the stream.",
        ),
    ] = "",
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=values.COUNT_MAX,
            metavar="COUNT",
            help="Number of partitions.",
        ),
    ] = 1,
    replication: Annotated[
        int,
        typer.Option(
            min=-1,
            max=values.COUNT_MAX,
            metavar="COUNT",
            help="Replicas of each partition; -1 for one on every broker.",
        ),
    ] = 1,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="NATS queue group to share messages with.")
    ] = "",
    encrypt: Annotated[
        bool | None,
        _option(
            "--encrypt/--no-encrypt", "Whether messages are encrypted on disk; stays as it is."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if it exists and matches the request.")
    ] = False,
    settings: StreamSettings,
) -> None:
    """Create a stream that stores the messages of a NATS subject."""
    async with run.asking() as lb:
        stream = await lb.streams.create(
            name,
            subject=subject,
            partitions=partitions,
            replication=replication,
            group=group,
            settings=replace(settings, encryption=encrypt),
            if_not_exists=if_not_exists,
        )
        run.emit(stream_row(await stream.info()))


async def alter(run: Run[SettingsRow], name: Name, *, settings: StreamSettings) -> None:
    """Change settings of a stream; others keep their values."""
    if settings == StreamSettings():
        raise UsageError("nothing to change: name at least one setting")
    async with run.asking() as lb:
        await lb.streams.get(name).alter(settings)
        run.emit(await _described(lb.streams.describe(name), name))


async def show_settings(run: Run[SettingsRow], name: Name) -> None:
    """Show the settings of a stream that are in effect."""
    async with run.asking() as lb:
        run.emit(await _described(lb.streams.describe(name), name))


async def _described(found: Any, name: str) -> SettingsRow:
    async for stream in found:
        if stream.name == name:
            return _settings_row(stream)
    raise NotFoundError(f"no such stream: {name}")


async def delete(run: Run[DoneRow], name: Name, *, yes: Yes = False) -> None:
    """Delete a stream and its data."""
    run.confirm(f"Delete stream {name} and all its messages?", is_confirmed=yes)
    async with run.asking() as lb:
        numbers = await _numbers(lb, name, None)
        await lb.streams.delete(name)
    run.emit(DoneRow(name, numbers, "deleted"))


async def _numbers(lb: Client, name: str, chosen: Sequence[int] | None) -> Sequence[int]:
    """Return the named partitions, or all."""
    return chosen or sorted((await lb.streams.get(name).info()).partitions)


async def pause(
    run: Run[DoneRow],
    name: Name,
    *,
    partition: Partitions = None,
    resume_all: Annotated[
        bool, typer.Option("--resume-all", help="Resume all partitions on a publish to one.")
    ] = False,
) -> None:
    """Pause partitions until the next publish.

    Ingestion and subscriptions stop; plain NATS messages are not stored meanwhile.
    """
    async with run.asking() as lb:
        await lb.streams.get(name).pause(*(partition or ()), resume_all=resume_all)
        run.emit(DoneRow(name, await _numbers(lb, name, partition), "paused"))


async def readonly(
    run: Run[DoneRow],
    name: Name,
    *,
    partition: Partitions = None,
    off: Annotated[bool, typer.Option("--off", help="Make them writable again.")] = False,
) -> None:
    """Make partitions read-only, or writable again."""
    async with run.asking() as lb:
        await lb.streams.get(name).set_readonly(*(partition or ()), readonly=not off)
        done = "writable" if off else "readonly"
        run.emit(DoneRow(name, await _numbers(lb, name, partition), done))


async def list_streams(
    run: Run[StreamRow],
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only streams whose name starts with this.")
    ] = "",
    *,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Include internal streams (names with __).")
    ] = False,
    subject: Annotated[
        str,
        typer.Option(
            metavar="SUBJECT",
            help="Only streams that store the messages published to this NATS subject.",
        ),
    ] = "",
) -> None:
    """List streams."""
    async with run.asking() as lb:
        for stream in await lb.streams.list(prefix, subject=subject):
            if all_ or prefix or not stream.name.startswith(INTERNAL):
                run.emit(stream_row(stream))


async def partitions(run: Run[PartitionRow], name: Name) -> None:
    """Show the partitions of a stream: leader, replicas, offsets."""
    async with run.asking() as lb:
        stream = lb.streams.get(name)
        for number, known in sorted((await stream.info()).partitions.items()):
            # A paused partition has no leader, so no broker reports more about it.
            part = known if known.paused else await stream.partition_info(number)
            run.emit(
                PartitionRow(
                    name,
                    number,
                    part.leader,
                    part.replicas,
                    part.isr,
                    part.high_watermark,
                    part.newest_offset,
                    part.paused,
                    part.readonly,
                )
            )


async def bounds(
    run: Run[BoundsRow],
    name: Name,
    *,
    partition: Partitions = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="Look up the offset of a time: -10m or ISO."),
    ] = None,
    read_replica: Annotated[
        bool, typer.Option("--read-replica", help="Ask in-sync replicas instead of leaders.")
    ] = False,
) -> None:
    """Show the offsets, times and sizes of partitions."""
    moment = None
    if time is not None:
        moment = values.time(time, datetime.now(UTC))
        if moment is None:
            raise UsageError(f"--time {time!r}: must be a time such as -10m, or an ISO time")
    async with run.asking() as lb:
        stream, numbers = lb.streams.get(name), partition or ()
        for bound in await stream.bounds(*numbers, time=moment, read_replica=read_replica):
            run.emit(_bounds_row(name, bound))


async def metadata(run: Run[BrokerRow]) -> None:
    """Show the brokers."""
    async with run.asking() as lb:
        for broker in (await lb.metadata()).brokers.values():
            run.emit(BrokerRow(*broker))


async def whoami(run: Run[CallerRow]) -> None:
    """Show how a broker sees you: address, listener, certificate, identity, quota."""
    async with run.asking() as lb:
        caller = await lb.who_am_i()
    certificate, use = caller.certificate, caller.quota
    run.emit(
        CallerRow(
            broker=caller.broker,
            address=caller.address,
            listener=caller.listener,
            common_name="" if certificate is None else certificate.common_name,
            alternative_names=() if certificate is None else certificate.alternative_names,
            expires=None if certificate is None else certificate.expires,
            principal=caller.principal,
            groups=caller.groups,
            proof=caller.proof,
            proof_expires=caller.expires,
            limits=() if use is None else _limits_row(use.limits),
            publish_delay_ms=0 if use is None else use.publish_delay_ms,
            read_delay_ms=0 if use is None else use.read_delay_ms,
        )
    )


def _limits_row(limits: Limits) -> tuple[str, ...]:
    """Convert limits to texts such as `publish_bytes=1000`."""
    given = ((name, getattr(limits, name)) for name in limits.__dataclass_fields__)
    return tuple(f"{name}={limit}" for name, limit in given if limit)


def stream_row(stream: StreamInfo) -> StreamRow:
    """Convert a stream to a row."""
    parts = stream.partitions.values()
    return StreamRow(
        stream.name,
        stream.subject,
        len(parts),
        max((len(part.replicas) for part in parts), default=0),
        sum(part.paused for part in parts),
        sum(part.readonly for part in parts),
        stream.created,
    )


def _bounds_row(stream: str, found: PartitionBounds) -> BoundsRow:
    return BoundsRow(
        stream,
        found.partition,
        found.log_start,
        found.high_watermark,
        found.log_end,
        found.log_end - found.log_start,
        found.bytes,
        found.segments,
        from_ns(found.first_timestamp) if found.first_timestamp else None,
        from_ns(found.last_timestamp) if found.last_timestamp else None,
        found.timestamp_offset,
    )


def _settings_row(stream: StreamDescription) -> SettingsRow:
    names = SettingsRow._fields[5:]
    settings = (getattr(stream.settings, name.removesuffix("_seconds")) for name in names)
    plain: list[Any] = [
        value.total_seconds() if isinstance(value, timedelta) else value for value in settings
    ]
    return SettingsRow(
        stream.name,
        stream.subject,
        stream.group,
        stream.partitions,
        stream.replication_factor,
        *plain,
    )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    one_stream = Shape(StreamRow)
    command(app, "create", one_stream, panel=PANEL, expands={"settings": _settings})(create)
    command(app, "alter", Shape(SettingsRow), panel=PANEL, expands={"settings": _settings})(alter)
    command(app, "settings", Shape(SettingsRow), panel=PANEL)(show_settings)
    command(app, "delete", Shape(DoneRow), panel=PANEL)(delete)
    command(app, "pause", Shape(DoneRow), panel=PANEL)(pause)
    command(app, "readonly", Shape(DoneRow), panel=PANEL)(readonly)
    command(app, "streams", Shape(StreamRow, is_many=True), panel=PANEL)(list_streams)
    command(app, "partitions", Shape(PartitionRow, is_many=True), panel=PANEL)(partitions)
    command(app, "bounds", Shape(BoundsRow, is_many=True), panel=PANEL)(bounds)
    command(app, "metadata", Shape(BrokerRow, is_many=True), panel=PANEL)(metadata)
    command(app, "whoami", Shape(CallerRow), panel="Start here")(whoami)
