"""Plugin of pytest: a story has passed if its test has, which may fail after the story."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from liftbridge_testkit.kube import results
from liftbridge_testkit.kube.stories import key

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class Outcomes:
    """Corrects results of stories by the outcomes of tests, and keeps data that explains failures.

    Args:
        folder: Folder for results.
    """

    def __init__(self, folder: Path = results.FOLDER) -> None:
        self._folder = folder

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Implement the hook of pytest; see the class."""
        report = yield
        mark = item.get_closest_marker("story")
        if mark is not None and report.when == "call":
            why = call.excinfo.exconly() if call.excinfo is not None else ""
            self._settle(str(mark.args[0]), why)
        return report

    def _settle(self, name: str, why: str) -> None:
        found = results.read_all(key(), self._folder).get(name)
        if found is None or not found.passed:
            return
        if why:
            results.write(replace(found, passed=False, failures=[why]), self._folder)
        else:
            shutil.rmtree(self._folder / found.commit / name)
