"""Programs and commands that a page of the documentation shows, for tests that run them."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_SECTION = re.compile(r"(?:\A|^## ([^\n]+)\n)(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        language: As the page names it, `python` or `console`.
        text: What it holds.
    """

    language: str
    text: str


def sections(page: Path) -> dict[str, list[Block]]:
    """Blocks of a page by the title of their section, in the order of the page.

    What stands before the first title has the title "". Sections without a block are left out.
    """
    text = page.read_text(encoding="utf-8")
    found = {
        title: [Block(*block) for block in _BLOCK.findall(body)]
        for title, body in _SECTION.findall(text)
    }
    return {title: blocks for title, blocks in found.items() if blocks}


def commands(block: Block) -> list[str]:
    """Command lines of a block, those that go over several lines as one."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


def words_of(line: str) -> list[str]:
    """Words of a command line, the program first, as a shell gives them to it.

    Raises:
        ValueError: The shell runs something else in the line, or tells an error.
    """
    program = line.split(maxsplit=1)[0]
    # Nothing but the function is found, so what the shell would run besides is an error.
    script = f"""PATH=/none; {program}() {{ printf '%s\\0' "$@"; }}; {line}"""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode or done.stderr:
        raise ValueError(f"{line}: {done.stderr}")
    return [program, *done.stdout.split("\0")[:-1]]
