"""The shape of the tree: what may lie where, and what no file may say."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from liftbridge_testkit.repository import ROOT, files, relative

BINARY = {".png", ".ico", ".gz", ".parquet", ".arrow", ".der"}
LOCKS_WITH_HOSTS = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "package-lock.json"}
# Written as patterns, so that this file does not name one.
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs)[.]org|crates[.]io|(?:proxy|sum)[.]golang[.]org|anaconda[.]org"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|Users|work|root)/\w|\.\./shared\b")
LEFT_OVER = re.compile(r"\b(?:TO(?:)DO|FIX(?:)ME|X(?:)XX|HA(?:)CK)\b")
MARKDOWN_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)


def operator_faults(paths: Iterable[str]) -> Iterator[str]:
    """What would put our `operator/` in the place of the module of that name (see ARCHITECTURE.md).

    A package `operator` at the root, or one made up by pytest, replaces the module of the standard
    library for everything started there.
    """
    for name in paths:
        path = PurePosixPath(name)
        if path.parts[0] == "operator":
            if len(path.parts) == 2 and path.suffix in {".py", ".so", ".pyi"}:
                yield f"{name}: nothing importable directly in operator/"
            if re.fullmatch(r"test_.*\.py|.*_test\.py|conftest\.py", path.name):
                yield f"{name}: tests live in tests/"
        elif path.name == "__init__.py" and path.parent.name == "operator":
            yield f"{name}: no package named operator"


def texts() -> Iterator[tuple[str, str]]:
    for path in files():
        if path.suffix not in BINARY:
            yield relative(path), path.read_text(encoding="utf-8", errors="strict")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links of a Markdown page to files that do not exist."""
    for target in MARKDOWN_LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("#"):
            continue
        if not (page.parent / target.partition("#")[0]).exists():
            yield target


def test_nothing_takes_the_place_of_the_operator_module():
    assert list(operator_faults(relative(path) for path in files())) == []


def test_python_starts_at_the_root_with_the_operator_module_of_its_own_library():
    command = "import operator, collections; print(operator.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert not found.startswith(str(ROOT / "operator"))


@pytest.mark.parametrize(
    "name",
    [
        "operator/__init__.py",
        "operator/setup.py",
        "operator/src/liftbridge_operator/test_planner.py",
        "operator/tests/conftest.py",
        "tests/unit/operator/__init__.py",
    ],
)
def test_planted_operator_fault_is_found(name):
    assert len(list(operator_faults([name]))) == 1


@pytest.mark.parametrize(
    "name",
    [
        "operator/pyproject.toml",
        "operator/src/liftbridge_operator/__init__.py",
        "tests/unit/operator/test_planner.py",
    ],
)
def test_rightful_operator_file_is_accepted(name):
    assert list(operator_faults([name])) == []


def test_no_lock_file_names_an_index():
    assert [relative(path) for path in files() if path.name in LOCKS_WITH_HOSTS] == []


def test_no_file_names_the_host_of_a_package_registry():
    assert lines_with(REGISTRY) == []


def test_no_file_names_a_path_of_one_machine():
    assert lines_with(MACHINE_PATH) == []


def test_no_marker_of_unfinished_work():
    assert lines_with(LEFT_OVER) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY, "--index-url https://pypi" + ".org/simple"),
        (REGISTRY, "GOPROXY=https://proxy" + ".golang.org"),
        (MACHINE_PATH, "see /home" + "/ann/notes"),
        (MACHINE_PATH, "[text](.." + "/shared/x.md)"),
        (LEFT_OVER, "# TO" + "DO: later"),
        (LEFT_OVER, "// FIX" + "ME"),
    ],
)
def test_planted_text_is_found(pattern, text):
    assert pattern.search(text)


def test_every_link_between_pages_leads_to_a_file():
    broken = [
        f"{relative(page)} -> {target}"
        for page in files(".md")
        for target in broken_links(page, page.read_text(encoding="utf-8"))
    ]
    assert broken == []


def test_planted_broken_link_is_found():
    text = "[good](README.md#top) [web](https://example.org) [here](#x) [bad](docs/none.md)"
    assert list(broken_links(ROOT / "CONTRIBUTING.md", text)) == ["docs/none.md"]


def test_fragments_of_the_changelog_have_a_known_type():
    types = {"safety", "feature", "fix", "breaking", "internal"}
    pattern = re.compile(rf"(?:\d+|\+[\w-]+)\.(?:{'|'.join(types)})(?:\.\d+)?\.md")
    kept = ".gitignore"  # towncrier ignores it; it keeps the folder while there are no fragments
    fragments = [path.name for path in (ROOT / "changes.d").iterdir() if path.name != kept]
    assert [name for name in fragments if not pattern.fullmatch(name)] == []
