"""`liftbridge examples`: examples of commands to copy."""

from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import UsageError


class ExampleRow(NamedTuple):
    """A command line and what it does."""

    topic: str
    purpose: str
    command: str


EXAMPLES: Final = tuple(
    ExampleRow(*parts)
    for parts in (
        (
            "dev",
            "Run a broker with an embedded NATS server; delete its data at the end",
            "liftbridge dev --ephemeral",
        ),
        ("dev", "See a cluster survive a kill, a hang and a damaged disk", "liftbridge demo"),
        ("streams", "Store the messages of a NATS subject", "liftbridge create orders"),
        (
            "streams",
            "Store all subjects below orders in eight partitions, for a week",
            "liftbridge create all-orders --subject 'orders.>' -p 8 --max-age 7d",
        ),
        ("streams", "List all streams", "liftbridge streams"),
        ("streams", "Show where partitions begin and end", "liftbridge bounds orders"),
        ("streams", "Find the offset of ten minutes ago", "liftbridge bounds orders --time=-10m"),
        ("publish", "Publish two messages", "liftbridge publish orders 'three apples' 'two pears'"),
        (
            "publish",
            "Publish lines, each with its own key",
            "printf '7:a\\n8:b\\n' | liftbridge publish orders -K :",
        ),
        (
            "publish",
            "Publish the lines of a file, without duplicates even after failures",
            "liftbridge publish orders --file /etc/hostname --idempotent --quiet",
        ),
        ("subscribe", "Read everything from the beginning", "liftbridge subscribe orders"),
        ("subscribe", "Read the last ten minutes", "liftbridge subscribe orders --from=-10m"),
        (
            "subscribe",
            "Read only new messages as they arrive",
            "liftbridge subscribe orders --from new --follow",
        ),
        (
            "subscribe",
            "Read the ten newest messages",
            "liftbridge subscribe orders --reverse -n 10 -p 0",
        ),
        (
            "subscribe",
            "Print messages in your own format",
            "liftbridge subscribe orders --format '%o %k %v\\n'",
        ),
        ("subscribe", "Print one JSON object per line", "liftbridge subscribe orders -o jsonl"),
        (
            "groups",
            "Show how far a group is behind, and when retention overtakes it",
            "liftbridge group lag billing orders",
        ),
        (
            "groups",
            "Show what it would be to process the last hour again; --yes does it",
            "liftbridge group reset billing orders --to-time=-1h",
        ),
        (
            "scripts",
            "Show the JSON Schema of the output of a command",
            "liftbridge bounds -o schema",
        ),
        ("scripts", "Delete without confirmation", "liftbridge delete orders --yes"),
        (
            "profiles",
            "Save a connection and make it the default",
            "liftbridge profile add prod --servers a:9292,b:9292 --use",
        ),
        ("cluster", "List brokers with their role and load", "liftbridge cluster brokers"),
        ("cluster", "List problems that need attention", "liftbridge cluster check"),
        (
            "cluster",
            "List partitions that are not fully replicated",
            "liftbridge cluster partitions --degraded",
        ),
        (
            "cluster",
            "Check whether a broker may be restarted",
            "liftbridge cluster check-restart a",
        ),
        ("cluster", "Move all replicas off a broker", "liftbridge cluster drain a"),
        ("bench", "Measure the throughput of this cluster", "liftbridge bench -n 100000 -o json"),
    )
)
TOPICS: Final = tuple(dict.fromkeys(example.topic for example in EXAMPLES))


def line(row: ExampleRow) -> str:
    """Format a row for people."""
    return f"# {row.purpose}\n{row.command}\n"


async def examples(
    run: Run[ExampleRow],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help=f"One of {', '.join(TOPICS)}; all by default.")
    ] = "",
) -> None:
    """Show examples of commands to copy."""
    if topic and topic not in TOPICS:
        raise UsageError(f"topic {topic!r}: must be one of {', '.join(TOPICS)}")
    for example in EXAMPLES:
        if topic in ("", example.topic):
            run.emit(example)


def register(app: typer.Typer) -> None:
    """Add the command."""
    shape = Shape(ExampleRow, is_many=True, line=line)
    command(app, "examples", shape, has_server=False, panel="Start here")(examples)
