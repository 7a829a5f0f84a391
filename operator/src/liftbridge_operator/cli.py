"""The command `liftbridge-operator`.

Exit codes: 0 stopped by a signal, 1 failed, 2 wrong usage, 3 the lease was lost.
"""

import asyncio
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

import click

from liftbridge_operator.app import make_reconcilers
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.process.clock import SystemClock
from liftbridge_operator.process.logs import configure_logs
from liftbridge_operator.process.process import ExitCode, end_for_sure, in_place, run
from liftbridge_operator.process.settings import (
    SETTINGS,
    Setting,
    Settings,
    SettingsError,
    own_namespace,
)
from liftbridge_operator.users.uninstall import uninstall

COMMAND: Final = "liftbridge-operator"


class _Texts(click.ParamType[tuple[str, ...]]):
    """Comma-separated texts."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split the value; drop blanks and empty items."""
        del param, ctx
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(filter(None, (part.strip() for part in parts)))


def _type_of(setting: Setting) -> click.ParamType[Any]:
    match setting.kind:
        case "list":
            return _Texts()
        case "choice":
            return click.Choice(setting.choices)
        case "integer":
            return click.IntRange(int(setting.minimum), int(setting.maximum))
        case "seconds":
            return click.FloatRange(setting.minimum, setting.maximum)
        case _:
            return click.STRING


def _option(setting: Setting) -> click.Option:
    return click.Option(
        [setting.flag, setting.name],
        type=_type_of(setting),
        default=setting.default,
        envvar=setting.variable,
        show_default=bool(setting.default),
        show_envvar=True,
        help=setting.doc,
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version(COMMAND), prog_name=COMMAND)
def operator() -> None:
    """Turn resources of Kubernetes into Liftbridge clusters and streams."""


def _run(**values: Any) -> int:
    settings = Settings.of(values)
    configure_logs(level=settings.log_level, style=settings.log_format, stream=sys.stderr)
    with asyncio.Runner() as runner:
        code = runner.run(run(settings, make_reconcilers))
        end_for_sure(code)  # the runner waits without a bound for tasks that still run
    return int(code)


operator.add_command(
    click.Command(
        "run",
        callback=_run,
        params=[_option(setting) for setting in SETTINGS],
        help="Run the operator until SIGTERM or SIGINT.",
    )
)


def _uninstall(**values: Any) -> int:
    settings = Settings.of(values)
    configure_logs(level=settings.log_level, style=settings.log_format, stream=sys.stderr)
    with asyncio.Runner() as runner:
        runner.run(
            in_place(
                settings,
                lambda kube, lease: uninstall(
                    kube,
                    lease,
                    namespace=settings.lease_namespace or own_namespace(),
                    name=settings.lease_name,
                    clock=SystemClock(),
                ),
            )
        )
    return ExitCode.OK


operator.add_command(
    click.Command(
        "uninstall",
        callback=_uninstall,
        params=[
            _option(setting) for setting in SETTINGS if setting.name.startswith(("lease_", "log_"))
        ],
        help="Stop the operator before an uninstall, and remove its finalizers from resources.",
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Arguments after the command's name; None takes those of the process.

    Returns:
        The exit code.
    """
    if not __debug__:
        click.echo(f"{COMMAND}: assertions are off; run Python without -O", err=True)
        return ExitCode.FAILED
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(operator.main(given, prog_name=COMMAND, standalone_mode=False) or ExitCode.OK)
    except click.exceptions.UsageError as error:
        click.echo(f"{COMMAND}: {error.format_message()} (see --help)", err=True)
        return ExitCode.USAGE
    except SettingsError as error:
        click.echo(f"{COMMAND}: {error}", err=True)
        return ExitCode.USAGE
    except click.exceptions.Abort:
        return ExitCode.FAILED
    except (KubeError, OSError) as error:
        click.echo(f"{COMMAND}: {error}", err=True)
        return ExitCode.FAILED
