"""Actions of a Delta log: round trip, and nothing believed that is not as it must be."""

import copy
import io
import json
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_liftbridge.archive.delta_log import checkpoint, delta
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import ArchiveError, DamagedError, UnsupportedTableError
from pyspark_liftbridge.source.schema import COLUMNS

STATS = delta.Stats(3, (1, 1), (5, 8), ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"))
RUN = delta.Run(
    "run-1",
    (delta.Span(1, 5, 9),),
    (delta.Span(1, 3, 5),),
    (delta.Span(2, 4, 4),),
    {"billing": {0: 7}},
)
ACTIONS = (
    delta.CommitInfo(1_000, "ARCHIVE", delta.ENGINE, RUN),
    delta.Versions(),
    delta.Metadata("id", {delta.STREAM: "orders", delta.STREAM_ID: "7"}, 1_000),
    delta.Txn("liftbridge/7/1", 9, 1_000),
    delta.Add(
        path="data/1/2026-01-01/5-9-a.parquet",
        size=100,
        modified_ms=1_000,
        is_change=True,
        stats_text=STATS.text(),
        stats=STATS,
        origin=delta.Origin(1, 5, 9, Digest(3, 1, 2)),
        tags={"other": "tag"},
    ),
    delta.Remove("data/1/2026-01-01/1-2-b.parquet", 1_000, is_change=True, size=5),
)
LINES = [json.loads(line) for line in delta.encode(ACTIONS).splitlines()]
WRONG: list[object] = [
    None, True, -1, 0, 3, 1.5, 2**63, 10**400, "", "x", "\ud800", "/etc/passwd", "../up", "s3://b/x",
    [], [1], {}, {"a": 1}, {"0": -1}, [[[]]] * 3, "[" * 5_000, "9" * 5_000, "\x00", "a/../b",
]  # fmt: skip


def paths(found, at=()):
    """Where every value of a JSON text stands."""
    yield at
    if isinstance(found, dict):
        for name, inner in found.items():
            yield from paths(inner, (*at, name))
    elif isinstance(found, list):
        for number, inner in enumerate(found):
            yield from paths(inner, (*at, number))


def changed(found, at, value):
    """The same with another value in one place; without it when the value is `...`."""
    whole = copy.deepcopy(found)
    inner = whole
    for name in at[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return whole


def refusal(data):
    """What a refusal says; empty when it is an entry that can be written and read again."""
    try:
        actions = delta.decode(data, 42)
    except ArchiveError as error:
        return str(error)
    assert delta.decode(delta.encode(actions), 42) == actions
    return ""


def is_refused(line):
    """Whether a line is refused, by an error of ours that tells where."""
    told = refusal(json.dumps(line).encode())
    assert told[:8] in ("", "entry 42")
    return told != ""


def test_actions_come_back_as_they_were():
    assert delta.decode(delta.encode(ACTIONS), 0) == ACTIONS


def test_columns_are_those_of_the_data_source():
    assert [(one.name, one.kind, one.is_nullable) for one in COLUMNS] == [
        (one.name, one.type, one.nullable) for one in SCHEMA
    ]


@pytest.mark.parametrize("line", LINES, ids=lambda line: next(iter(line)))
def test_every_value_is_checked_wherever_it_stands(line):
    refused = 0
    for at in paths(line):
        for value in [*WRONG, ...]:
            if at:
                refused += is_refused(changed(line, at, value))
    assert refused > 30


@pytest.mark.parametrize("line", LINES, ids=lambda line: next(iter(line)))
def test_text_within_text_is_checked_too(line):
    (name, members) = next(iter(line.items()))
    for inner in ("stats", "schemaString"):
        if inner not in members:
            continue
        text = json.loads(members[inner])
        refused = 0
        for at in paths(text):
            for value in [*WRONG, ...] if at else []:
                mutated = json.dumps(changed(text, at, value))
                refused += is_refused(changed(line, (name, inner), mutated))
        assert refused > 30
    assert not is_refused(line)


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (("add", "size"), -1, "entry 42, line 1, add: size must be a whole number of 0 to"),
        (("add", "path"), "../x", "path must be a path below the table, it is '../x'"),
        (("add", "path"), "%2e%2e/x", "path must be a path below the table"),
        (("add", "path"), "S3://b/x", "path must be a path below the table"),
        (("add", "dataChange"), 1, "dataChange must be true or false, it is 1"),
        (("add", "partitionValues"), {"day": "1"}, "an archive has no partition columns"),
        (("add", "tags", "liftbridge.end"), "5", "5 to 5 is not a range of a partition"),
        (("add", "tags", "liftbridge.digest"), "x", "range and digest must be numbers"),
        (("txn", "version"), True, "version must be a whole number"),
        (("metaData", "partitionColumns"), ["day"], "an archive has no partition columns"),
        (("metaData", "configuration"), {}, "liftbridge.stream, and a number as"),
        (("metaData", "schemaString"), "{}", "schemaString must be that of an archive"),
        (("metaData", "format", "provider"), "orc", "format must be parquet"),
        (("commitInfo", "liftbridge", "runId"), None, "runId must be a text"),
        (("commitInfo", "liftbridge", "ranges", 0, "end"), 5, "ranges 0: end must be"),
        (("commitInfo", "liftbridge", "cursors", "billing"), {"x": 1}, "numbers of partitions"),
    ],
)
def test_error_names_place_field_rule_and_value(at, value, text):
    (line,) = [line for line in LINES if at[0] in line]
    with pytest.raises(DamagedError) as caught:
        delta.decode(json.dumps(changed(line, at, value)).encode(), 42)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}, "reader 3 and writer 7"),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}, "another writer has raised"),
        ({"domainMetadata": {"domain": "x"}}, "not part of Delta reader 1 and writer 2"),
        ({"add": {**LINES[4]["add"], "deletionVector": {"storageType": "u"}}}, "need reader 3"),
    ],
)
def test_later_protocol_is_refused_as_such(line, text):
    with pytest.raises(UnsupportedTableError) as caught:
        delta.decode(json.dumps(line).encode(), 0)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"\xff",
        b'{"add":{},"txn":{}}',
        b'{"txn":{"appId":"a","appId":"b","version":1}}',
        b'{"txn":{"appId":"a","version":NaN}}',
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n\n{"txn":{}}',
        b"\n" * (delta.ENTRY_ACTIONS_MAX + 2),
    ],
)
def test_what_is_no_entry_is_refused(data):
    with pytest.raises(DamagedError, match="entry 3"):
        delta.decode(data, 3)


def test_entry_cut_anywhere_is_refused_or_ends_with_a_whole_action():
    data = delta.encode(ACTIONS)
    whole = 0
    for end in range(len(data)):
        try:
            found = delta.decode(data[:end], 0)
        except DamagedError:
            continue
        assert found == ACTIONS[: len(found)]
        whole += 1
    assert whole == 2 * len(ACTIONS) - 1


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_refused_by_an_error_of_ours(data):
    assert refusal(data)[:8] in ("", "entry 42")


def test_checkpoint_comes_back_as_it_was():
    state = [one for one in ACTIONS if not isinstance(one, delta.CommitInfo)]
    assert checkpoint.decode(checkpoint.encode(state)) == tuple(state)


def test_damaged_checkpoint_is_refused_or_read_as_actions():
    """Parquet has no checksum here: what can be read must hold to the same rules at least."""
    state = [one for one in ACTIONS if not isinstance(one, delta.CommitInfo)]
    data = checkpoint.encode(state)
    random = Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            found = checkpoint.decode(bytes(damaged))
        except ArchiveError:
            refused += 1
        else:
            assert delta.decode(delta.encode(found), 0) == found
    for end in range(0, len(data), 7):
        with pytest.raises(DamagedError):
            checkpoint.decode(data[:end])
    assert refused > 50


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [
        ("add", "size", -1),
        ("add", "path", "../x"),
        ("add", "partitionValues", {"day": "1"}),
        ("txn", "version", -5),
        ("protocol", "minReaderVersion", 0),
        ("metaData", "configuration", {}),
        ("remove", "path", "/x"),
    ],
)
def test_wrong_value_in_a_checkpoint_is_refused(name, member, value):
    table = pq.read_table(io.BytesIO(checkpoint.encode(ACTIONS[1:])))
    rows = table.to_pylist()
    for row in rows:
        if row[name] is not None:
            row[name][member] = value
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, table.schema), sink)
    with pytest.raises(DamagedError, match=rf"row \d, {name}.*{member} must be"):
        checkpoint.decode(sink.getvalue())
