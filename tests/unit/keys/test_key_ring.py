"""All master keys of a broker: sources, changes, and a service asked outside of the loop."""

import queue
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from liftbridge_broker.adapters.keys.ring import MasterKeyRing
from liftbridge_broker.errors import ConfigError, KeyUnavailableError, LiftbridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

HEX = "ab" * 32
SECONDS = 20


class Bed:
    """A ring, and the event loop that it posts to."""

    def __init__(
        self, *, file: str = "", command: str = "", environment: str = "", waiting_max: int = 1_000
    ) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.changes = 0
        self.failures: list[str] = []
        self.ring = MasterKeyRing(
            file=file,
            command=command,
            environment=environment,
            post=self.posted.put,
            on_changed=self._changed,
            on_failed=self.failures.append,
            list_again_seconds=0.01,
            waiting_max=waiting_max,
        )

    def _changed(self) -> None:
        self.changes += 1

    def turn(self) -> None:
        """Wait for one result of the service, and handle it."""
        self.posted.get(timeout=SECONDS)()

    @property
    def ids(self) -> list[str]:
        return [key.key_id for key in self.ring.known]


def test_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {HEX}\n")
    bed = Bed(file=str(path))
    assert bed.ids == ["a"]
    bed.ring.renew()
    assert bed.changes == 0
    path.write_text(f"b {HEX}\na {HEX}\n")
    bed.ring.renew()
    assert (bed.ids, bed.changes) == (["b", "a"], 1)
    path.write_text("b\n")
    with pytest.raises(ConfigError, match="line 1"):
        bed.ring.renew()
    assert (bed.ids, bed.changes) == (["b", "a"], 1)


def test_key_that_is_nowhere_is_named() -> None:
    outcomes: list[bytes | LiftbridgeError] = []
    Bed().ring.unwrap("k", b"x", "s", outcomes.append)
    assert isinstance(outcomes[0], KeyUnavailableError)
    assert "'k' is not configured" in outcomes[0].text


PROGRAM = """
import json, pathlib, sys
request = json.load(sys.stdin)
if pathlib.Path("{folder}/sealed").exists():
    sys.exit("sealed")
with open("{folder}/sizes", "a") as sizes:
    print(len(request.get("items", ())), file=sizes)
items = [{{"data": one["data"]}} for one in request.get("items", ())]
json.dump({{"keys": ["s"], "items": items}}, sys.stdout)
"""


def program(folder: Path) -> str:
    """Return a program that gives data keys back as they are, unless a file says it is sealed."""
    path = folder / "keys"
    path.write_text(f"#!{sys.executable} -IS\n" + PROGRAM.format(folder=folder))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_service_is_asked_outside_of_the_loop_for_many_keys_at_once(tmp_path: Path) -> None:
    bed = Bed(command=program(tmp_path), environment="e" * 16)
    bed.ring.begin()
    bed.turn()
    assert (bed.ids[1:], bed.changes) == (["s"], 1)
    outcomes: list[bytes | LiftbridgeError] = []
    wanted = [b"%03d" % number for number in range(250)]
    for data in wanted:
        bed.ring.unwrap("s", data, "s", outcomes.append)
    assert outcomes == []
    while len(outcomes) < len(wanted):
        bed.turn()
    assert outcomes == wanted
    bed.ring.wrap("s", b"ab", "s", outcomes.append)
    bed.turn()
    assert outcomes[-1] == b"ab"
    sizes = [int(size) for size in (tmp_path / "sizes").read_text().split()]
    assert max(sizes) == 100
    assert len(sizes) <= 6
    bed.ring.shut_down()


def test_failing_service_is_reported_and_asked_again(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.touch()
    bed = Bed(command=program(tmp_path))
    bed.ring.begin()
    bed.turn()
    (failure,) = bed.failures
    assert "ended with 1: sealed" in failure
    outcomes: list[bytes | LiftbridgeError] = []
    bed.ring.unwrap("s", b"x", "s", outcomes.append)
    while not outcomes:
        bed.turn()
    assert isinstance(outcomes[0], KeyUnavailableError)
    sealed.unlink()
    while not bed.ids:
        bed.turn()
    assert bed.ids == ["s"]
    bed.ring.shut_down()


def test_requests_are_bounded() -> None:
    outcomes: list[bytes | LiftbridgeError] = []
    Bed(command="program", waiting_max=0).ring.unwrap("s", b"x", "s", outcomes.append)
    assert isinstance(outcomes[0], KeyUnavailableError)
    assert "0 requests wait for the key service already" in outcomes[0].text
