"""Whatever is damaged in an archive, it is told by an error of ours, in one clear line."""

import copy
import io
import json
from itertools import count
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftbridge_testkit.archive_runs import NOW_MS, MemoryStore, records
from liftbridge_testkit.fuzzing import Fuzz
from pyspark_liftbridge.archive import gc
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import checkpoint, delta, log
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import ArchiveError
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.archive.verify import verify

ROUNDS = 1_500
ENTRIES = 4
LATER_MS = NOW_MS + 10 * gc.AGE_MS_MIN
WORDS = (
    b"null", b"true", b"-1", b"1e400", b"NaN", b"18446744073709551616", b'""', b"{}", b"[]",
    b'"\\ud800"', b'"../x"', b"\\u0000", b"\xff", b"\n", b'{"add":', b'"path"', b"}", b"[" * 2_000,
    b'"liftbridge.end"',
)  # fmt: skip
WRONG: tuple[object, ...] = (
    None, True, -1, 0, 2**63, 10**400, 0.5, "", "x", "\ud800", "../up", "/etc", "s3://b/x", "\x00",
    "%2e%2e", [], [1], {}, {"a": 1}, {"0": -1}, [[]], "9" * 5_000, "1:0:0", "2026-13-45T99:00:00Z",
)  # fmt: skip


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """A table of real files: entries, a checkpoint, and what points to it."""
    store = MemoryStore()
    table = open_table(store, "orders", 7, Making("id", NOW_MS))
    snapshot = table.snapshot
    names = map(str, count())
    for at in range(ENTRIES):
        span = delta.Span(0, at * 40, at * 40 + 40)
        place, chance = Place("orders", 7, span), Chance(lambda: next(names), NOW_MS)
        written = write_files(table.store, place, [records(range(*span[1:]))], chance)
        claim = Claim((written,))
        proposal = Proposal(
            run_id=f"{at}",
            stream_id=7,
            claims=[claim],
            cursors={"billing": {0: at}},
            now_ms=NOW_MS,
        )
        snapshot = commit(table.store, snapshot, proposal).snapshot
        if at == ENTRIES // 2:
            snapshot = log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)
    return {path.removeprefix("orders/"): data for path, data in store.objects.items()}


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes with a few changes of any kind."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(found) + 1)
        match random.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << random.randrange(8)
            case 1:
                del found[at : at + random.randint(1, 20)]
            case 2:
                found[at:at] = random.choice(WORDS)
            case 3:
                end = at + random.randint(1, 12)
                found[at:end] = random.choice(WORDS)
            case _:
                start = random.randrange(len(found) + 1)
                found[at:at] = found[start : start + random.randint(1, 60)]
    return bytes(found)


def places(found, at=()):
    """Where every value of a JSON text stands."""
    yield at
    inner = found.items() if isinstance(found, dict) else ()
    inner = enumerate(found) if isinstance(found, list) else inner
    for name, value in inner:
        yield from places(value, (*at, name))


def with_other_values(random: Random, found):
    """The same with a few values changed, whole objects among them."""
    whole = copy.deepcopy(found)
    for _ in range(random.randint(1, 3)):
        at = random.choice(list(places(whole))[1:] or [()])
        inner = whole
        for name in at[:-1]:
            inner = inner[name]
        if at:
            inner[at[-1]] = copy.deepcopy(random.choice(WRONG))
    return whole


def told(act) -> str:
    """What an error of ours says, empty when there is none."""
    try:
        act()
    except ArchiveError as error:
        text = str(error)
        assert text.strip() != ""
        assert len(text) < 2_000
        assert "\n" not in text
        return text
    return ""


def check_actions(actions) -> None:
    """What was read of a damaged entry can be written, and is read as the same."""
    assert delta.decode(delta.encode(actions), 0) == tuple(actions)


def test_damaged_entries_are_refused_or_hold_to_the_rules(
    objects: dict[str, bytes], fuzz: Fuzz
) -> None:
    entries = [data for path, data in objects.items() if path.endswith(".json")]
    refused = 0
    for random in fuzz.rounds(20261124, 4 * ROUNDS):
        data = random.choice(entries)
        if random.random() < 0.5:
            data = damaged(random, data)
        else:
            lines = [json.loads(line) for line in data.splitlines()]
            at = random.randrange(len(lines))
            lines[at] = with_other_values(random, lines[at])
            data = "\n".join(map(json.dumps, lines)).encode()
        refused += told(lambda data=data: check_actions(delta.decode(data, 3))) != ""
    assert 0 < refused < fuzz.count


def test_damaged_checkpoints_are_refused_or_hold_to_the_rules(
    objects: dict[str, bytes], fuzz: Fuzz
) -> None:
    (data,) = [data for path, data in objects.items() if path.endswith("checkpoint.parquet")]
    whole = pq.read_table(io.BytesIO(data))
    rows = whole.to_pylist()
    refused = 0
    for random in fuzz.rounds(20261125, ROUNDS):
        found = damaged(random, data)
        if random.random() < 0.5:
            found = rewritten(random, whole.schema, rows) or found
        refused += told(lambda found=found: check_actions(checkpoint.decode(found))) != ""
    assert 0 < refused < fuzz.count


def rewritten(random: Random, schema: pa.Schema, rows) -> bytes | None:
    """A sound Parquet file with wrong values, `None` for values that none can hold."""
    changed = with_other_values(random, rows)
    sink = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(changed, schema), sink)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
        return None
    return sink.getvalue()


def test_damage_anywhere_in_an_archive_is_told_by_all_that_read_it(
    objects: dict[str, bytes], fuzz: Fuzz
) -> None:
    """Files with their footers, ranges and digests, entries, checkpoints, and the hint."""
    noticed = 0
    for random in fuzz.rounds(20261126, ROUNDS // 10):
        store = MemoryStore()
        store.objects = dict(objects)
        path = random.choice(sorted(objects))
        if random.random() < 0.1:
            del store.objects[path]
        else:
            store.objects[path] = damaged(random, objects[path])
        findings = list(verify(store))
        assert not any("\n" in one.text for one in findings)
        errors = [
            told(lambda store=store: log.load(store)),
            told(lambda store=store: gc.orphans(store, now_ms=LATER_MS)),
        ]
        assert any(errors) <= bool(findings), "what cannot be read is a finding"
        noticed += bool(findings)
    assert noticed > fuzz.count // 3


def test_digests_are_read_as_they_were_written_or_not_at_all(fuzz: Fuzz) -> None:
    whole = Digest(3, 0xABC, 0xDEF).text()
    for random in fuzz.rounds(20261127, ROUNDS):
        text = damaged(random, whole.encode()).decode("latin-1")
        found = Digest.parse(text)
        assert found is None or Digest.parse(found.text()) == found
