"""The command `liftbridge-broker`.

Without a subcommand it runs the broker and takes the flags of the original; subcommands work
without a running broker. Data goes to standard output, messages to standard error; an error is one
line.

Exit codes: 0 success, 1 refused, 2 wrong usage, 3 unhealthy, 4 timed out.
"""

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import BrokerOptions, EffectiveSetting
from liftbridge_broker.config.settings import Kind
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.errors import LiftbridgeError

COMMAND: Final = "liftbridge-broker"

_PARAMETERS: Final = {
    "setting_" + key.replace(".", "_"): key for key, setting in SETTINGS.items() if setting.flags
}


class ExitCode(IntEnum):
    """Meaning of the exit code, for all commands."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNHEALTHY = 3
    TIMED_OUT = 4


@dataclass(frozen=True, slots=True)
class ConfigSources:
    """Sources of the configuration; they can be read again while the broker runs.

    Attributes:
        flags: Values from the command line by dotted key.
        path: Configuration file, None for none.
    """

    flags: Mapping[str, str | Sequence[str]]
    path: str | None

    def load(self) -> BrokerOptions:
        """Load the options from flags, environment and file.

        Raises:
            ConfigError: As `config.load.load`.
        """
        return load(flags=self.flags, environ=os.environ, path=self.path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Arguments after the command's name; None takes those of the process.

    Returns:
        The exit code.
    """
    if not __debug__:
        click.echo(f"{COMMAND}: assertions are off; run Python without -O", err=True)
        return ExitCode.REFUSED
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = broker.main(_spelled_out(given), prog_name=COMMAND, standalone_mode=False)
    except click.exceptions.UsageError as error:
        click.echo(f"{COMMAND}: {error.format_message()} (see --help)", err=True)
        return ExitCode.USAGE
    except click.exceptions.Abort:
        return ExitCode.REFUSED
    except LiftbridgeError as error:
        click.echo(f"{COMMAND}: {error.text}", err=True)
        return ExitCode.REFUSED
    return int(code or ExitCode.OK)


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Turn `--embedded-nats=false` into a `--set`, as the original's boolean flags allow."""
    switches = {
        flag: key
        for key, setting in SETTINGS.items()
        if setting.kind is Kind.BOOLEAN
        for flag in setting.flags
    }
    spelled = []
    for argument in arguments:
        flag, separator, value = argument.partition("=")
        if separator and flag in switches:
            spelled += ["--set", f"{switches[flag]}={value}"]
        else:
            spelled.append(argument)
    return spelled


def _config_parameters() -> list[click.Parameter]:
    """The options for the sources of the configuration, one per flag of the table."""
    parameters: list[click.Parameter] = [
        click.Option(["--config", "-c", "config"], metavar="FILE", help="Configuration file."),
        click.Option(
            ["--set", "assignments"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Set any setting by its dotted name; may be repeated.",
        ),
    ]
    for name, key in _PARAMETERS.items():
        setting = SETTINGS[key]
        is_switch = setting.kind is Kind.BOOLEAN
        parameters.append(
            click.Option(
                [*setting.flags, name],
                is_flag=is_switch,
                flag_value="true" if is_switch else None,
                type=str,
                default=None,
                multiple=setting.kind is Kind.LIST,
                metavar=None if is_switch else "|".join(setting.choices) or setting.kind.upper(),
                help=f"{setting.doc.rstrip('.')} [{key}].",
            )
        )
    return parameters


def _sources(context: click.Context) -> ConfigSources:
    """Sources from the command line, of the subcommand and of the part before it."""
    flags: dict[str, str | Sequence[str]] = {}
    path: str | None = None
    chain = [context] if context.parent is None else [context.parent, context]
    for level in chain:
        path = level.params.get("config") or path
        for name, key in _PARAMETERS.items():
            value = level.params.get(name)
            if value:
                flags[key] = value
        for assignment in level.params.get("assignments", ()):
            key, separator, value = assignment.partition("=")
            if not separator:
                raise click.UsageError(f"--set needs KEY=VALUE, not {assignment!r}")
            flags[key.strip().lower()] = value
    return ConfigSources(flags, path)


def _show_version(context: click.Context, parameter: click.Parameter, value: object) -> None:
    del parameter
    if value and not context.resilient_parsing:
        click.echo(f"{COMMAND} version {metadata.version('liftbridge-broker')}")
        context.exit()


@click.pass_context
def _broker(context: click.Context, /, **values: object) -> int:
    """Run a Liftbridge broker, or a subcommand, which needs no running broker."""
    del values
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    sources = _sources(context)
    options = sources.load()
    gc.disable()  # imports make no garbage; measured: 50 of 700 ms
    from liftbridge_broker.server import run  # noqa: PLC0415 - subcommands need no network

    gc.enable()
    return run(options, sources.load)


broker: Final = click.Group(
    "broker",
    callback=_broker,
    invoke_without_command=True,
    help=_broker.__doc__,
    params=[
        *_config_parameters(),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ],
    context_settings={"help_option_names": ["--help", "-h"]},
)


@click.pass_context
def _check_config(context: click.Context, /, output: str, **values: object) -> int:
    """Check the configuration and show the value and origin of every setting."""
    del values
    options = _sources(context).load()
    if output == "json":
        click.echo(json.dumps(_as_json(options), indent=2))
        return ExitCode.OK
    for notice in options.notices:
        click.echo(f"{COMMAND}: {notice}", err=True)
    rows = [("SETTING", "VALUE", "ORIGIN", "RELOAD")]
    rows += [
        (
            setting.key,
            setting.text,
            setting.source or setting.origin.value,
            _reload_text(setting),
        )
        for setting in options.effective
    ]
    for line in table(rows):
        click.echo(line)
    click.echo(f"fingerprint {options.fingerprint()}", err=True)
    return ExitCode.OK


def _reload_text(setting: EffectiveSetting) -> str:
    if not setting.has_effect:
        return "no effect"
    return "yes" if setting.is_reloadable else "no"


def _as_json(options: BrokerOptions) -> dict[str, object]:
    return {
        "settings": [
            {
                "key": setting.key,
                "value": setting.text,
                "origin": setting.origin.value,
                "source": setting.source,
                "reloadable": setting.is_reloadable,
                "effective": setting.has_effect,
            }
            for setting in options.effective
        ],
        "notices": list(options.notices),
        "fingerprint": options.fingerprint(),
    }


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


broker.add_command(
    click.Command(
        "check-config",
        callback=_check_config,
        help=_check_config.__doc__,
        params=[
            *_config_parameters(),
            click.Option(
                ["--output", "-o", "output"],
                type=click.Choice(["table", "json"]),
                default="table",
                show_default=True,
                help="Output format.",
            ),
        ],
    )
)


def _inspect(directory: str, output: str) -> int:
    """Describe the logs in a data directory that no running broker uses."""
    from liftbridge_broker.adapters.disk.offline import inspect_lines  # noqa: PLC0415 - as `run`

    for line in inspect_lines(Path(directory), output=output):
        click.echo(line)
    return ExitCode.OK


def _verify(directory: str, output: str) -> int:
    """Check all data in a directory that no running broker uses; exit code 3 means damage."""
    from liftbridge_broker.adapters.disk.offline import VerifyRun  # noqa: PLC0415 - as `run`

    run = VerifyRun(Path(directory), output=output)
    for line in run.lines():
        click.echo(line)
    return ExitCode.OK if run.is_whole else ExitCode.UNHEALTHY


def _offline_parameters() -> list[click.Parameter]:
    return [
        click.Argument(["directory"], type=str),
        click.Option(
            ["--output", "-o", "output"],
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="Output format.",
        ),
    ]


def _recover(directory: str, snapshot: str | None, output: str, *, apply: bool) -> int:
    """Create a new metadata group from one data directory, after all brokers were stopped."""
    from liftbridge_broker.adapters.disk.recover import recover_lines  # noqa: PLC0415 - as `run`

    given = None if snapshot is None else Path(snapshot)
    for line in recover_lines(Path(directory), snapshot=given, is_applied=apply, output=output):
        click.echo(line)
    return ExitCode.OK


broker.add_command(
    click.Command(
        "recover",
        callback=_recover,
        help=_recover.__doc__,
        params=[
            *_offline_parameters(),
            click.Option(
                ["--snapshot"],
                type=str,
                help="Snapshot from another recovered broker; without it, this is the first.",
            ),
            click.Option(
                ["--apply"],
                is_flag=True,
                help="Carry out the recovery; otherwise only show what would be done.",
            ),
        ],
    )
)

for _name, _callback in (("inspect", _inspect), ("verify", _verify)):
    broker.add_command(
        click.Command(
            _name, callback=_callback, help=_callback.__doc__, params=_offline_parameters()
        )
    )
