"""Wrong command lines, made of the parser itself: each is told with its place, value and rule."""

from typing import NamedTuple

import pytest
import typer

from liftbridge_client.cli import exits, values
from liftbridge_client.cli.app import app
from pyspark_liftbridge.address import whole_address

HUGE = str(10**30)
NUMBERS = ("x", "", "1 2", HUGE, f"-{HUGE}")
FRACTIONS = ("nan", "inf", "1e400")


class Mistake(NamedTuple):
    """A command line.

    Attributes:
        words: Of the command.
        arguments: Behind them.
        place: The parameter that is wrong.
        value: What is wrong with it, none where none can be.
    """

    words: tuple[str, ...]
    arguments: tuple[str, ...]
    place: str
    value: str | None

    def __str__(self) -> str:
        return " ".join((*self.words, self.place, repr(self.value)))


def commands(command, words=()):
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from commands(below, (*words, name))
    else:
        yield words, command


def is_option(parameter):
    return parameter.param_type_name == "option"


def place_of(parameter):
    return parameter.opts[0] if is_option(parameter) else parameter.metavar


def wrong_values(parameter):
    """Values that cannot be right for a parameter."""
    kind = str(parameter.type_descriptor.annotation)
    info = parameter.type_descriptor.parameter_info
    if info.parser is values.given:
        yield ""  # where a variable of the shell is not set
    elif info.parser is whole_address:
        return  # any text is a path
    elif info.parser is not None or "Form" in kind:
        yield from ("", "x!")
    elif "float" in kind:
        yield from (*NUMBERS, *FRACTIONS)
    elif "int" in kind:
        yield from (*NUMBERS, "1.5", *FRACTIONS)


def before(command, parameter):
    """Arguments of a command that stand before one of its parameters."""
    if is_option(parameter):
        return ()
    arguments = [one for one in command.params if not is_option(one)]
    return ("1",) * arguments.index(parameter)


def mistakes():
    for words, command in commands(typer.main.get_command(app)):
        yield Mistake(words, ("--no-such-option",), "--no-such-option", None)
        for one in command.params:
            place = place_of(one)
            if is_option(one):
                wrong = f"{place}=x!" if one.is_flag else place
                yield Mistake(words, (wrong,), place, None)
            if not (is_option(one) and one.is_flag):
                for value in wrong_values(one):
                    given = (f"{place}={value}",) if is_option(one) else ("--", value)
                    *options, last = given
                    arguments = (*options, *before(command, one), last)
                    yield Mistake(words, arguments, place, value)


COMMANDS = dict(commands(typer.main.get_command(app)))
MISTAKES = list(mistakes())


def refusal(mistake):
    """The line that tells of a mistake, empty when there is none; nothing is run."""
    try:
        COMMANDS[mistake.words].make_context("liftbridge", list(mistake.arguments))
    except typer.TyperException as error:
        line, code = exits.line_and_code(error)
        assert code == exits.USAGE
        return line
    return ""


def faults(found):
    """Mistakes that are not told with their place and value, with what was told."""
    for one in found:
        line = refusal(one)
        shown = "" if one.value is None else repr(one.value)
        is_told = one.place in line and shown in line and "\n" not in line
        if not is_told or "Input should" in line or "Value error" in line:
            yield f"{one}: {line}"


def test_every_wrong_command_line_is_told_with_its_place_and_value():
    assert len(MISTAKES) > 1_000
    assert list(faults(MISTAKES)) == []


def test_numbers_have_both_bounds():
    unbounded = [
        f"{' '.join(words)} {place_of(one)}"
        for words, command in COMMANDS.items()
        for one in command.params
        if any(kind in str(one.type_descriptor.annotation) for kind in ("int", "float"))
        and one.type_descriptor.parameter_info.parser is None
        and (one.min is None or one.max is None)
    ]
    assert unbounded == []


@pytest.mark.parametrize("name", ["LIFTBRIDGE_SERVERS", "LIFTBRIDGE_ADMIN", "LIFTBRIDGE_PROFILE"])
def test_variable_that_is_empty_is_one_that_is_not_set(name, monkeypatch):
    monkeypatch.setenv(name, "")
    for words in (("streams",), ("cluster", "brokers")):
        context = COMMANDS[words].make_context("liftbridge", [])
        assert context.params.get(name.removeprefix("LIFTBRIDGE_").lower()) is None
