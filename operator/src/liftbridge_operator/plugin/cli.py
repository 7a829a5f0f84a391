"""The command line of `kubectl liftbridge`; `exits` has its exit codes.

Options of kubectl are accepted before and after the command; the one after it wins.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import click

from liftbridge_operator.model.units import SECOND_NS
from liftbridge_operator.model.values import duration_ns, size_bytes
from liftbridge_operator.plugin import bundle, commands
from liftbridge_operator.plugin.describe import KUBECTL, Answer
from liftbridge_operator.plugin.exits import ExitCode, PluginError, exit_of
from liftbridge_operator.plugin.port import COMMAND, REQUEST_S, Reach, Where, reach
from liftbridge_operator.plugin.session import Session

TRACEBACK: Final = "LIFTBRIDGE_TRACEBACK"
_BUNDLE: Final = bundle.Bounds()


class _Seconds(click.ParamType[float]):
    """A duration as kubectl takes it: `90s`, `5m`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        try:
            return duration_ns(str(value)) / SECOND_NS
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Bytes(click.ParamType[int]):
    """A size as Kubernetes writes it: `64Mi`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        try:
            return size_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def kubectl_options() -> list[click.Option]:
    """Options shared with kubectl; new ones for each command, as click requires."""
    return [
        click.Option(
            ["--kubeconfig"],
            metavar="FILE",
            help="Path of the kubeconfig. Default: KUBECONFIG, else ~/.kube/config.",
        ),
        click.Option(
            ["--context"], metavar="NAME", help="Kubeconfig context. Default: the current one."
        ),
        click.Option(
            ["-n", "--namespace"], metavar="NAME", help="Namespace. Default: that of the context."
        ),
        click.Option(
            ["--request-timeout"],
            type=_Seconds(),
            metavar="DURATION",
            help="Time limit for one request, such as 20s.",
        ),
    ]


def _output() -> click.Option:
    return click.Option(
        ["-o", "--output"],
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output for people, or one document for programs.",
    )


def _cluster() -> click.Argument:
    return click.Argument(["cluster"], required=False, default="")


Work = Callable[[Session, dict[str, Any]], Awaitable[Answer]]


class _Command(click.Command):
    """A command that uses the API server."""

    def __init__(self, name: str, work: Work, params: Sequence[click.Parameter], doc: str) -> None:
        super().__init__(
            name,
            params=[*params, _output(), *kubectl_options()],
            help=doc,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.work = work

    def invoke(self, ctx: click.Context) -> int:
        """Run the command, and print its result."""
        given = dict(ctx.params)
        output = given.pop("output")
        where = _where(ctx, given)
        answer = asyncio.run(_answer(self.work, ctx.find_root().obj, where, given))
        text = (
            json.dumps(answer.document, indent=2, ensure_ascii=False)
            if output == "json"
            else answer.text
        )
        click.echo(text)
        return ExitCode.DONE


def _where(ctx: click.Context, given: dict[str, Any]) -> Where:
    outer = ctx.find_root().params
    found = {
        name: given.pop(name) or outer.get(name)
        for name in ("kubeconfig", "context", "namespace", "request_timeout")
    }
    return Where(
        kubeconfig=found["kubeconfig"] or "",
        context=found["context"] or "",
        namespace=found["namespace"] or "",
        request_s=found["request_timeout"] or REQUEST_S,
    )


async def _answer(work: Work, reach_: Reach, where: Where, given: dict[str, Any]) -> Answer:
    async with reach_(where) as reached:
        return await work(
            Session(reached.access, reached.namespace, _print_notice, _confirm), given
        )


def _print_notice(line: str) -> None:
    click.echo(line, err=True)


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise PluginError(f"{question} There is no terminal to ask on: use --yes", ExitCode.USAGE)
    return click.confirm(question, err=True)


_YES: Final = "Do not ask for confirmation."
_WAIT: Final = "Wait until it is done."
_TIMEOUT: Final = "How long to wait."


def _waiting(*, is_default: bool, seconds: float) -> list[click.Option]:
    return [
        click.Option(["--wait/--no-wait"], default=is_default, show_default=True, help=_WAIT),
        click.Option(
            ["--timeout"],
            type=_Seconds(),
            default=seconds,
            metavar="DURATION",
            show_default=f"{seconds:g}s",
            help=_TIMEOUT,
        ),
    ]


def _everywhere(doc: str) -> click.Option:
    return click.Option(["-A", "--all-namespaces"], is_flag=True, help=doc)


def _wait_s(given: dict[str, Any]) -> float:
    return float(given["timeout"]) if given["wait"] else 0.0


async def _status(session: Session, given: dict[str, Any]) -> Answer:
    return await commands.status(session, given["cluster"], is_everywhere=given["all_namespaces"])


async def _plan(session: Session, given: dict[str, Any]) -> Answer:
    return await commands.plan(session, given["cluster"])


async def _approve(session: Session, given: dict[str, Any]) -> Answer:
    return await commands.approve(
        session, given["cluster"], given["hash"] or "", is_sure=given["yes"]
    )


async def _restart(session: Session, given: dict[str, Any]) -> Answer:
    return await commands.restart(
        session,
        given["cluster"],
        given["broker"],
        is_sure=given["yes"],
        wait_s=_wait_s(given),
    )


async def _drain(session: Session, given: dict[str, Any]) -> Answer:
    return await commands.drain(
        session,
        given["brokers"],
        given["node"] or "",
        is_everywhere=given["all_namespaces"],
        is_over=given["undo"],
        wait_s=_wait_s(given),
    )


async def _support_bundle(session: Session, given: dict[str, Any]) -> Answer:
    bounds = bundle.Bounds(
        size_bytes=given["max_size"],
        log_lines=given["log_lines"],
        seconds=given["timeout"],
    )
    file = given["file"]
    return await commands.support_bundle(
        session,
        given["cluster"],
        path=Path(file) if file else None,
        bounds=bounds,
        operator_namespace=given["operator_namespace"] or "",
    )


def _bundle_options() -> list[click.Option]:
    return [
        click.Option(
            ["-f", "--file"],
            metavar="FILE",
            help="Output file. Default: a name with cluster and time, in this folder.",
        ),
        click.Option(
            ["--operator-namespace"],
            metavar="NAME",
            help="Namespace of the operator. Default: search all namespaces.",
        ),
        click.Option(
            ["--log-lines"],
            type=click.IntRange(0, 1_000_000),
            default=_BUNDLE.log_lines,
            show_default=True,
            help="Number of last lines of each log; 0 for no logs.",
        ),
        click.Option(
            ["--max-size"],
            type=_Bytes(),
            default=_BUNDLE.size_bytes,
            metavar="SIZE",
            show_default="64Mi",
            help="Largest amount of data to gather, before compression.",
        ),
        click.Option(
            ["--timeout"],
            type=_Seconds(),
            default=_BUNDLE.seconds,
            metavar="DURATION",
            show_default="120s",
            help="Time limit; the bundle then holds what was gathered by then.",
        ),
    ]


def make_commands() -> tuple[_Command, ...]:
    """All commands, in the order of the help."""
    yes = click.Option(["-y", "--yes"], is_flag=True, help=_YES)
    return (
        _Command(
            "status",
            _status,
            [_cluster(), _everywhere("Show the clusters of all namespaces.")],
            "Show a cluster with its brokers, conditions, streams and waits. Without a name, show "
            "all clusters of the namespace, one per line.",
        ),
        _Command(
            "plan",
            _plan,
            [_cluster()],
            "Show what will be disrupted, and why, before it happens. The name is optional if "
            "there is only one cluster.",
        ),
        _Command(
            "approve",
            _approve,
            [
                _cluster(),
                click.Option(
                    ["--hash"], metavar="HASH", help="Hash of the reviewed plan; do not ask."
                ),
                yes,
            ],
            "Approve the plan that is shown, and no other: if the plan changes meanwhile, nothing "
            "is approved.",
        ),
        _Command(
            "restart",
            _restart,
            [
                click.Argument(["cluster"]),
                click.Option(
                    ["--broker"],
                    multiple=True,
                    metavar="BROKER",
                    help="Only this broker, by number or name; may be repeated.",
                ),
                click.Option(["-y", "--yes"], is_flag=True, help=_YES),
                *_waiting(is_default=False, seconds=1_800.0),
            ],
            "Restart all brokers, or some, one at a time, each once the cluster can do without it.",
        ),
        _Command(
            "drain",
            _drain,
            [
                click.Argument(["brokers"], nargs=-1, metavar="[BROKER]..."),
                click.Option(
                    ["--node"], metavar="NODE", help="Select all brokers on this node instead."
                ),
                _everywhere("With --node: include the clusters of all namespaces."),
                click.Option(["--undo"], is_flag=True, help="End the drain."),
                *_waiting(is_default=True, seconds=300.0),
            ],
            "Move all leaderships off brokers and place no new replicas on them, until `--undo`; "
            "the brokers keep their replicas. For nodes that are about to be drained or serviced.",
        ),
        _Command(
            "support-bundle",
            _support_bundle,
            [_cluster(), *_bundle_options()],
            "Gather everything that shows what happened to a cluster into a file, without secrets.",
        ),
    )


def make_group() -> click.Group:
    """The plugin's command line."""
    group = click.Group(
        COMMAND,
        commands=list(make_commands()),
        params=list(kubectl_options()),
        help="Manage Liftbridge clusters on Kubernetes.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    version = metadata.version(bundle.DISTRIBUTION)
    return click.version_option(version, prog_name=KUBECTL)(group)


def main(arguments: Sequence[str] | None = None, reach_: Reach = reach) -> int:
    """Run the command; no error leaves it.

    `LIFTBRIDGE_TRACEBACK=1` raises an error instead of printing one line.

    Args:
        arguments: Arguments after the command's name; None takes those of the process.
        reach_: Connects to the API server.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = make_group().main(given, prog_name=KUBECTL, standalone_mode=False, obj=reach_)
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{KUBECTL}: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        line, code = exit_of(error)
        click.echo(f"{KUBECTL}: {line}", err=True)
        return code
    return result if isinstance(result, int) else ExitCode.DONE
