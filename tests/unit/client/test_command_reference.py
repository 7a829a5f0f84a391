"""What documents say of the command is what the command does."""

import re
import shlex

import pytest
import typer

from liftbridge_client.cli.app import app, run
from liftbridge_client.cli.examples import EXAMPLES
from liftbridge_client.cli.reference import reference
from liftbridge_testkit.repository import ROOT, files, relative

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = typer.main.get_command(app)


def fault(line):
    """Why a command line is not understood, empty when it is; nothing is run."""
    words = shlex.split(line.rpartition("|")[2], comments=True)[1:]
    command = COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        if found is None:
            return f"{line}: no command {words[0]}"
        command, words = found, words[1:]
    try:
        command.make_context("liftbridge", words)
    except typer.Exit:
        return ""
    except typer.TyperException as error:
        return f"{line}: {error.format_message()}"
    return ""


def groups(command=COMMAND, words=()):
    """The words of all groups of commands, the empty ones of the whole included."""
    if hasattr(command, "commands"):
        yield words
        for name, below in command.commands.items():
            yield from groups(below, (*words, name))


@pytest.mark.parametrize("words", list(groups()), ids=" ".join)
def test_group_without_a_command_shows_its_help_and_is_no_mistake(words, capsys):
    assert run(words) == 0
    shown, said = capsys.readouterr()
    assert shown.startswith(f"Usage: {' '.join(('liftbridge', *words))} [OPTIONS] COMMAND")
    assert said == ""


def lines(text):
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(\.venv/bin/)?liftbridge ", line):
                yield line


def test_reference_is_what_the_command_says():
    written = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")
    assert written == reference(), (
        "python -m liftbridge_client.cli.reference > docs/reference/command.md"
    )


def test_every_command_line_in_the_documents_is_understood():
    pages = [p for p in files(".md") if p.parent == ROOT or ROOT / "docs" in p.parents]
    faults = [
        f"{relative(page)}: {problem}"
        for page in pages
        for line in lines(page.read_text(encoding="utf-8"))
        if (problem := fault(line))
    ]
    assert faults == []


@pytest.mark.parametrize("line", [example.command for example in EXAMPLES])
def test_every_example_is_understood(line):
    assert fault(line) == ""


@pytest.mark.parametrize(
    "line", ["liftbridge nothing", "liftbridge streams --no-such", "liftbridge create"]
)
def test_planted_wrong_command_line_is_found(line):
    assert fault(line) != ""
