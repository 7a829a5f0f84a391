"""Reading from any position: `liftbridge subscribe`, and `liftbridge activity` of `__activity`."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

import typer

from liftbridge_client.activity import ActivityEvent, lost_before
from liftbridge_client.aio.stream import Stream
from liftbridge_client.cli import formats, values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Form, Shape
from liftbridge_client.cli.streams import Name, Partitions
from liftbridge_client.errors import NotFoundError, UsageError
from liftbridge_client.model import Message, Start, Stop

QUEUE_MAX: Final = 8
"""Batches read ahead over all partitions, or one of each if there are more partitions."""


class MessageRow(NamedTuple):
    """A message; unless all parts are UTF-8, all are base64, and `encoding` says so."""

    stream: str
    partition: int
    offset: int
    timestamp: int
    time: datetime
    subject: str
    key: str
    value: str
    headers: Mapping[str, str]
    encoding: str


class ActivityRow(NamedTuple):
    """An event; `lost` events are missing before it."""

    offset: int
    timestamp: int
    time: datetime
    event_id: int
    operation: str
    stream: str
    partitions: Sequence[int]
    resume_all: bool
    readonly: bool
    group: str
    consumer: str
    streams: Sequence[str]
    expired: bool
    lost: int


class Reading(NamedTuple):
    """Range and source of a read.

    Attributes:
        start: Where to begin.
        stop: Where to end.
        is_reverse: Whether newest messages come first.
        resumes: Whether paused partitions are resumed.
        is_replica: Whether a replica may serve.
    """

    start: Start
    stop: Stop
    is_reverse: bool
    resumes: bool
    is_replica: bool


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="beginning (default), latest (the last message), new, an offset, --from=-10m, or"
        " an ISO time.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="POSITION",
        help="end (default), an offset, --to=-10m, or an ISO time (inclusive).",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue with new messages instead of ending.")
]
Count = Annotated[
    int,
    typer.Option(
        "--count",
        "-n",
        min=0,
        max=values.OFFSET_MAX,
        metavar="COUNT",
        help="End after this many messages; 0 for no limit.",
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="Read backwards, newest message first.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume paused partitions.")]
ReadReplica = Annotated[
    bool, typer.Option("--read-replica", help="Allow reading from in-sync replicas.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="%o offset, %p partition, %k key, %v or %s value, %t stream, %n subject,"
        " %T time in ns, %d ISO time, %h headers, %K %S lengths; {hex} or {base64} after"
        " %k and %v; \\n, \\t, \\0.",
    ),
]


async def subscribe(
    run: Run[MessageRow],
    name: Name,
    *,
    partition: Partitions = None,
    from_: From = None,
    to: To = None,
    follow: Follow = False,
    count: Count = 0,
    reverse: Reverse = False,
    resume: Resume = False,
    read_replica: ReadReplica = False,
    format_: Format = None,
) -> None:
    """Read messages from any position.

    Ends after the message that is the last at the start, unless --follow is given.
    """
    if follow and (to is not None or reverse):
        raise UsageError("--follow never ends: it cannot be combined with --to or --reverse")
    if format_ is not None and run.form is not Form.TABLE:
        raise UsageError("--format cannot be combined with --output: both say what is printed")
    now = datetime.now(UTC)
    default_start, default_stop = ("latest", "never") if reverse else ("beginning", "end")
    end = "never" if follow else default_stop if to is None else to
    begin = values.start(default_start if from_ is None else from_, now)
    reading = Reading(begin, values.stop(end, now), reverse, resume, read_replica)
    write = _writer(run, format_)
    async with run.client() as lb:
        stream = lb.streams.get(name)
        numbers = partition or sorted((await lb.streams.get(name).info()).partitions)
        seen = 0
        async for batch in _merged(stream, numbers, reading):
            for message in batch:
                write(message)
                seen += 1
                if seen == count:
                    return
            run.printer.flush()


def _writer(run: Run[MessageRow], text: str | None) -> Callable[[Message], None]:
    """Return a function that prints a message, as a row or in the user's format."""
    if text is None:
        return lambda message: run.emit(row(message))
    make = formats.compile_format(text)
    return lambda message: run.printer.text(make(message))


async def _merged(
    stream: Stream, partitions: Sequence[int], reading: Reading
) -> AsyncIterator[Sequence[Message]]:
    """Yield batches of several partitions as they arrive; in order within each."""
    # Room for the end mark of each reader: nothing reads those of cancelled readers.
    room = max(QUEUE_MAX, len(partitions))
    queue: asyncio.Queue[Sequence[Message] | None] = asyncio.Queue(room)

    async def read(partition: int) -> None:
        subscription = stream.subscribe(
            partition=partition,
            start=reading.start,
            stop=reading.stop,
            resume=reading.resumes,
            reverse=reading.is_reverse,
            read_replica=reading.is_replica,
        )
        try:
            async for batch in subscription.batches():
                await queue.put(batch)
        finally:
            await queue.put(None)

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(read(partition)) for partition in partitions]
    open_count = len(tasks)
    try:
        while open_count:
            batch = await queue.get()
            if batch is not None:
                yield batch
                continue
            open_count -= 1
            for task in tasks:
                if task.done():
                    task.result()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        while not queue.empty():
            queue.get_nowait()
        await asyncio.gather(*tasks, return_exceptions=True)


def row(message: Message) -> MessageRow:
    """Convert a message to a row."""
    parts = (message.key, message.value, *message.headers.values())
    try:
        texts = [part.decode() for part in parts]
        encoding = "utf-8"
    except UnicodeDecodeError:
        texts = [base64.b64encode(part).decode() for part in parts]
        encoding = "base64"
    return MessageRow(
        message.stream,
        message.partition,
        message.offset,
        message.timestamp,
        message.time,
        message.subject,
        texts[0],
        texts[1],
        dict(zip(message.headers, texts[2:], strict=True)),
        encoding,
    )


def line(shown: MessageRow) -> str:
    """Format a row for people: partition, offset, time, key, value."""
    time = shown.time.isoformat(sep=" ", timespec="milliseconds")
    return f"{shown.partition}:{shown.offset}  {time}  {shown.key or '-'}  {shown.value}"


async def activity(
    run: Run[ActivityRow],
    *,
    from_: From = None,
    to: To = None,
    follow: Follow = False,
    count: Count = 0,
) -> None:
    """Show what changed about streams and consumer groups.

    Reads the stream __activity, which exists once a broker had activity.stream.enabled set. Ends
    after the event that is the last at the start, unless --follow is given.
    """
    if follow and to is not None:
        raise UsageError("--follow never ends: it cannot be combined with --to")
    now = datetime.now(UTC)
    start = values.start("beginning" if from_ is None else from_, now)
    stop = values.stop("never" if follow else "end" if to is None else to, now)
    async with run.client() as lb:
        seen = 0
        try:
            async for batch in lb.activity(start=start, stop=stop).batches():
                for message in batch:
                    run.emit(activity_row(message))
                    seen += 1
                    if seen == count:
                        return
                run.printer.flush()
        except NotFoundError as error:
            error.advice = "Set activity.stream.enabled on the brokers, or use other brokers."
            raise


def activity_row(message: Message[ActivityEvent]) -> ActivityRow:
    """Convert an event to a row."""
    event = message.value
    return ActivityRow(
        message.offset, message.timestamp, message.time, *event, lost=lost_before(message)
    )


def activity_line(shown: ActivityRow) -> str:
    """Format a row for people: offset, time, what happened to what."""
    time = shown.time.isoformat(sep=" ", timespec="milliseconds")
    words = [shown.operation.lower().replace("_", " "), shown.stream or shown.group]
    if shown.consumer:
        words.append(f"consumer {shown.consumer}")
    if shown.partitions:
        words.append(f"partitions {numbers(shown.partitions)}")
    if shown.streams:
        words.append(f"streams {','.join(shown.streams)}")
    if shown.operation == "SET_STREAM_READONLY":
        words.append("on" if shown.readonly else "off")
    words += ["resume all"] * shown.resume_all + ["expired"] * shown.expired
    if shown.lost:
        words.append(f"({shown.lost} events before it were lost)")
    return f"{shown.offset}  {time}  {' '.join(words)}"


def numbers(partitions: Sequence[int]) -> str:
    """Format increasing numbers with ranges: `0-3,7`."""
    begins = [at for at, (one, other) in enumerate(pairwise(partitions), 1) if other != one + 1]
    parts = [partitions[start:end] for start, end in pairwise([0, *begins, len(partitions)])]
    return ",".join(
        str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts if part
    )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    shape: Shape[Any] = Shape(MessageRow, is_many=True, line=line)
    command(app, "subscribe", shape, panel="Messages")(subscribe)
    events: Shape[Any] = Shape(ActivityRow, is_many=True, line=activity_line)
    command(app, "activity", events, panel="Messages")(activity)
