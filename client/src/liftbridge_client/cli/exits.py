"""Exit codes of all commands, and the one-line form of errors.

0 success; 1 the server refused, or a check failed; 2 the command line, or a file named on it, is
wrong; 3 the server is unreachable or unhealthy; 4 no answer in time. Ctrl-C ends with 130, and
SIGTERM with 143.
"""

from typing import Final

import typer

from liftbridge_client.cli.values import shown
from liftbridge_client.errors import (
    AckTimeoutError,
    CallTimeoutError,
    ClosedError,
    LiftbridgeError,
    OutcomeUnknownError,
    RetriableError,
    ServerError,
    UsageError,
)

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNHEALTHY: Final = 3
TIMED_OUT: Final = 4
INTERRUPTED: Final = 130
TERMINATED: Final = 143

USAGE_ADVICE: Final = "See --help."

_RULES: Final = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of at most 4,300 digits",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}

_KINDS: Final[tuple[tuple[type[LiftbridgeError], int], ...]] = (
    (AckTimeoutError, TIMED_OUT),
    (CallTimeoutError, TIMED_OUT),
    (OutcomeUnknownError, TIMED_OUT),
    (ClosedError, UNHEALTHY),
    (UsageError, USAGE),
    (RetriableError, UNHEALTHY),
    (ServerError, UNHEALTHY),
)


def code_of(error: LiftbridgeError) -> int:
    """Exit code for an error; a refusal unless the table says otherwise."""
    return next((code for kind, code in _KINDS if isinstance(error, kind)), REFUSED)


def line_of(error: LiftbridgeError) -> str:
    """Format an error as one line: message, code, advice."""
    text = " ".join(str(error).split())
    advice = USAGE_ADVICE if type(error) is UsageError else error.advice
    return f"liftbridge: {text.rstrip('.')} ({error.code}). {advice}"


def _name_value(error: typer.TyperException) -> None:
    """Make error messages of typer name the wrong value and state the rule in plain words."""
    # pydantic's; it comes with typer, which imports it only to read a value.
    problems = getattr(error.__cause__, "errors", None)
    if problems is None:
        return
    problem = problems()[0]
    rule = _RULES.get(problem["type"])
    if rule is not None:
        rule = rule.format(**problem.get("ctx", {}))
        error.message = f"{shown(problem['input'])}: {rule}"
    else:
        error.message = error.message.removeprefix("Value error, ")


def line_and_code(error: Exception) -> tuple[str, int]:
    """Return the one-line message for an error, and its exit code."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LiftbridgeError):
        return line_of(error), code_of(error)
    if isinstance(error, typer.TyperException):
        _name_value(error)
        text = " ".join(error.format_message().split()).rstrip(".")
        return f"liftbridge: {text} (USAGE). {USAGE_ADVICE}", USAGE
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"liftbridge: {place}{error.strerror or error} (SYSTEM).", UNHEALTHY
    text = f"{type(error).__name__}: {error}"
    advice = "Please report it; LIFTBRIDGE_TRACEBACK=1 shows the traceback."
    return f"liftbridge: this is a bug: {' '.join(text.split())} (BUG). {advice}", UNHEALTHY
