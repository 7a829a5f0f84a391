"""What documents tell readers to type works: commands have these options, files these keys."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from liftbridge_broker.cli import broker
from liftbridge_broker.config.load import load
from liftbridge_broker.errors import ConfigError
from liftbridge_testkit.repository import ROOT, files, relative

PAGES = [page for page in files(".md") if page.parent == ROOT or ROOT / "docs" in page.parents]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS: dict[str, click.Command] = {"liftbridge-broker": broker}


def blocks(page: Path, language: str) -> Iterator[str]:
    """Contents of the fenced blocks of one language."""
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == language:
            yield text


def commands(page: Path) -> Iterator[list[str]]:
    """Command lines of our own programs, without the folder they lie in."""
    for text in blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name in PROGRAMS:
                yield [Path(words[0]).name, *words[1:]]


def fault(words: list[str]) -> str:
    """Why a command line is not understood, empty when it is; nothing is run."""
    command, arguments = PROGRAMS[words[0]], words[1:]
    context = None
    try:
        while True:
            context = command.make_context(words[0], arguments, parent=context)
            if not isinstance(command, click.Group) or not context._protected_args:
                return ""
            rest = [*context._protected_args, *context.args]
            _, found, arguments = command.resolve_command(context, rest)
            assert found is not None
            command = found
    except click.exceptions.Exit:
        return ""  # --help and --version end here
    except click.UsageError as error:
        return f"{shlex.join(words)}: {error.format_message()}"


@pytest.fixture
def refusal(tmp_path) -> Callable[[str], str]:
    """Read a configuration file of this content; the text of the refusal."""

    def read(text: str) -> str:
        path = tmp_path / "broker.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            load(flags={}, environ={}, path=str(path))
        except ConfigError as error:
            return error.text
        return ""

    return read


def test_every_command_line_in_the_documents_is_understood():
    faults = [
        f"{relative(page)}: {problem}"
        for page in PAGES
        for words in commands(page)
        if (problem := fault(words))
    ]
    assert faults == []


def test_every_configuration_in_the_documents_is_accepted(refusal):
    faults = [
        f"{relative(page)}: {problem}"
        for page in PAGES
        for text in blocks(page, "yaml")
        # Objects of Kubernetes, and parts of them, are checked where their definitions are; a test
        # runs the pipeline.
        if not text.startswith(("apiVersion:", "spec:\n", "name: orders\nstorage:"))
        and (problem := refusal(text))
    ]
    assert faults == []


def test_program_in_the_readme_is_the_one_among_the_examples():
    program = (ROOT / "examples" / "first.py").read_text(encoding="utf-8")
    assert list(blocks(ROOT / "README.md", "python")) == [program]


@pytest.mark.parametrize(
    "line", ["liftbridge-broker --no-such-flag", "liftbridge-broker no-such-command"]
)
def test_planted_wrong_command_line_is_found(line):
    assert fault(shlex.split(line)) != ""


def test_planted_wrong_configuration_is_found(refusal):
    assert "no.such.key" in refusal("no.such.key: 1\n")
