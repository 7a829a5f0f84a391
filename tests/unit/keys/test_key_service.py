"""The program that asks a key service: what it gets, and what is made of its answers."""

import json
import stat
import sys
import textwrap
from functools import partial
from pathlib import Path
from random import Random

import pytest

from liftbridge_broker.adapters.keys.service import (
    Item,
    ask,
    keys_of,
    list_keys,
    outcomes_of,
)
from liftbridge_broker.errors import KeyUnavailableError
from liftbridge_broker.model.keys import MasterKey

PROGRAM = """
import base64, json, sys
request = json.load(sys.stdin)
if request["operation"] == "list":
    answer = {"keys": ["main", "old"]}
else:
    turn = (lambda b: b[::-1])
    answer = {"items": [
        {"error": "denied"} if one["key"] == "bad"
        else {"data": base64.b64encode(turn(base64.b64decode(one["data"]))).decode()}
        for one in request["items"]
    ]}
assert sys.argv[1:] == []
json.dump(answer, sys.stdout)
"""


def program(folder: Path, text: str) -> str:
    path = folder / "keys"
    path.write_text(f"#!{sys.executable} -IS\n" + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_keys_are_listed_wrapped_and_unwrapped(tmp_path: Path) -> None:
    path = program(tmp_path, PROGRAM)
    assert list_keys(path) == (MasterKey("main", b""), MasterKey("old", b""))
    items = [Item("main", b"abc", "s"), Item("bad", b"x", "s"), Item("old", b"d", "t")]
    first, denied, last = ask(path, "wrap", items)
    assert (first, last) == (b"cba", b"d")
    assert isinstance(denied, KeyUnavailableError)
    assert "denied" in denied.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import sys; sys.exit('no token\\nin line')", "ended with 1: no token in line"),
        ("print('secret-data')", "is invalid: it is not JSON"),
        ("print('[]')", "is invalid: it is not an object"),
        ("print('{}')", "`items` is not a list of 1"),
        ("print('{\"items\": []}')", "`items` is not a list of 1"),
        ("print('x' * 500_000)", "larger than"),
        ("print('[' * 100_000)", "not JSON"),
    ],
)
def test_failure_names_the_program_and_shows_no_data(tmp_path: Path, text: str, found: str) -> None:
    path = program(tmp_path, text)
    with pytest.raises(KeyUnavailableError) as caught:
        ask(path, "unwrap", [Item("main", b"secret-data", "s")])
    assert found in caught.value.text
    assert path in caught.value.text
    assert "secret-data" not in caught.value.text
    assert caught.value.__cause__ is None


def test_missing_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailableError, match=r"cannot run .*: No such file"):
        list_keys(str(tmp_path / "nothing"))


def test_program_that_hangs_is_killed(tmp_path: Path) -> None:
    path = program(tmp_path, "import signal; print('secret', flush=True); signal.pause()")
    with pytest.raises(KeyUnavailableError, match=r"did not answer within 0\.2 s") as caught:
        ask(path, "wrap", [], timeout_seconds=0.2)
    assert caught.value.__cause__ is None


ITEMS: list[tuple[object, bool]] = [
    ({"data": "YWJj"}, True),
    ({"data": "YWJj", "error": None}, True),
    ({"data": ""}, False),
    ({"data": "!!!!"}, False),
    ({"data": "Y" * 4_000}, False),
    ({"data": 7}, False),
    ({"error": {"a": 1}}, False),
    ([], False),
    (None, False),
]


@pytest.mark.parametrize(("item", "is_good"), ITEMS)
def test_each_item_is_judged_by_itself(item: object, *, is_good: bool) -> None:
    answer = json.dumps({"items": [item, {"data": "ZA=="}]}).encode()
    first, second = outcomes_of("p", answer, 2)
    assert second == b"d"
    assert isinstance(first, bytes) == is_good


def test_fuzzed_answers_are_outcomes_or_refused() -> None:
    random = Random(3)
    good = b'{"items": [{"data": "YWJj"}, {"error": "no"}], "keys": ["main", "\\ud801"]}'
    kinds: set[object] = set()
    for _ in range(5_000):
        data = bytearray(good)
        for _ in range(random.randrange(1, 5)):
            place = random.randrange(len(data))
            data[place : place + random.randrange(2)] = random.randbytes(random.randrange(3))
        for read in (partial(outcomes_of, count=2), keys_of):
            try:
                kinds.add(type(read("p", answer=bytes(data))))
            except KeyUnavailableError:
                kinds.add(KeyUnavailableError)
    assert kinds == {list, KeyUnavailableError, tuple}
