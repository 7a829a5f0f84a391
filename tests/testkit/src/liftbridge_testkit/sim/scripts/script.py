"""A script as text: commands, each followed by its expected output.

    # What the story is about, for people.
    cluster A B C
    create s rf=3 min-isr=2 on=A,B,C
    publish s v1
      acked 0@e1
    crash A lose=all

A command is a line; lines that begin with two blanks are the output of the command before them. A
command without such lines has no output. `rewrite` replaces expected output by actual output, and
leaves everything else unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

INDENT = "  "


class ScriptError(AssertionError):
    """A failed step.

    Attributes:
        line: Number of its line, from 1.
    """

    def __init__(self, line: int, command: str, text: str) -> None:
        super().__init__(f"line {line}: {command}\n{text}")
        self.line = line


@dataclass(slots=True)
class Step:
    """One command.

    Attributes:
        line: Number of its line, from 1.
        command: Its text.
        expected: Expected lines of output.
    """

    line: int
    command: str
    expected: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Script:
    """The text of a script and its commands.

    Attributes:
        lines: All lines except output.
        steps: Commands by the index of their line in `lines`.
    """

    lines: list[str] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)

    def text(self, outputs: dict[int, Sequence[str]]) -> str:
        """Return the script with these outputs, by the index of the command's line."""
        found: list[str] = []
        for index, line in enumerate(self.lines):
            found.append(line)
            found += [INDENT + output for output in outputs.get(index, ())]
        return "\n".join(found) + "\n"


def read(text: str) -> Script:
    """Read a script.

    Raises:
        ScriptError: There is output before any command.
    """
    script = Script()
    last: Step | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(INDENT):
            if last is None:
                raise ScriptError(number, line, "output of nothing")
            last.expected.append(line.removeprefix(INDENT))
            continue
        script.lines.append(line)
        last = None
        if line.strip() and not line.startswith("#"):
            last = Step(number, line)
            script.steps[len(script.lines) - 1] = last
    return script


def run(text: str, act: Callable[[str], Sequence[str]], *, rewrite: bool = False) -> str:
    """Execute a script, command by command.

    Args:
        text: The script.
        act: Executes one command and returns its output; an `AssertionError` is a failure.
        rewrite: Accept actual output as expected output.

    Returns:
        The text with the actual outputs; equal to `text` unless `rewrite` changed it.

    Raises:
        ScriptError: A command failed, or its output differs.
    """
    script = read(text)
    outputs: dict[int, Sequence[str]] = {}
    for index, step in script.steps.items():
        try:
            output = list(act(step.command))
        except (AssertionError, ValueError, KeyError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ScriptError(step.line, step.command, reason) from error
        if output != step.expected and not rewrite:
            raise ScriptError(
                step.line,
                step.command,
                "\n".join(["expected:", *step.expected, "came:", *output]),
            )
        outputs[index] = output
    return script.text(outputs)
