"""`liftbridge spark`: jobs on streams and archives."""

import typer

from pyspark_liftbridge.cli import archive, compact, demo, doctor, publish, query, replay


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Jobs on streams and archives, with Spark.", no_args_is_help=True)
    archive.register(group)
    compact.register(group)
    query.register(group)
    doctor.register(group)
    replay.register(group)
    demo.register(group)
    publish.register(group)
    app.add_typer(group, name="spark", rich_help_panel="Pipelines")
