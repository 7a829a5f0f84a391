"""Parameters that commands of jobs share, and error reports of these commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from liftbridge_client.cli import exits
from liftbridge_client.cli.output import say
from liftbridge_client.cli.profiles import Profile
from liftbridge_client.errors import UsageError
from pyspark_liftbridge.address import whole_address
from pyspark_liftbridge.cli.failures import MISSING, failure_of, spark_errors
from pyspark_liftbridge.plan.table import STORE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_liftbridge.archive.stores.store import Below
    from pyspark_liftbridge.jobs.works import Runner

BEATEN: Final = 6
"""Exit code: other writers won every attempt."""

MASTER: Final = "local[2]"
"""Default address at which Spark runs."""

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
Root = Annotated[
    str,
    typer.Argument(
        parser=whole_address,
        metavar="ROOT",
        help="Address of the archive: a folder, s3://bucket/path, gs:// or az://.",
    ),
]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="NAME=VALUE",
        help=f"An option of the object store, one of {', '.join(STORE_OPTIONS)}; may be repeated. "
        "Keys and secrets come from the usual environment variables.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        help="Where Spark runs, such as k8s://...; local[2] by default.",
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="sc://HOST:PORT",
        help="A Spark Connect server that has this package, instead of --master.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
]


def source_options(profile: Profile) -> dict[str, str]:
    """Return the options of the data source to connect to the brokers of a profile."""
    if profile.server_name or (profile.tls and not profile.ca):
        raise UsageError(
            "jobs need TLS as the files ca, cert and key: set them in the profile, without "
            "server_name"
        )
    files = {
        "tls.ca": profile.ca,
        "tls.cert": profile.cert,
        "tls.key": profile.key,
        "token.file": profile.token_file,
    }
    return {"servers": profile.servers, **{name: path for name, path in files.items() if path}}


def session_of(
    master: str | None, conf: list[str] | None, remote: str | None = None
) -> "SparkSession":
    """Create a Spark session, in this process or on a Spark Connect server.

    Raises:
        UsageError: Both are given, or the address is invalid.
    """
    from pyspark_liftbridge.session import remote_session, session  # noqa: PLC0415 - heavy

    settings = pairs(conf, "--conf")
    if remote is None:
        return session(master or MASTER, settings)
    if master is not None:
        raise UsageError(f"--master {master} and --remote {remote} cannot be combined: give one")
    if not remote.startswith("sc://"):
        raise UsageError(f"--remote {remote}: must be an address such as sc://host:15002")
    return remote_session(remote, settings)


def runner_of(
    job: str, master: str | None, conf: list[str] | None, remote: str | None = None
) -> "Runner":
    """Return a function that runs the tasks of a job in a Spark session."""
    with reported_errors():
        spark = session_of(master, conf, remote)
        from pyspark_liftbridge.jobs.tasks import runner  # noqa: PLC0415 - heavy

        return runner(spark, job)


def table_of(name: str, root: str, store: list[str] | None) -> "Below":
    """Open the table of a stream, or of `<stream>@<id>` for a recreated stream."""
    from pyspark_liftbridge.archive.stores.store import Below, opened  # noqa: PLC0415 - heavy

    return Below(opened(root, store_options(store)), folder_of_table(name))


def folder_of_table(name: str) -> str:
    """Return the folder of the table of a stream, or of `<stream>@<id>`; ends with `/`."""
    from pyspark_liftbridge.archive.table import folder_named  # noqa: PLC0415 - heavy

    with reported_errors():
        return folder_named(name)


def store_options(given: list[str] | None) -> dict[str, str]:
    """Parse the options of an object store from the command line."""
    options = pairs(given, "--store")
    for name in options:
        if name not in STORE_OPTIONS:
            raise UsageError(
                f"--store {name}: must be one of {', '.join(STORE_OPTIONS)}; keys and secrets come "
                "from the environment"
            )
    return options


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Parse the values, by name, of an option given as NAME=VALUE."""
    values: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} {text}: must be NAME=VALUE")
        values[name] = value
    return values


@contextmanager
def reported_errors() -> Iterator[None]:
    """Report an error of a job in one line, and end with its exit code."""
    from pyspark_liftbridge.archive.errors import (  # noqa: PLC0415 - heavy
        ArchiveError,
        ContentionError,
    )
    from pyspark_liftbridge.java import JavaError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.works import RefusedError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.plan.archiving import MissingError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.plan.options import OptionError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.source.cluster import PausedError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.source.reading import DataLossError  # noqa: PLC0415 - heavy

    codes = (
        (RefusedError, exits.REFUSED),
        (MissingError, MISSING),
        (DataLossError, MISSING),
        (ContentionError, BEATEN),
        (PausedError, exits.REFUSED),
        (OptionError, exits.USAGE),
        (JavaError, exits.USAGE),
        (ArchiveError, exits.UNHEALTHY),
    )
    try:
        yield
    except tuple(kind for kind, _ in codes) as error:
        say(f"liftbridge: {' '.join(str(error).split())}")
        raise typer.Exit(next(code for kind, code in codes if isinstance(error, kind))) from None
    except spark_errors() as error:
        line, code = failure_of(error)
        say(f"liftbridge: {line}")
        raise typer.Exit(code) from None
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyspark"):
            raise
        raise UsageError("PySpark is not installed: pip install pyspark") from None
