"""The reference of the command as Markdown, generated from the command itself.

python -m liftbridge_client.cli.reference > docs/reference/command.md
"""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from liftbridge_client.cli.app import app
from liftbridge_client.cli.command import SHAPES

INTRODUCTION = """\
# Command `liftbridge`

Generated from the command itself (`python -m liftbridge_client.cli.reference`); a test checks it.

Results go to standard output, notices to standard error. Commands do not ask for confirmation
without a terminal: `delete`, for example, then needs `--yes`. An error is one line with what
happened, its code and what to do; `LIFTBRIDGE_TRACEBACK=1` shows the traceback.

| Exit code | Meaning |
| --- | --- |
| 0 | success |
| 1 | the server refused the request, or a check failed |
| 2 | the command line, or a file named on it, is wrong |
| 3 | the server is unreachable or unhealthy |
| 4 | no answer in time |
| 5 | `spark`: records are missing |
| 6 | `spark`: other runs won every attempt |
| 130 | ended by Ctrl-C (SIGINT) |
| 143 | ended by SIGTERM |

At the first of these signals a command cleans up and ends; a second one ends it immediately.
A `dev` that was ready ends with 0.

Every command takes `-o table` (for people), `json` (one document), `jsonl` (one object per line)
and `schema` (prints the JSON Schema of the document and does nothing else). Commands that talk to a
server take `--servers`, `--profile` and `--timeout`; Spark jobs have no `--timeout`. The connection
is the first of: `--servers` (`LIFTBRIDGE_SERVERS`), `--profile` (`LIFTBRIDGE_PROFILE`), the current
profile, `localhost:9292`.
`cluster` commands talk to the admin ports: `--admin` (`LIFTBRIDGE_ADMIN`), the `admin` of the
profile, `localhost:9294`. Name the ports of all brokers, since some calls only one broker can
answer. `LIFTBRIDGE_CONFIG` names a profile file other than `profiles.toml` in the user's
configuration folder. `liftbridge --install-completion` sets up shell completion.
"""


def reference() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for words, command in _commands(typer.main.get_command(app), ()):
        parts.append("\n".join(_section(words, command)))
    return "\n".join(parts)


def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def _section(words: str, command: Any) -> Iterator[str]:
    yield f"## `liftbridge {words}`\n"
    yield " ".join(line.strip() for line in (command.help or "").split("\n")) + "\n"
    yield "| Parameter | Meaning |"
    yield "| --- | --- |"
    for parameter in command.params:
        if parameter.name not in ("output", "servers", "admin", "profile", "timeout", "help"):
            yield f"| {_spelled(parameter)} | {_meaning(parameter)} |"
    names = getattr(SHAPES[words].row, "_fields", None)
    fields = "the columns asked for" if names is None else ", ".join(f"`{name}`" for name in names)
    many = "Rows" if SHAPES[words].is_many else "One row"
    yield f"\n{many} of {fields}.\n"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    metavar = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    return f"`{', '.join(names)}{metavar}`"


def _meaning(parameter: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    default = parameter.default
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
    if is_shown and default != "" and parameter.param_type_name == "option":
        text += f" Default: `{default}`."
    return text.strip()


if __name__ == "__main__":
    sys.stdout.write(reference())
