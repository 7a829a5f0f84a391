"""Whatever the file of profiles is, a command ends at once and says which place in it is wrong."""

import os

import pytest

from liftbridge_client.cli import profiles
from liftbridge_client.cli.app import run

GOOD = b'[profiles.a]\nservers = "a:1"\n'
READ = {
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "lines of Windows": GOOD.replace(b"\n", b"\r\n"),
    "many": b"".join(GOOD.replace(b".a]", b".a%d]" % number) for number in range(3_000)),
}
VALUES = (b"5", b"1.5", b"nan", b"[]", b"{}", b"2020-01-01", b'"x:y"', b'""', b"true")
WRONG = {
    "no TOML": (b"servers: a", "must be TOML"),
    "too deep": (b"a = " + b"[" * 3_000, "must be TOML"),
    "not UTF-8": (b"\xff\xfe[", "must be a text file in UTF-8"),
    "twice": (GOOD + GOOD, "twice"),
    "top key": (b'servers = "a:1"\n', "unknown key 'servers'"),
    "unknown key": (b"[profiles.a]\nserver = 1\n", "profiles.a.server: unknown key"),
    "port": (b'[profiles.a]\nservers = "a:99999"\n', "profiles.a.servers: address 'a:99999'"),
    "current": (b"current = 5\n", "`current` must be a name"),
    "table": (b"profiles = 5\n", "`profiles` a table"),
    "profile": (b"profiles.a = 5\n", "profiles.a 5: must be a table"),
}
FLAGS = ("tls", "plain_token")
TYPES = {
    f"{key} {value[:9].decode()}": (
        b"[profiles.a]\n%b = %b\n" % (key.encode(), value),
        f"profiles.a.{key}",
    )
    for key in profiles.Profile._fields
    for value in VALUES
    if not (value.startswith(b'"') and key not in ("servers", "admin", *FLAGS))
    if not (key in FLAGS and value == b"true")
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    path = tmp_path / "profiles.toml"
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(path))
    return path


def told(capsys, place, *words):
    """The one line of a command that is refused."""
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(place) in err
    assert not [word for word in ("Errno", "codec", "BUG", "Traceback") if word in err], err
    return err


@pytest.mark.parametrize("case", READ)
def test_what_can_be_read_is_read(place, case):
    place.write_bytes(READ[case])
    assert run(["profile", "list"]) == 0


@pytest.mark.parametrize("case", [*WRONG, *TYPES])
def test_what_is_wrong_is_told_with_its_place(place, capsys, case):
    content, words = {**WRONG, **TYPES}[case]
    place.write_bytes(content)
    for command in (["profile", "list"], ["streams"], ["profile", "add", "b"]):
        assert words in told(capsys, place, *command)
    assert place.read_bytes() == content


def test_what_is_no_file_is_told(place, capsys):
    place.mkdir()
    assert "cannot be read: Is a directory" in told(capsys, place, "profile", "list")
    place.rmdir()
    os.mkfifo(place)
    assert "must be a file, but is a pipe" in told(capsys, place, "profile", "list")


def test_current_profile_that_is_not_there_is_told_with_the_file(place, capsys):
    place.write_bytes(b'current = "gone"\n' + GOOD)
    line = told(capsys, place, "streams")
    assert "no such profile: gone, which is the current one in" in line
    assert "known: a" in line


def test_files_of_a_profile_are_those_beside_it(place):
    place.write_bytes(
        b'[profiles.a]\nca = "ca.crt"\ntoken_file = "../token"\nkey = "/etc/key.pem"\n'
    )
    found = profiles.load().by_name["a"]
    assert found.ca == str(place.parent / "ca.crt")
    assert found.token_file == str(place.parent / "../token")
    assert (found.key, found.cert) == ("/etc/key.pem", "")
