"""The tutorial for Kubernetes: what a reader types works, in the order of the page."""

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from liftbridge_testkit.kube.cluster import Kubernetes, timed
from liftbridge_testkit.repository import ROOT

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs" / "tutorials" / "kubernetes.md"
BLOCK = re.compile(r"^```(console|text)\n(.*?)^```\n\s*", re.MULTILINE | re.DOTALL)
STEP_SECONDS_MAX = 600


class Step(NamedTuple):
    """A block of commands, and the text that the page shows right below it, which may be none."""

    commands: str
    shown: str


def steps(page: str) -> Iterator[Step]:
    found = list(BLOCK.finditer(page))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] == "console":
            is_shown = after is not None and after[1] == "text" and after.start() == block.end()
            yield Step(block[2], after[2] if after is not None and is_shown else "")


def perform(commands: str, cluster: Kubernetes) -> str:
    """What a reader's shell prints; fails with all of it when a command fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        check=False,
        cwd=ROOT,
        env=dict(cluster.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_tutorial_works_as_it_is_written(kubernetes: Kubernetes) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for part in ("operator", "broker"):
        repository, _, tag = kubernetes.image(part).rpartition(":")
        page = page.replace(f"liftbridge.test/{part}:1", f"{repository}:{tag}")
        page = page.replace(f"liftbridge.test/{part}", repository)
        page = page.replace("image.tag=1", f"image.tag={tag}")
    found = list(steps(page))
    assert len(found) == len(re.findall(r"^```console$", page, re.MULTILINE))
    assert sum(step.shown != "" for step in found) == 2
    for step in found:
        with timed(step.commands.splitlines()[0]):
            printed = perform(step.commands, kubernetes)
        assert step.shown in {"", printed}
