"""What errors advise suits what they tell, whatever texts brokers and the client write."""

import ast
import re

import pytest
import typer

from liftbridge_client import errors
from liftbridge_client.cli.app import app
from liftbridge_testkit.repository import python_files, relative

SOURCES = ("broker/src/", "client/src/")
NAMES = ("x", "stream", "partition", "broker", "3")
LISTED_BY = {
    "stream": "`liftbridge streams`",
    "commit": "`liftbridge streams`",
    "partition": "`liftbridge partitions STREAM`",
    "broker": "`liftbridge cluster brokers`",
    "token": "`liftbridge token list`",
    "group": "`liftbridge group list`",
}
"""The command that lists what exists, by the first word for what does not."""


def texts_of(node, name):
    """Texts that an expression can be, with one name for all values in it."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(one.value if isinstance(one, ast.Constant) else name for one in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*texts_of(body, name), *texts_of(orelse, name))
        case _:
            pass  # a variable: what it can hold is a text elsewhere


def refusals():
    """Texts of all `NotFoundError`s in the sources, by the text with the first of the names."""
    for path in python_files():
        if not relative(path).startswith(SOURCES):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotFoundError":
                yield from zip(*(texts_of(node.args[0], name) for name in NAMES), strict=True)


REFUSALS = [told for told in sorted(set(refusals())) if "unknown service" not in told[0]]


@pytest.mark.parametrize("told", REFUSALS, ids=lambda told: told[0])
def test_what_was_not_found_is_listed_by_the_command_that_is_advised(told):
    word = re.search("|".join(LISTED_BY), told[0])[0]
    for text in told:
        assert LISTED_BY[word] in errors.NotFoundError(text).advice, text


def test_texts_of_refusals_are_found():
    assert len(REFUSALS) > 10
    assert {re.search("|".join(LISTED_BY), told[0])[0] for told in REFUSALS} == set(LISTED_BY)


def test_what_nobody_knows_gets_an_advice_that_suits_everything():
    advice = errors.NotFoundError("nothing there").advice
    assert advice == errors.NotFoundError.advice
    assert "`" not in advice


def is_command(words):
    """Whether words begin with those of a command or a group, which shows its help."""
    group = typer.main.get_command(app)
    for word in words:
        if not hasattr(group, "commands"):
            return True
        group = group.commands.get(word)
        if group is None:
            return False
    return True


def test_commands_in_advice_and_errors_exist():
    told = [
        (relative(path), words)
        for path in python_files()
        if relative(path).startswith("client/src/")
        for words in re.findall(r"`liftbridge ([a-z][^`]*)`", path.read_text(encoding="utf-8"))
    ]
    assert len(told) > 10
    assert [one for one in told if not is_command(one[1].split())] == []
