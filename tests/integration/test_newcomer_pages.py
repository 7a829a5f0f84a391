"""What newcomers type from the pages does what the pages say, block by block, in a real shell."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from liftbridge_client.cli.app import run
from liftbridge_testkit.pages import Block, Shown, commands, words_of
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT

SECONDS_MAX = 60
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00")
PROCESSES = re.compile(r"^PROCESSES +(\d+)", re.MULTILINE)
FOLDER = "/tmp/liftbridge-tutorial"  # noqa: S108 - of the page; replaced before it is used


class Reader:
    """Terminals in a folder like a clone, with profiles and data of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / ".venv").symlink_to(sys.prefix)
        shutil.copy(ROOT / "README.md", folder)
        self._environ = {
            **os.environ,
            "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
            "LIFTBRIDGE_CONFIG": str(folder / "profiles.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONDONTWRITEBYTECODE": "",  # as on a reader's machine
        }

    def _shell(self, text: str, *, stderr: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def type(self, text: str) -> str:
        """Run commands that end well; what they print as data."""
        with self._shell(text, stderr=subprocess.PIPE) as shell:
            out, said = shell.communicate(timeout=SECONDS_MAX)
        assert shell.returncode == 0, f"{text}{said}"
        return out

    @contextmanager
    def leave_running(self, text: str) -> Iterator[str]:
        """A `liftbridge dev` in a terminal of its own, until it is ready; what it showed."""
        with self._shell(text, stderr=subprocess.STDOUT) as shell:
            shown: list[str] = []
            try:
                assert shell.stdout is not None
                for line in shell.stdout:
                    shown.append(line)
                    if "ready" in line:
                        break
                assert "ready" in shown[-1], shown
                yield "".join(shown)
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGINT)
                shell.communicate(timeout=SECONDS_MAX)

    def follow(self, text: str) -> str:
        """The first line of a command that goes on with what comes, while somebody publishes."""
        with self._shell(text) as shell:
            assert shell.stdout is not None
            try:
                while not select.select([shell.stdout], [], [], 0)[0]:
                    assert shell.poll() is None
                    self.type("liftbridge publish orders news")
                return shell.stdout.readline()
            finally:
                os.killpg(shell.pid, signal.SIGKILL)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def only(blocks: list[Block]) -> str:
    (block,) = blocks
    assert block.language == "console"
    return block.text


@pytest.mark.shows("tutorials/first-stream.md")
def test_first_stream_is_made_and_read_as_the_tutorial_says(shown: Shown, reader: Reader) -> None:
    with reader.leave_running(only(shown.take("Start a broker"))):
        reader.type(only(shown.take("Create a stream")))
        typed, told = shown.take("Publish and read")
        printed = reader.type(typed.text)
    assert TIME.sub("-", printed).endswith(TIME.sub("-", told.text))


@pytest.mark.shows("tutorials/survive-a-crash.md")
def test_broker_is_killed_and_back_as_the_tutorial_says(
    shown: Shown, reader: Reader, tmp_path: Path
) -> None:
    folder = str(tmp_path / "data")
    begin = only(shown.take("Publish without duplicates"))
    again = only(shown.take("Kill the broker"))
    assert FOLDER in begin
    assert FOLDER in again
    with reader.leave_running(begin.replace(FOLDER, folder)) as told:
        reader.type("liftbridge create lines && liftbridge publish lines one")
        (process,) = PROCESSES.findall(told)
        with reader.leave_running(again.replace("4711", process).replace(FOLDER, folder)):
            assert reader.type("liftbridge subscribe lines --format '%v'") == "one"


@pytest.mark.shows("how-to/use-the-command.md")
def test_commands_of_the_how_to_work_in_their_order(
    shown: Shown,
    reader: Reader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process where a line has one command: each start of Python takes its time."""
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    monkeypatch.chdir(tmp_path)
    with reader.leave_running("liftbridge dev --ephemeral"):
        for title in shown.titles:
            for line in commands(Block("console", only(shown.take(title)))):
                if "--follow" in line:
                    assert '"value": "news"' in reader.follow(line)
                elif "|" in line:
                    assert reader.type(line) != ""
                else:
                    program, *words = words_of(line)
                    code, told = run(words), capsys.readouterr()
                    assert (program, code) == ("liftbridge", 0), f"{line}: {told.err}"
                    assert told.out or "--quiet" in words


@pytest.mark.shows("how-to/check-a-data-directory.md")
def test_data_directory_is_checked_as_the_how_to_says(
    shown: Shown, reader: Reader, tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker") as broker:
        reader.type(f"liftbridge create orders --servers {broker.address}")
        folder = str(broker.data_dir)
    typed = only(shown.take("")).replace("/var/lib/liftbridge", folder)
    assert "orders" in reader.type(typed)
