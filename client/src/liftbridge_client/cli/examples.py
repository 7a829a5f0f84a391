"""`liftbridge examples`: command lines to copy."""

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
            "A broker with NATS inside, its data gone at the end",
            "liftbridge dev --ephemeral",
        ),
        ("dev", "See a cluster survive a kill, a hang and a damaged disk", "liftbridge demo"),
        ("streams", "Keep what is published on a NATS subject", "liftbridge create orders"),
        (
            "streams",
            "Eight partitions on all subjects below orders, kept for a week",
            "liftbridge create all-orders --subject 'orders.>' -p 8 --max-age 7d",
        ),
        ("streams", "What there is", "liftbridge streams"),
        ("streams", "Where partitions begin and end", "liftbridge bounds orders"),
        ("streams", "The offset of ten minutes ago", "liftbridge bounds orders --time=-10m"),
        ("publish", "Two messages", "liftbridge publish orders 'three apples' 'two pears'"),
        (
            "publish",
            "A key for each line",
            "printf '7:a\\n8:b\\n' | liftbridge publish orders -K :",
        ),
        (
            "publish",
            "A file, without duplicates whatever happens",
            "liftbridge publish orders --file /etc/hostname --idempotent --quiet",
        ),
        ("subscribe", "Everything from the beginning", "liftbridge subscribe orders"),
        ("subscribe", "The last ten minutes", "liftbridge subscribe orders --from=-10m"),
        ("subscribe", "What comes from now on", "liftbridge subscribe orders --from new --follow"),
        ("subscribe", "The ten newest", "liftbridge subscribe orders --reverse -n 10 -p 0"),
        (
            "subscribe",
            "Offsets and values, in a form of your own",
            "liftbridge subscribe orders --format '%o %k %v\\n'",
        ),
        ("subscribe", "One JSON object a line", "liftbridge subscribe orders -o jsonl"),
        ("scripts", "The shape of what a command prints", "liftbridge bounds -o schema"),
        ("scripts", "Delete without being asked", "liftbridge delete orders --yes"),
        (
            "profiles",
            "Remember a connection and use it",
            "liftbridge profile add prod --servers a:9292,b:9292 --use",
        ),
        ("cluster", "Brokers, their role and load", "liftbridge cluster brokers"),
        ("cluster", "What needs attention", "liftbridge cluster check"),
        ("cluster", "What is not fully replicated", "liftbridge cluster partitions --degraded"),
        ("cluster", "May this broker be restarted?", "liftbridge cluster check-restart a"),
        ("cluster", "Move all replicas off a broker", "liftbridge cluster drain a"),
        ("bench", "How fast it is here", "liftbridge bench -n 100000 -o json"),
    )
)
TOPICS: Final = tuple(dict.fromkeys(example.topic for example in EXAMPLES))


def line(row: ExampleRow) -> str:
    """A row for people."""
    return f"# {row.purpose}\n{row.command}\n"


async def examples(
    run: Run[ExampleRow],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help=f"One of {', '.join(TOPICS)}; by default all.")
    ] = "",
) -> None:
    """Show command lines to copy."""
    if topic and topic not in TOPICS:
        raise UsageError(f"topic {topic!r}: must be one of {', '.join(TOPICS)}")
    for example in EXAMPLES:
        if topic in ("", example.topic):
            run.emit(example)


def register(app: typer.Typer) -> None:
    """Add the command."""
    shape = Shape(ExampleRow, is_many=True, line=line)
    command(app, "examples", shape, has_server=False, panel="Start here")(examples)
