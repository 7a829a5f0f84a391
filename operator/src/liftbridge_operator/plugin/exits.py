"""Exit codes of all commands, and the one-line form of errors.

0 done; 1 refused, by the API server or because the cluster does not allow it; 2 the command line is
wrong; 3 the API server is unavailable, or does not accept the credentials; 4 the wait timed out.
Ctrl-C ends with 130.
"""

from enum import IntEnum

import click

from liftbridge_operator.kube.errors import (
    ForbiddenError,
    KubeError,
    UnauthorizedError,
    UnavailableError,
)


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    INTERRUPTED = 130


class PluginError(Exception):
    """A refusal, with a human-readable message.

    Attributes:
        code: Exit code of the command.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(message)
        self.code = code


def exit_of(error: Exception) -> tuple[str, ExitCode]:
    """Return the one-line message for an error, and its exit code."""
    match error:
        case PluginError():
            return str(error), error.code
        case click.UsageError():
            return f"{error.format_message()} (see --help)", ExitCode.USAGE
        case KubeError():
            return _of_server(error)
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return f"{place}{error.strerror or error}", ExitCode.REFUSED
        case _:
            text = _line(f"{type(error).__name__}: {error}")
            advice = "Please report it; LIFTBRIDGE_TRACEBACK=1 shows where."
            return f"this is a bug: {text}. {advice}", ExitCode.REFUSED


def _of_server(error: KubeError) -> tuple[str, ExitCode]:
    text = _line(error.message)
    match error:
        case ForbiddenError():
            return f"you are not allowed to do this: {text}", ExitCode.REFUSED
        case UnauthorizedError():
            why = f"the API server does not accept these credentials: {text}"
            return why, ExitCode.UNREACHABLE
        case UnavailableError():
            return text, ExitCode.UNREACHABLE
        case _:
            return text, ExitCode.REFUSED


def _line(text: str) -> str:
    return " ".join(text.split())
