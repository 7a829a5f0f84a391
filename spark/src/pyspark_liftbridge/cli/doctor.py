"""`liftbridge spark doctor`: check whether this machine meets the requirements of jobs."""

import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import LiftbridgeError
from pyspark_liftbridge.cli.given import StoreOptions, store_options

if TYPE_CHECKING:
    from pyspark_liftbridge.jobs.doctor import Check


class CheckRow(NamedTuple):
    """Result of a check; `state` is ok, warning or failed, `remedy` is the action to take."""

    check: str
    state: str
    found: str
    remedy: str


async def doctor(
    run: Run[CheckRow],
    root: Annotated[
        str | None,
        typer.Argument(metavar="ROOT", help="Address of an archive whose store is checked too."),
    ] = None,
    *,
    store: StoreOptions = None,
) -> None:
    """Check Java, Python, packages, brokers and the store; ends with 1 if a check fails."""
    from pyspark_liftbridge.jobs import doctor as checks  # noqa: PLC0415 - heavy

    options = store_options(store)
    checks_done = [*checks.checks(os.environ), await _brokers(run)]
    if root is not None:
        checks_done.append(checks.store(root, options))
    for one in checks_done:
        run.emit(CheckRow(*one))
    if any(one.state == checks.FAILED for one in checks_done):
        run.exit_code = exits.REFUSED


async def _brokers(run: Run[CheckRow]) -> "Check":
    """Return whether brokers answer."""
    from pyspark_liftbridge.jobs import doctor as checks  # noqa: PLC0415 - heavy

    servers = run.profile.servers
    try:
        async with run.client() as client:
            count = len((await client.metadata()).brokers)
    except LiftbridgeError as error:
        text = f"{servers}: {' '.join(str(error).split())}"
        return checks.Check("brokers", checks.FAILED, text, "start a broker, or set --servers")
    return checks.Check("brokers", checks.OK, f"{servers}: {count} in the cluster")


def register(group: typer.Typer) -> None:
    """Add the command."""
    command(group, "doctor", Shape(CheckRow, is_many=True), group="spark")(doctor)
