"""Parts of the command: values, formats, errors, profiles, examples, what is printed."""

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from liftbridge_client import Message, Start, Stop, errors
from liftbridge_client.admin_model import broker_of
from liftbridge_client.cli import cluster, exits, formats, profiles, values
from liftbridge_client.cli.examples import EXAMPLES
from liftbridge_client.cli.local import demo
from liftbridge_client.cli.local.dev import Seen, View, table
from liftbridge_client.cli.output import Form, Printer, Shape, schema
from liftbridge_client.cli.patience import awaiting
from liftbridge_client.cli.subscribe import MessageRow, line, row
from liftbridge_client.model import PartitionBounds
from liftbridge_proto.ext.v1 import admin_pb2

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MESSAGE = Message(
    7, b"key", b"\xffv", 1_795_262_163_435_945_677, "s", 2, "a.b", "", {"h": b"1", "i": b"2"}
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFoundError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.FullError("x"), 2),
        (errors.RetriableError("x"), 3),
        (errors.ServerError("x"), 3),
        (errors.AckTimeoutError("x"), 4),
        (errors.CallTimeoutError("x"), 4),
        (errors.OutcomeUnknownError("x"), 4),
        (ExceptionGroup("g", [ExceptionGroup("h", [errors.NotFoundError("x")])]), 1),
        (typer.BadParameter("x"), 2),
        (FileNotFoundError(2, "No such file", "f"), 3),
        (ZeroDivisionError("two\nlines"), 3),
    ],
)
def test_every_error_has_one_line_and_a_stable_exit_code(error, code):
    text, found = exits.line_and_code(error)
    assert found == code
    assert text.startswith("liftbridge: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta()),
        ("500ms", timedelta(milliseconds=500)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_are_read(text, expected):
    assert values.duration(text) == expected


@pytest.mark.parametrize("text", ["", "7", "d", "7x", "7d ", "-7d", "1.5h", "99999999999d", "٣d"])
def test_wrong_duration_is_refused(text):
    with pytest.raises(typer.BadParameter):
        values.duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1kB", 1000), ("1KiB", 1024), ("2GiB", 2**31), ("5m", 5 * 10**6)],
)
def test_sizes_are_read(text, expected):
    assert values.size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5M", "1XB", "9999999TiB"])
def test_wrong_size_is_refused(text):
    with pytest.raises(typer.BadParameter):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Start.earliest()),
        ("latest", Start.latest()),
        ("new", Start.new()),
        ("17", Start.at(17)),
        ("-10m", Start.time(NOW - timedelta(minutes=10))),
        ("2026-11-21T11:00:00Z", Start.time(NOW - timedelta(hours=1))),
    ],
)
def test_start_positions_are_read(text, expected):
    assert values.start(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("end", Stop.latest()),
        ("never", Stop.never()),
        ("17", Stop.at(17)),
        ("-1h", Stop.time(NOW - timedelta(hours=1))),
    ],
)
def test_stop_positions_are_read(text, expected):
    assert values.stop(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "x", "-17", "9223372036854775808", "yesterday"])
def test_wrong_position_is_refused(text):
    with pytest.raises(errors.UsageError):
        values.start(text, NOW)
    with pytest.raises(errors.UsageError):
        values.stop(text, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%p:%o %k\n", b"2:7 key\n"),
        (r"%v%s\t\0\\", b"\xffv\xffv\t\0\\"),
        ("%v{hex} %k{base64}", b"ff76 a2V5"),
        ("%t %n %T", b"s a.b 1795262163435945677"),
        ("%d", b"2026-11-21T11:56:03.435945+00:00"),
        ("%h %K %S %%", b"h=1,i=2 3 2 %"),
    ],
)
def test_formats_are_filled_in(text, expected):
    assert formats.compile_format(text)(MESSAGE) == expected


@pytest.mark.parametrize("text", ["%x", "%", "\\", "\\x", "%k{rot13}"])
def test_wrong_format_is_refused(text):
    with pytest.raises(errors.UsageError, match="--format"):
        formats.compile_format(text)


def test_message_that_is_no_text_is_shown_in_base64():
    shown = row(MESSAGE)
    assert (shown.encoding, shown.key, shown.value) == ("base64", "a2V5", "/3Y=")
    plain = row(MESSAGE._replace(value=b"v"))
    assert (plain.encoding, plain.key, plain.value) == ("utf-8", "key", "v")
    assert line(plain).endswith("key  v")


def test_schema_tells_every_field_of_a_row():
    found = schema(MessageRow)
    assert found["required"] == list(MessageRow._fields)
    assert found["properties"]["headers"] == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "folder" / "profiles.toml"))
    return tmp_path / "folder" / "profiles.toml"


def test_user_without_a_home_has_no_profiles_and_is_told_where_one_is_written(monkeypatch):
    for name in ("HOME", "XDG_CONFIG_HOME", "LIFTBRIDGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 64_999)  # a user of containers, without an entry
    assert profiles.choose(servers=None, profile=None).servers == profiles.SERVERS_DEFAULT
    with pytest.raises(errors.UsageError, match="set HOME"):
        profiles.store(profiles.Profiles("", {}))


def test_profiles_come_back_as_they_were_stored(config):
    known = profiles.Profiles(
        "b", {"a": profiles.Profile("x:1", ca="/ca"), "b": profiles.Profile()}
    )
    profiles.store(known)
    assert profiles.load() == known
    assert config.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in config.parent.iterdir()] == ["profiles.toml"]


def test_connection_is_chosen_from_the_narrowest_place(config):
    assert profiles.choose(servers=None, profile=None).servers == profiles.SERVERS_DEFAULT
    by_name = {"a": profiles.Profile("x:1", tls=True), "b": profiles.Profile("y:1")}
    profiles.store(profiles.Profiles("b", by_name))
    assert profiles.choose(servers=None, profile=None).servers == "y:1"
    assert profiles.choose(servers=None, profile="a").servers == "x:1"
    assert profiles.choose(servers="z:1", profile="a") == profiles.Profile("z:1", tls=True)
    assert profiles.choose(servers="z:1", profile=None) == profiles.Profile("z:1")
    with pytest.raises(errors.UsageError, match="no such profile: c"):
        profiles.choose(servers=None, profile="c")


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "profiles = 1",
        "current = 1",
        "[profiles]\na = 1",
        "[profiles.a]\nx = 1",
        "[profiles.a]\nservers = 1",
        "[profiles.a]\nservers = ':'",
    ],
)
def test_profile_file_that_is_not_understood_is_refused(config, text):
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(errors.UsageError):
        profiles.load()


def test_demo_notices_whatever_is_wrong():
    lines = [demo.Line(b"f", b"1"), demo.Line(b"f", b"2"), demo.Line(b"g", b"1")]
    assert demo.compare(lines, [lines[2], lines[0], lines[1]]) == (0, 0, 0)
    assert demo.compare(lines, lines[:2]).missing == 1
    assert demo.compare(lines, [*lines, lines[2]]).repeated == 1
    assert demo.compare(lines, [lines[1], lines[0], lines[2]]).misplaced == 2
    assert demo.compare([], lines).repeated == 3


def test_live_view_shows_rates_between_two_looks():
    shown = table({"s": Seen(1, 300, 300, 2**20)}, {"s": Seen(1, 100, 100, 0)}, 2.0)
    cells = [list(column.cells)[-1] for column in shown.renderables[1].columns[1:]]
    assert cells == ["1", "300", "100", "1.0"]


class Pictures:
    """A live view that keeps what it was given, as text."""

    def __init__(self):
        self.shown = []

    def update(self, shown, *, refresh):
        assert refresh
        out = Console(width=200, file=StringIO())
        out.print(shown)
        self.shown.append(out.file.getvalue())


async def test_live_view_says_why_its_figures_are_old():
    async def describe():
        for name in names:
            yield SimpleNamespace(name=name)

    async def bounds():
        if pictures.shown:
            clock[0] += 3.0  # as long as the broker did not answer
            raise errors.RetriableError("partition orders/2 has no leader")
        return [PartitionBounds(0, 0, 7, 7, 1, 1, (), None, 0, 0)]

    async def metadata():
        return SimpleNamespace(brokers={})

    clock, names = [100.0], ["__cursors", "orders"]
    pictures = Pictures()
    streams = SimpleNamespace(describe=describe, get=lambda _name: SimpleNamespace(bounds=bounds))
    client = SimpleNamespace(streams=streams, metadata=metadata)
    view = View(client, pictures, SimpleNamespace(brokers=[None]), lambda: clock[0])
    await view.refresh()
    await view.refresh()
    first, second = pictures.shown
    assert "orders" in first
    assert "__cursors" not in first
    assert "old" not in first
    assert "orders" in second
    assert "figures are 3 s old: partition orders/2 has no leader." in second


async def test_wait_that_takes_long_is_told_until_it_ends():
    told, twice = [], asyncio.Event()

    def tell(text):
        told.append(text)
        if len(told) == 2:
            twice.set()

    async with asyncio.timeout(60), awaiting("acks", every=0.001, report=tell):
        await twice.wait()
    assert told == ["liftbridge: still waiting for acks after 0 s"] * 2
    assert len(asyncio.all_tasks()) == 1


def test_broker_is_shown_with_all_its_addresses_as_they_are_connected_to():
    told = admin_pb2.BrokerDescription(broker="b", host="2001:db8::1", port=9292)
    told.listeners.add(name="outside", host="2001:db8::2", port=30_392)
    told.listeners.add(name="secure", host="b.example", port=443)
    row_ = cluster.row_of(broker_of(told))
    assert row_.address == "[2001:db8::1]:9292"
    assert row_.listeners == ["outside=[2001:db8::2]:30392", "secure=b.example:443"]


def test_examples_are_command_lines_of_known_topics():
    assert all("liftbridge " in example.command for example in EXAMPLES)
    assert len({example.command for example in EXAMPLES}) == len(EXAMPLES)


def test_rows_with_columns_of_their_own_are_printed_in_every_form(capsys):
    shape = Shape(Mapping[str, object], is_many=True)
    assert shape.schema()["items"] == {"type": "object", "additionalProperties": {}}
    rows = [{"how many": 10, "what": None}, {"how many": 2, "what": "x"}]
    told = {
        Form.TABLE: "HOW MANY  WHAT\n      10  -   \n       2  x   \n",
        Form.JSON: '[\n{"how many": 10, "what": null},\n{"how many": 2, "what": "x"}\n]\n',
        Form.JSONL: '{"how many": 10, "what": null}\n{"how many": 2, "what": "x"}\n',
    }
    for form, text in told.items():
        printer = Printer(shape, form)
        for one in rows:
            printer.row(one)
        printer.end()
        assert capsys.readouterr().out == text
    Printer(shape, Form.TABLE).end()
    assert capsys.readouterr().out.strip() == ""
