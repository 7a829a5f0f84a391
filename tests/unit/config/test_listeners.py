"""Further listeners: put together by name, and refused with a reason when they cannot be."""

import pytest

from liftbridge_broker.config.listeners import read_addresses
from liftbridge_broker.config.load import load
from liftbridge_broker.config.options import ListenerOptions
from liftbridge_broker.config.reload import reloadable_diff, reloaded
from liftbridge_broker.config.values import Address
from liftbridge_broker.errors import ConfigError

ANY = "0.0.0.0"  # noqa: S104 - what an address without a host means
OUT = {"listeners": "out=:9392"}


def listeners(**flags: str) -> tuple[ListenerOptions, ...]:
    given = {key.replace("_", "."): text for key, text in flags.items()}
    return load(flags=given, environ={}, path=None).listeners


def test_without_settings_there_are_none() -> None:
    options = load(flags={}, environ={}, path=None)
    assert options.listeners == ()
    assert options.listen.has_tls is False


def test_listeners_come_from_files_in_both_spellings(tmp_path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("listeners: [out=:9392, 'in=127.0.0.1:9492']\nlisteners.advertised: out=h:1\n")
    found = load(flags={}, environ={}, path=str(path)).listeners
    assert [(one.name, one.host, one.port, one.advertised) for one in found] == [
        ("out", ANY, 9392, ("h", 1)),
        ("in", "127.0.0.1", 9492, ("127.0.0.1", 0)),
    ]


@pytest.mark.parametrize(
    ("flags", "advertised"),
    [
        ({}, ("localhost", 0)),
        ({"host": "b1"}, ("b1", 0)),
        ({"host": "b1", "listeners_host": "node"}, ("node", 0)),
        ({"host": "b1", "listeners_advertised": "out=node:30392"}, ("node", 30392)),
        ({"host": "b1", "listeners_advertised": "out=:30392"}, ("b1", 30392)),
        ({"listeners_host": "node", "listeners_advertised": "out=:30392"}, ("node", 30392)),
        ({"listeners": "out=10.0.0.1:1", "host": "b1"}, ("10.0.0.1", 0)),
        ({"listeners": "out=10.0.0.1:1", "listeners_host": "node"}, ("node", 0)),
        ({"listeners_advertised": "out=[fd00::1]:5"}, ("fd00::1", 5)),
    ],
)
def test_clients_are_told_the_nearest_host_that_is_one(flags, advertised) -> None:
    (found,) = listeners(**({"listeners": "out=:9392"} | flags))
    assert found.advertised == advertised


@pytest.mark.parametrize(
    ("flags", "main", "others"),
    [
        ({}, False, [False, False]),
        ({"tls_cert": "c", "tls_key": "k"}, True, [True, True]),
        ({"tls_cert": "c", "tls_key": "k", "listen_tls": "false"}, False, [True, True]),
        ({"tls_cert": "c", "tls_key": "k", "listeners_plain": "a"}, True, [False, True]),
        ({"tls_cert": "c", "tls_key": "k", "listeners_plain": "b,a"}, True, [False, False]),
        ({"listeners_plain": "b"}, False, [False, False]),
    ],
)
def test_tls_is_on_everywhere_but_where_it_is_turned_off(flags, main, others) -> None:
    given = {"listeners": "a=:1,b=:2"} | {k.replace("_", "."): v for k, v in flags.items()}
    options = load(flags=given, environ={}, path=None)
    assert options.listen.has_tls is main
    assert [one.has_tls for one in options.listeners] == others


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"listeners": "9392"}, "--set: listeners is invalid: '9392' is not a name and an"),
        ({"listeners": "Out=:1"}, "'Out=:1' is not a name and an address"),
        ({"listeners": "-a=:1"}, "'-a=:1' is not a name"),
        ({"listeners": "=:1"}, "'=:1' is not a name"),
        ({"listeners": f"{'a' * 41}=:1"}, "is not a name"),
        ({"listeners": "out=:x"}, "'out=:x' is not an address such as"),
        ({"listeners": "out=:1,out=:2"}, "out is listed twice"),
        (
            {"listeners": ",".join(f"l{number}=:{number + 1}" for number in range(9))},
            "listeners has 9 entries, at most 8 are allowed",
        ),
        ({"listeners": "a=:7,b=:7"}, "listeners gives b port 7, which a already uses"),
        ({"listeners": "a=:9292"}, "listeners gives a port 9292, which listen already uses"),
        (
            {"listeners": "a=:5", "metrics.listen": "127.0.0.1:5"},
            "which metrics.listen already uses",
        ),
        (
            {"listeners": "a=127.0.0.1:5", "admin.listen": "127.0.0.1:5"},
            "which admin.listen already uses",
        ),
        ({"listeners.advertised": "out=h:1"}, "names 'out', which is not in listeners"),
        ({"listeners": "out=:1", "listeners.advertised": "out"}, "is not a name and an address"),
        (
            {"listeners": "out=:1", "listeners.plain": "in"},
            "listeners.plain names 'in', which is not in listeners",
        ),
        ({"listen.tls": "true"}, "listen.tls needs tls.cert and tls.key"),
        (
            OUT | {"listeners.advertised": "out=h:1", "listeners.advertised.file": "f"},
            "listeners.advertised cannot be set together with listeners.advertised.file",
        ),
        (OUT | {"listeners.host": "h" * 256}, "is longer than 255 characters"),
    ],
)
def test_what_cannot_be_is_refused(flags, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(flags=flags, environ={}, path=None)


@pytest.mark.parametrize(
    "flags",
    [
        {"listeners": "a=:0,b=:0", "metrics.listen": ":0"},
        {"listeners": "a=127.0.0.1:5,b=127.0.0.2:5"},
        {"listeners": "a=:9393", "metrics.listen": "off"},
    ],
)
def test_what_does_not_meet_may_have_one_port(flags) -> None:
    assert load(flags=flags, environ={}, path=None).listeners


def test_a_reload_takes_addresses_for_clients_and_nothing_else() -> None:
    old = load(flags={"listeners": "a=:1,b=:2"}, environ={}, path=None)
    flags = {"listeners": "b=:3,c=:4", "listeners.advertised": "b=h:9"}
    new = load(flags=flags, environ={}, path=None)
    merged = reloaded(old, new)
    assert [(one.name, one.port, one.advertised) for one in merged.listeners] == [
        ("a", 1, ("localhost", 0)),
        ("b", 2, ("h", 9)),
    ]
    difference = reloadable_diff(old, new)
    assert [change.key for change in difference.applied] == ["listeners.advertised"]
    assert [change.key for change in difference.restart_needed] == ["listeners"]


def test_addresses_are_read_by_name() -> None:
    assert read_addresses(["a=h:1", "b=:2"]) == {"a": Address("h", 1), "b": Address(ANY, 2)}
