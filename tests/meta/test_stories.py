"""Every story of the replication protocol and every entry of Raft's test list has its file."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SCENARIOS = TESTS / "scenarios"
STORIES = {*range(1, 104), *range(104, 117), 118, 119}
"""S1 to S103; of the faults of disks and of operating those about what exists."""

RAFT_LIST = set(range(1, 23))
_NUMBERS = re.compile(r"\bR(\d+)(?: to R(\d+))?\b")


def numbers_in(text: str) -> set[int]:
    """Numbers of the list that a text names, ranges such as `R10 to R16` included."""
    found: set[int] = set()
    for first, last in _NUMBERS.findall(text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_story_has_a_script_that_names_it():
    found: set[int] = set()
    for path in SCENARIOS.glob("s[0-9]*.txt"):
        number = int(path.name[1:4])
        assert path.read_text(encoding="utf-8").startswith(f"# S{number}"), path.name
        found.add(number)
    assert STORIES - found == set()


def test_every_entry_of_the_raft_list_is_named_by_a_test():
    found: set[int] = set()
    for path in (SCENARIOS / "raft").glob("*.txt"):
        comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
        found |= numbers_in("\n".join(comments))
    for path in TESTS.rglob("test_raft*.py"):
        docstrings = re.findall(r'"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
        found |= numbers_in("\n".join(docstrings))
    control = TESTS / "unit" / "node" / "test_control_plane.py"
    found |= numbers_in("\n".join(re.findall(r'"""(.*?)"""', control.read_text())))
    assert RAFT_LIST - found == set()
