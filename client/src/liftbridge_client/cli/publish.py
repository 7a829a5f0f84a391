"""`liftbridge publish`: arguments, lines of standard input, or lines of files."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.cli import exits, values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Form, Shape, say, stderr_console
from liftbridge_client.cli.streams import Name
from liftbridge_client.errors import LiftbridgeError, UsageError
from liftbridge_client.model import AckPolicy, PublishResult, from_ns

_Result = TypeVar("_Result")

CHUNK: Final = 1_000
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
RATE_MAX: Final = 1e9
READ_BYTES: Final = 256 * 1024


class PublishedRow(NamedTuple):
    """Place of a stored message, or the error; `offset` is -1 if not stored or not known."""

    number: int
    partition: int
    offset: int
    time: datetime | None
    duplicate: bool
    error: str


class How(NamedTuple):
    """Parameters common to all messages."""

    key: bytes
    delimiter: bytes
    headers: dict[str, bytes]
    partition: int | None


File = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Publish the lines of a file; may be repeated.",
    ),
]
Key = Annotated[str, typer.Option("--key", "-k", metavar="KEY", help="Key for all messages.")]
KeyDelimiter = Annotated[
    str,
    typer.Option(
        "--key-delimiter",
        "-K",
        metavar="TEXT",
        help="Delimiter after the key in each message; without it a message has no key.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
]
Partition = Annotated[
    int | None,
    values.partition_option("Partition to publish to; by default the key decides."),
]
AckOption = Annotated[
    str,
    typer.Option(
        parser=values.one_of("leader", "all", "none"),
        metavar="leader|all|none",
        help="Replicas that must store a message before its ack.",
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=RATE_MAX,
        metavar="COUNT",
        help="Maximum number of messages per second; 0 for no limit.",
    ),
]


async def publish(
    run: Run[PublishedRow],
    name: Name,
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE", help="Messages; by default the lines of standard input."),
    ] = None,
    *,
    file: File = None,
    key: Key = "",
    key_delimiter: KeyDelimiter = "",
    header: Header = None,
    partition: Partition = None,
    ack: AckOption = "leader",
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="Repeat after failures without duplicates.")
    ] = False,
    rate: Rate = 0.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")] = False,
) -> None:
    """Publish messages from arguments, lines of files or lines of standard input."""
    if messages and file:
        raise UsageError("give messages either as arguments or with --file, not both")
    policy: AckPolicy = ack  # type: ignore[assignment]  # checked by the parser
    how = How(
        os.fsencode(key),
        os.fsencode(key_delimiter),
        dict(values.header(text) for text in header or ()),
        partition,
    )
    failed = 0
    async with run.client() as lb, contextlib.AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(
            lb.streams.get(name).publisher(ack_policy=policy, idempotent=idempotent)
        )
        advance = _progress(stack, is_wanted=not messages)
        number = 0
        async for chunk in _paced(_chunks(messages, file, rate), rate):
            results = await publisher.publish_batch([_outgoing(value, how) for value in chunk])
            for result in results:
                row = _row(number, result)
                number += 1
                failed += row.error != ""
                if row.error or not quiet:
                    run.emit(row)
            run.printer.flush()
            advance(len(chunk))
    if failed:
        run.exit_code = exits.REFUSED
        say(f"liftbridge: {failed} of {number} messages were not published")
    elif run.form is Form.TABLE and number > 1:
        say(f"liftbridge: {number} messages published")


def _outgoing(value: bytes, how: How) -> Outgoing:
    key = how.key
    if how.delimiter and how.delimiter in value:
        key, _, value = value.partition(how.delimiter)
    return Outgoing(value, key, how.headers or None, how.partition)


def _row(number: int, result: PublishResult) -> PublishedRow:
    if isinstance(result, LiftbridgeError):
        return PublishedRow(number, -1, -1, None, False, f"{result} ({result.code})")  # noqa: FBT003 - a field of a row
    time = from_ns(result.timestamp) if result.timestamp else None
    return PublishedRow(number, result.partition, result.offset, time, result.duplicate, "")


def line(row: PublishedRow) -> str:
    """Format a row for people."""
    if row.error:
        return f"message {row.number}: {row.error}"
    return f"partition {row.partition} offset {row.offset}"


def _progress(stack: contextlib.AsyncExitStack, *, is_wanted: bool) -> Callable[[int], None]:
    """Count published lines on standard error, if it is a terminal and output is not."""
    if not is_wanted or not sys.stderr.isatty() or sys.stdout.isatty():
        return lambda _count: None
    columns = (SpinnerColumn(), TextColumn("published"), MofNCompleteColumn())
    bar = stack.enter_context(Progress(*columns, console=stderr_console(), transient=True))
    task = bar.add_task("published", total=None)
    return lambda count: bar.advance(task, count)


async def _chunks(
    messages: Sequence[str] | None, files: Sequence[Path] | None, rate: float
) -> AsyncIterator[Sequence[bytes]]:
    """Group messages into chunks, without waiting for a live pipe to fill a chunk."""
    size = CHUNK if not rate else max(1, min(CHUNK, int(rate / 10)))
    if messages:
        encoded = [os.fsencode(message) for message in messages]
        for first in range(0, len(encoded), size):
            yield encoded[first : first + size]
        return
    for path in files or (None,):
        async for lines in _lines(path):
            for first in range(0, len(lines), size):
                yield lines[first : first + size]


async def _lines(path: Path | None) -> AsyncIterator[Sequence[bytes]]:
    """Yield lines of a file, or of standard input for `None`, as they arrive."""
    if path is None:
        descriptor = sys.stdin.fileno()
    else:
        descriptor = await _apart(os.open, path, os.O_RDONLY)
    rest = b""
    try:
        while data := await _apart(os.read, descriptor, READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise UsageError(f"a line is longer than {LINE_BYTES_MAX} bytes")
            yield [one.removesuffix(b"\r") for one in lines]
    finally:
        if path is not None:
            os.close(descriptor)
    if rest:
        yield [rest]


async def _apart(call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function in a daemon thread, since a pipe may never deliver anything.

    asyncio waits for its own threads, so Ctrl-C would not end the command.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def work() -> None:
        try:
            settle = partial(done.set_result, call(*arguments))
        except OSError as error:
            settle = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the command has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    threading.Thread(target=work, daemon=True).start()
    return await done


async def _paced(
    chunks: AsyncIterator[Sequence[bytes]], rate: float
) -> AsyncIterator[Sequence[bytes]]:
    """Yield the chunks, each when its messages are due."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for chunk in chunks:
        if rate:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due, loop.time() - 1.0) + len(chunk) / rate
        if chunk:
            yield chunk


def register(app: typer.Typer) -> None:
    """Add the command."""
    shape = Shape(PublishedRow, is_many=True, line=line)
    command(app, "publish", shape, panel="Messages")(publish)
