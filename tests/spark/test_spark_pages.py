"""The tutorial, and the how-to about archives: what readers type does what the page says."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import pytest
from pyspark.sql import SparkSession

from liftbridge_client import SyncClient
from liftbridge_client.cli import app
from liftbridge_testkit.pages import Block, Shown, commands, commands_of
from liftbridge_testkit.processes import Broker

PROGRAMS = Path(sys.executable).parent
pytestmark = pytest.mark.timeout(300)  # many programs; a busy machine takes minutes


def run(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command prints that ends well, in this process: others would start more JVMs."""
    capsys.readouterr()
    code = app.run(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


@pytest.fixture
def dev(shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the broker that the tutorial starts."""
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    (block,) = shown.take("Start a broker")
    (line,) = commands(block)
    program, *words = shlex.split(line)
    assert program == ".spark/bin/liftbridge"
    with subprocess.Popen(
        [PROGRAMS / "liftbridge", *words, "-o", "jsonl"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["servers"]
        finally:
            process.terminate()


class Reader:
    """Types what the blocks of a page say, in its folder."""

    def __init__(self, address: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        # The JVM of the tests was started elsewhere, so its folders have whole paths.
        self._changes = {
            "localhost:9292": address,
            '"checkpoint")': f'"{folder}/checkpoint")',
            '"archive", "archive"': f'"archive", "{folder}/archive"',
        }
        self._folder = folder
        self._capsys = capsys
        self._program = ""
        self.printed: list[str] = []

    def do(self, block: Block) -> None:
        """Save a program, or run commands and keep what they print, or compare with that."""
        if block.language == "python":
            self._program = block.text
            for old, new in self._changes.items():
                self._program = self._program.replace(old, new)
        elif block.language == "console":
            for line in commands(block):
                program, *words = shlex.split(line)
                if program == ".spark/bin/python":
                    self.printed.append(self._run_program(Path(words[0])))
                else:
                    assert program == ".spark/bin/liftbridge"
                    if words[0] == "spark":
                        words[-1] = str(self._folder / words[-1])
                    self.printed.append(run(self._capsys, words))
        else:
            assert self.printed[-1].strip() == block.text.strip()

    def _run_program(self, path: Path) -> str:
        """In this process, whose session it then finds: another JVM would take its time."""
        path.write_text(self._program, encoding="utf-8")
        self._capsys.readouterr()
        run_path(str(path), run_name="__main__")
        return self._capsys.readouterr().out


@pytest.mark.usefixtures("spark")
@pytest.mark.shows("tutorials/spark.md")
def test_the_tutorial_works_as_it_stands(
    shown: Shown,
    dev: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    begin, *titles = shown.titles
    assert begin == "Start a broker"
    reader = Reader(dev, tmp_path, capsys)
    printed: dict[str, list[str]] = {}
    for title in titles:
        reader.printed = []
        for block in shown.take(title):
            reader.do(block)
        printed[title] = reader.printed
    first, _, second = printed["Follow"]
    assert [first.count(word) for word in ("apples", "pears", "plums", "melon")] == [1, 1, 1, 0]
    assert [second.count(word) for word in ("apples", "pears", "plums", "melon")] == [0, 0, 0, 1]
    archived, verified = printed["Archive"]
    assert re.search(r"^orders +orders/ +\d+ +4 +1 ", archived, re.MULTILINE)
    assert verified.split() == ["PLACE", "TEXT"]


@pytest.mark.shows("how-to/archive-streams.md", "", "Read an archive", "Check and clean up")
def test_archives_are_read_and_checked_as_the_how_to_says(
    shown: Shown,
    spark: SparkSession,
    broker: Broker,
    lb: SyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = lb.streams.create("orders")
    for number in range(3):
        stream.publish(b"%d apples" % number)

    def here(text: str) -> str:
        for before in (" ", '"'):
            text = text.replace(f"{before}/archive", f"{before}{tmp_path}/archive")
        return text.replace("localhost:9292", broker.address)

    for line in commands_of(shown, ""):
        run(capsys, shlex.split(here(line))[1:])
    stream.publish(b"not archived")
    path, rows = tmp_path / "program.py", []
    for block in shown.take("Read an archive"):
        path.write_text(here(block.text), encoding="utf-8")
        found = run_path(str(path), {"spark": spark, "servers": broker.address})
        rows.append(found["orders"].count() if "orders" in found else capsys.readouterr().out)
    assert rows == ["3\n", 4]
    printed = [
        run(capsys, [*shlex.split(here(line))[1:], "-o", "json"])
        for line in commands_of(shown, "Check and clean up")
    ]
    assert [one.strip() for one in printed] == ["[]", "[]"]
