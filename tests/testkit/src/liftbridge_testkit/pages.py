"""Programs and commands that a page of the documentation shows, for tests that run them.

A test names its blocks by its mark, `@pytest.mark.shows("how-to/use-spark.md", "Write a frame")`,
and takes it from the fixture `shown`. A block that no test can run has the reason in the line
before: `<!-- not run: it installs packages -->`.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from liftbridge_testkit.repository import ROOT

_SECTION = re.compile(r"(?:\A|^## ([^\n]+)\n)(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"^(?:<!-- not run: ([^\n]+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        language: As the page names it, `python` or `console`.
        text: Its content.
        not_run: Reason why no test runs it; empty where one must.
    """

    language: str
    text: str
    not_run: str = ""


def sections(page: Path) -> dict[str, list[Block]]:
    """Return the blocks of a page by the title of their section, in the order of the page.

    Text before the first title has the title "". Sections without a block are omitted.
    """
    text = page.read_text(encoding="utf-8")
    found = {
        title: [Block(language, text, why) for why, language, text in _BLOCK.findall(body)]
        for title, body in _SECTION.findall(text)
    }
    return {title: blocks for title, blocks in found.items() if blocks}


class Shown:
    """Blocks of a page that one test runs.

    Attributes:
        titles: Sections they are in, in the order of the page.
    """

    def __init__(self, page: str, *titles: str, languages: Sequence[str] = ()) -> None:
        """Read a page.

        Args:
            page: Its path below `docs`.
            titles: Its sections; all without one.
            languages: Languages of the blocks to return; all without one.

        Raises:
            LookupError: There is no such section, or no such block in it.
        """
        found = {
            title: [block for block in blocks if is_run(block, languages)]
            for title, blocks in sections(ROOT / "docs" / page).items()
        }
        found = {title: blocks for title, blocks in found.items() if blocks}
        missing = [title for title in titles if title not in found]
        if missing or not found:
            raise LookupError(f"docs/{page} has nothing to run in {missing or 'any section'}")
        self._blocks = {title: found[title] for title in titles or found}
        self._left = set(self._blocks)
        self.titles = list(self._blocks)

    def take(self, title: str) -> list[Block]:
        """Return the blocks of a section; the test must run them all."""
        self._left.discard(title)
        return self._blocks[title]

    def left(self) -> list[str]:
        """Return the sections that were not taken."""
        return [title for title in self.titles if title in self._left]


def commands_of(shown: Shown, title: str) -> list[str]:
    """Return command lines of a section that shows nothing else."""
    blocks = shown.take(title)
    assert {block.language for block in blocks} == {"console"}
    return [line for block in blocks for line in commands(block)]


def is_run(block: Block, languages: Sequence[str] = ()) -> bool:
    """Return whether a test must run the block, one of these languages if there are any."""
    return not block.not_run and (not languages or block.language in languages)


def commands(block: Block) -> list[str]:
    """Return the command lines of a block; lines that continue are joined."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


def words_of(line: str) -> list[str]:
    """Return the words of a command line, the program first, as parsed by a shell.

    Raises:
        ValueError: The shell runs another program in the line, or reports an error.
    """
    program = line.split(maxsplit=1)[0]
    # Only the function is found, so any other program in the line is an error.
    script = f"""PATH=/none; {program}() {{ printf '%s\\0' "$@"; }}; {line}"""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode or done.stderr:
        raise ValueError(f"{line}: {done.stderr}")
    return [program, *done.stdout.split("\0")[:-1]]
