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
from liftbridge_testkit.pages import Block, commands, sections
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT

TUTORIAL = ROOT / "docs/tutorials/spark.md"
ARCHIVE = ROOT / "docs/how-to/archive-streams.md"
PROGRAMS = Path(sys.executable).parent
SECONDS_MAX = 200
pytestmark = pytest.mark.timeout(400)  # commands start JVMs; a busy machine takes minutes


def run(words: list[str]) -> str:
    """What a command prints that ends well."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the broker that the tutorial starts."""
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    (block,) = sections(TUTORIAL)["Start a broker"]
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
        self._capsys = capsys
        self._program = ""
        self.shown: list[str] = []

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
                    self.shown.append(self._run_program(Path(words[0])))
                else:
                    assert program == ".spark/bin/liftbridge"
                    self.shown.append(run([str(PROGRAMS / "liftbridge"), *words]))
        else:
            assert self.shown[-1].strip() == block.text.strip()

    def _run_program(self, path: Path) -> str:
        """In this process, whose session it then finds: another JVM would take its time."""
        path.write_text(self._program, encoding="utf-8")
        self._capsys.readouterr()
        run_path(str(path), run_name="__main__")
        return self._capsys.readouterr().out


@pytest.mark.usefixtures("spark")
def test_the_tutorial_works_as_it_stands(
    dev: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pages = sections(TUTORIAL)
    assert list(pages) == [
        "Install", "Start a broker", "Publish", "Read", "Follow", "Archive",
        "Query archive and stream",
    ]  # fmt: skip
    reader = Reader(dev, tmp_path, capsys)
    shown: dict[str, list[str]] = {}
    for title in list(pages)[2:]:
        reader.shown = []
        for block in pages[title]:
            reader.do(block)
        shown[title] = reader.shown
    first, _, second = shown["Follow"]
    assert [first.count(word) for word in ("apples", "pears", "plums", "melon")] == [1, 1, 1, 0]
    assert [second.count(word) for word in ("apples", "pears", "plums", "melon")] == [0, 0, 0, 1]
    archived, verified = shown["Archive"]
    assert re.search(r"^orders +orders/ +\d+ +4 +1 ", archived, re.MULTILINE)
    assert verified.split() == ["PLACE", "TEXT"]


@pytest.mark.usefixtures("spark")
def test_commands_and_programs_about_archives_work(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stream = lb.streams.create("orders")
    for number in range(3):
        stream.publish(b"%d apples" % number)
    (tmp_path / "catalog").mkdir()
    changes = {
        " /archive": f" {tmp_path}/archive",
        '"/archive': f'"{tmp_path}/archive',
        "///catalog": f"//{tmp_path}/catalog",
        "localhost:9292": broker.address,
    }

    def here(text: str) -> str:
        for old, new in changes.items():
            text = text.replace(old, new)
        return text

    kinds: list[str] = []
    for blocks in sections(ARCHIVE).values():
        for block in blocks:
            if block.language == "python":
                path = tmp_path / "program.py"
                path.write_text(here(block.text), encoding="utf-8")
                found = run_path(str(path), {"spark": spark, "servers": broker.address})
                kinds.append("python")
                assert "orders" not in found or found["orders"].count() == 3
            for line in commands(block) if block.language == "console" else ():
                program, *words = shlex.split(here(line))
                # The tests of object stores have one; retention is another page's.
                if program == "export" or "s3://" in line or words[0] != "spark":
                    continue
                assert program == "liftbridge"
                run([str(PROGRAMS / "liftbridge"), *words])
                kinds.append(words[1])
    assert {"archive", "verify", "gc", "compact", "publish", "python"} <= set(kinds)
    assert capsys.readouterr().out == "3\n3\n"
