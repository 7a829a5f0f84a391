"""`python -m liftbridge_testkit.kube.full --shard 1/4`: all stories, one part of them at a time.

Pytest finds the stories, each marked `story(NAME, minutes=N)`. Stories that passed for this commit
are skipped, so that an interrupted run continues. Each run writes one report over all stories of
the commit, of all shards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from liftbridge_testkit.kube import results
from liftbridge_testkit.kube.stories import KEY_VARIABLE
from liftbridge_testkit.progress import say
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

STORIES = ROOT / "tests" / "e2e"
MINUTES = 4.0
"""Default duration of a story."""


class Registered(NamedTuple):
    """A story that pytest found.

    Attributes:
        test: Test id for pytest.
        minutes: Expected duration.
    """

    test: str
    minutes: float


class Collector:
    """Plugin of pytest that collects the stories."""

    def __init__(self) -> None:
        self.stories: dict[str, Registered] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep stories, by name.

        Raises:
            ValueError: Two stories have one name.
        """
        for item in session.items:
            for mark in item.iter_markers("story"):
                name = str(mark.args[0])
                if name in self.stories:
                    raise ValueError(f"two stories are called {name}")
                minutes = float(mark.kwargs.get("minutes", MINUTES))
                self.stories[name] = Registered(item.nodeid, minutes)


def collect(folder: Path = STORIES) -> dict[str, Registered]:
    """Return all stories in a folder of tests.

    Raises:
        RuntimeError: Pytest could not read it.
    """
    found = Collector()
    options = ["--collect-only", "-qq", "-m", "e2e", "-p", "no:randomly", "--no-header"]
    code = pytest.main([*options, str(folder)], plugins=[found])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"{folder} could not be collected: {code}")
    return found.stories


def numbers(text: str) -> tuple[int, int]:
    """Parse `2/4` as shard 2 of 4; raise `ArgumentTypeError` for anything else."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no i/n, such as 1/4")
    if not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"{text!r}: the first is 1/{count}")
    return int(number), int(count)


def chosen(
    stories: Mapping[str, Registered], shard: tuple[int, int], only: Sequence[str] = ()
) -> list[str]:
    """Return the stories of a shard, or the named stories in it."""
    minutes = {name: one.minutes for name, one in stories.items()}
    return [name for name in results.shard(minutes, *shard) if not only or name in only]


def play(names: Sequence[str], stories: Mapping[str, Registered], commit: str) -> None:
    """Run stories by pytest in one process, so that images and the operator are set up once."""
    tests = [stories[name].test for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "e2e", "--timeout", "0"]
    subprocess.run(
        [*command, "-p", "no:randomly", *tests],
        check=False,
        cwd=ROOT,
        env={**os.environ, KEY_VARIABLE: commit},
    )


def main(
    arguments: Sequence[str] | None = None,
    *,
    folder: Path = results.FOLDER,
    commit: str = "",
    find: Callable[[], dict[str, Registered]] = collect,
    perform: Callable[[Sequence[str], Mapping[str, Registered], str], None] = play,
) -> int:
    """Run the pending stories of a shard; return 1 if one did not pass.

    Args:
        arguments: Arguments of the command line.
        folder: Folder for results.
        commit: Commit under test; from git if empty.
        find: Returns the stories.
        perform: Runs some stories, which write results.
    """
    parser = argparse.ArgumentParser(prog="full", description=__doc__.partition("\n")[0])
    parser.add_argument("--shard", type=numbers, default=(1, 1), help="i/n; all without it")
    parser.add_argument("--only", nargs="+", default=[], help="names of stories")
    parser.add_argument("--list", action="store_true", help="show what would be played")
    options = parser.parse_args(arguments)
    stories = find()
    commit = commit or results.commit_key()
    wanted = chosen(stories, options.shard, options.only)
    waiting = results.pending(wanted, results.read_all(commit, folder))
    minutes = sum(stories[name].minutes for name in waiting)
    say(f"{commit}: {len(waiting)} of {len(wanted)} stories to play, about {minutes:.0f} minutes")
    if options.list:
        say("\n".join(waiting))
        return 0
    if waiting:
        perform(waiting, stories, commit)
    found = results.read_all(commit, folder)
    page = folder / commit / "report.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(results.report(commit, list(stories), found), encoding="utf-8")
    say(f"\n{page.read_text(encoding='utf-8')}\nwritten: {page}")
    return 1 if results.pending(wanted, found) else 0


if __name__ == "__main__":
    sys.exit(main())
