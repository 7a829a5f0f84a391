"""One contract for every command: its options, its output, its errors.

A command is an async function that takes a `Run` first and its own parameters after it. `command`
adds the shared options (`--output`, and for commands that use a server `--servers` or `--admin`,
`--profile`, `--timeout`), so that no command lacks them or spells them differently.
"""

import inspect
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar

import typer
from typer.core import TyperGroup

from liftbridge_client.aio.admin.client import AdminClient, connect_admin
from liftbridge_client.aio.client import Client, connect
from liftbridge_client.cli import interrupts, profiles, values
from liftbridge_client.cli.output import Form, Printer, Row, Shape, say
from liftbridge_client.core.deadlines import within
from liftbridge_client.errors import RetriableError, UsageError
from liftbridge_client.model import Token

_Body = TypeVar("_Body", bound=Callable[..., Coroutine[Any, Any, None]])

TIMEOUT_SECONDS: Final = 5.0
SHAPES: Final[dict[str, Shape[Any]]] = {}
"""Shape of each command's output, by the words of the command."""

Servers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        parser=values.given,
        envvar="LIFTBRIDGE_SERVERS",
        metavar="HOST:PORT,...",
        help="Brokers to connect to, instead of those of the profile.",
        rich_help_panel="Connection",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        parser=values.given,
        envvar="LIFTBRIDGE_ADMIN",
        metavar="HOST:PORT,...",
        help="Admin ports to connect to, instead of those of the profile.",
        rich_help_panel="Connection",
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        parser=values.given,
        envvar="LIFTBRIDGE_PROFILE",
        metavar="NAME",
        help="Profile to use, instead of the current one.",
        rich_help_panel="Connection",
        autocompletion=lambda: sorted(profiles.load().by_name),
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        max=3600.0,
        metavar="SECONDS",
        help="Limit for the whole command; if it reads or publishes, for each call.",
        rich_help_panel="Connection",
    ),
]


TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="LIFTBRIDGE_TOKEN_FILE",
        metavar="FILE",
        help="File with the bearer token, instead of that of the profile; `LIFTBRIDGE_TOKEN` may "
        "hold the token itself.",
        rich_help_panel="Connection",
    ),
]


class CommandGroup(TyperGroup):
    """A group of commands; without a command it shows its help, which is not an error."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer makes no others
        """Parse as any group does, but treat no arguments as `--help`."""
        return super().parse_args(ctx, args or ["--help"])


class Run(Generic[Row]):
    """One run of a command.

    Attributes:
        form: Requested form of output.
        profile: The connection.
        origin: Where its addresses come from.
        token: Bearer token; `None` for none.
        timeout: How long a call may take.
        printer: Prints rows.
        exit_code: Exit code of the process if no error is raised.
    """

    def __init__(
        self, shape: Shape[Row], form: Form, profile: profiles.Profile, timeout: timedelta
    ) -> None:
        self.form = form
        self.profile = profile
        self.origin = ""
        self.token: Token | None = None
        self.timeout = timeout
        self.printer = Printer(shape, form)
        self.exit_code = 0

    @asynccontextmanager
    async def client(self, *, retry_time: timedelta | None = None) -> AsyncGenerator[Client, None]:
        """Open a client for the connection; the timeout applies to each call.

        Raises:
            RetriableError: No broker answers; names the addresses, their source and a remedy.
        """
        client = connect(
            self.profile.servers,
            tls=self.profile.tls_files(),
            timeout=self.timeout,
            retry_time=retry_time or self.timeout,
            token=self.token,
        )
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(client)
            except RetriableError as error:
                raise self._unreachable(error, self.profile.servers, "--servers") from error
            yield client

    def _unreachable(self, error: RetriableError, addresses: str, option: str) -> RetriableError:
        """Add the addresses that were tried and a remedy to an error."""
        whence = f" ({self.origin})" if self.origin else ""
        unreachable = type(error)(
            f"no answer from {addresses}{whence}: {str(error).rstrip('.')}; start a broker with "
            f"`liftbridge dev`, or name another one with {option} or --profile",
            server_text=error.server_text,
        )
        unreachable.advice = error.advice
        return unreachable

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[Client, None]:
        """Open a client for a short command: the timeout applies to all of it."""
        with within(self.timeout.total_seconds()):
            async with self.client() as client:
                yield client

    @asynccontextmanager
    async def admin(self) -> AsyncGenerator[AdminClient, None]:
        """Open a client for operators, as `asking`."""
        client = connect_admin(
            self.profile.admin,
            tls=self.profile.tls_files(),
            timeout=self.timeout,
            retry_time=self.timeout,
        )
        with within(self.timeout.total_seconds()):
            async with client:
                try:
                    yield client
                except RetriableError as error:
                    raise self._unreachable(error, self.profile.admin, "--admin") from error

    def emit(self, row: Row) -> None:
        """Print a row of the result."""
        self.printer.row(row)

    def confirm(self, question: str, *, is_confirmed: bool) -> None:
        """Ask before an irreversible change.

        Raises:
            UsageError: There is no terminal.
            typer.Exit: The user answered no.
        """
        if is_confirmed:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{question} Cannot ask without a terminal: add --yes")
        with interrupts.raised():
            is_confirmed = typer.confirm(question, err=True)
        if not is_confirmed:
            say("liftbridge: cancelled, nothing was done")
            raise typer.Exit(1)


def _output_option(shape: Shape[Any]) -> Any:
    def on_output(form: Form) -> Form:
        if form is Form.SCHEMA:
            sys.stdout.write(json.dumps(shape.schema(), indent=2) + "\n")
            raise typer.Exit(0)
        return form

    return Annotated[
        Form,
        typer.Option(
            "--output",
            "-o",
            help="Output format; schema prints its JSON Schema and does nothing else.",
            is_eager=True,  # needs no other argument
            callback=on_output,
        ),
    ]


def command(
    app: typer.Typer,
    name: str,
    shape: Shape[Any],
    *,
    has_server: bool = True,
    has_timeout: bool = True,
    is_admin: bool = False,
    group: str = "",
    panel: str | None = None,
    expands: Mapping[str, Callable[..., Any]] | None = None,
) -> Callable[[_Body], _Body]:
    """Make an async function a command.

    Args:
        app: Application to which it is added.
        name: Name of the command.
        shape: Shape of its output.
        has_server: Whether it uses a server and takes the options of a connection.
        has_timeout: Whether these include the timeout of a call.
        is_admin: Whether it connects to the port for operators.
        group: Words before its name.
        panel: Heading of its section in the help.
        expands: Parameters made of several options: their name, and a function from the options to
            the value.
    """
    words = f"{group} {name}".strip()
    SHAPES[words] = shape

    def add(body: _Body) -> _Body:
        own = _parameters(body, expands or {})
        common = _common(shape, has_server=has_server, has_timeout=has_timeout, is_admin=is_admin)

        def call(**given: Any) -> int:
            form = given.pop("output")
            profile, origin, token = profiles.Profile(), "", None
            timeout = timedelta(seconds=TIMEOUT_SECONDS)
            if has_server:
                servers, admin = given.pop("servers", None), given.pop("admin", None)
                named = given.pop("profile")
                profile = profiles.choose(servers=servers, profile=named, admin=admin)
                origin = profiles.origin(given=servers or admin, profile=named)
                timeout = timedelta(seconds=given.pop("timeout", TIMEOUT_SECONDS))
                path: Path | None = given.pop("token_file", None)
                token = profile.token(Token(file=path) if path else Token.from_environment())
            for parameter, make in (expands or {}).items():
                parts = {part: given.pop(part) for part in inspect.signature(make).parameters}
                given[parameter] = make(**parts)
            run: Run[Any] = Run(shape, form, profile, timeout)
            run.origin, run.token = origin, token
            try:
                if interrupted := interrupts.run(_flushed(run, body(run, **given))):
                    return interrupted
                run.printer.end()
            except BrokenPipeError:
                # The reader closed the pipe, as in `liftbridge subscribe s | head`.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return run.exit_code

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + common
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.__doc__ = body.__doc__
        app.command(name, rich_help_panel=panel, no_args_is_help=False)(call)
        return body

    return add


async def _flushed(run: Run[Any], body: Coroutine[Any, Any, None]) -> None:
    """Run a command and flush its output, however it ends."""
    try:
        await body
    finally:
        run.printer.flush()


def _common(
    shape: Shape[Any], *, has_server: bool, has_timeout: bool, is_admin: bool
) -> list[inspect.Parameter]:
    """Return the parameters that all commands have, and those of a connection."""
    parameters = [_parameter("output", _output_option(shape), Form.TABLE)]
    if has_server and is_admin:
        parameters.append(_parameter("admin", Admin, None))
    elif has_server:
        parameters.append(_parameter("servers", Servers, None))
        parameters.append(_parameter("token_file", TokenFile, None))
    if has_server:
        parameters.append(_parameter("profile", ProfileName, None))
    if has_server and has_timeout:
        parameters.append(_parameter("timeout", Timeout, TIMEOUT_SECONDS))
    return parameters


def _parameters(
    body: Callable[..., Any], expands: Mapping[str, Callable[..., Any]]
) -> list[inspect.Parameter]:
    """Parameters of a command after its `Run`; those made of several options are expanded."""
    parameters: list[inspect.Parameter] = []
    for parameter in list(inspect.signature(body, eval_str=True).parameters.values())[1:]:
        if parameter.name in expands:
            made = inspect.signature(expands[parameter.name], eval_str=True)
            parameters.extend(made.parameters.values())
        else:
            parameters.append(parameter)
    return parameters


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
