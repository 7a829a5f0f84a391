"""`liftbridge spark`: jobs on streams and archives."""

import typer


def _stop_at_end(context: typer.Context) -> None:
    from pyspark_liftbridge.session import stop_elsewhere  # noqa: PLC0415 - for these commands only

    context.call_on_close(stop_elsewhere)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from liftbridge_client.cli.command import CommandGroup  # noqa: PLC0415 - as these:
    from pyspark_liftbridge.cli import (  # noqa: PLC0415 - they import the command, see below
        archive,
        compact,
        demo,
        doctor,
        publish,
        query,
        replay,
    )

    group = typer.Typer(
        help="Run Spark jobs on streams and archives.", cls=CommandGroup, callback=_stop_at_end
    )
    archive.register(group)
    compact.register(group)
    query.register(group)
    doctor.register(group)
    replay.register(group)
    demo.register(group)
    publish.register(group)
    app.add_typer(group, name="spark", rich_help_panel="Pipelines")


# The command calls `register` while it is imported, and our commands import parts of it. So it is
# loaded before any of them, whichever of these modules a program asks for first.
import liftbridge_client.cli  # noqa: E402, F401 - loaded for what comes of it
