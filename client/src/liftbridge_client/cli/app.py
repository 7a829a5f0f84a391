"""The command `liftbridge`: registers all commands, and turns errors into exit codes."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Annotated, NoReturn

import typer

from liftbridge_client.cli import (
    bench,
    cluster,
    cursors,
    examples,
    exits,
    profile_commands,
    publish,
    streams,
    subscribe,
)
from liftbridge_client.cli.access import commands as access
from liftbridge_client.cli.access import keys, quotas, tokens
from liftbridge_client.cli.command import CommandGroup
from liftbridge_client.cli.groups import commands as groups
from liftbridge_client.cli.local import demo, dev

app = typer.Typer(
    name="liftbridge",
    cls=CommandGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _on_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"liftbridge {version('liftbridge')}\n")
        raise typer.Exit(0)


@app.callback()
def root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_on_version
        ),
    ] = False,
) -> None:
    """Work with Liftbridge: durable message streams on NATS.

    Results go to standard output, notices to standard error. Exit codes: 0 success, 1 refused,
    2 wrong usage, 3 server unreachable or unhealthy, 4 timeout; `spark` also has 5 for missing
    records and 6 if other runs won every attempt.
    """


for _module in (
    dev,
    demo,
    streams,
    publish,
    subscribe,
    cursors,
    groups,
    bench,
    cluster,
    access,
    keys,
    tokens,
    quotas,
    profile_commands,
    examples,
):
    _module.register(app)

# Commands of other distributions, as `liftbridge spark` of liftbridge-spark.
for _entry in entry_points(group="liftbridge.commands"):
    _entry.load()(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code; no error leaves it.

    `LIFTBRIDGE_TRACEBACK=1` raises an error instead of printing one line.
    """
    try:
        result = app(list(arguments), prog_name="liftbridge", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return exits.INTERRUPTED
    except Exception as error:
        if os.environ.get("LIFTBRIDGE_TRACEBACK"):
            raise
        line, code = exits.line_and_code(error)
        sys.stderr.write(line + "\n")
        return code
    return result if isinstance(result, int) else exits.OK


def main() -> NoReturn:
    """Run the command; the entry point of the program."""
    sys.exit(run(sys.argv[1:]))
