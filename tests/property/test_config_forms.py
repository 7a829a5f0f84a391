"""Spelling does not matter, and no file can do harm."""

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.config.load import load
from liftbridge_broker.config.table import SETTINGS
from liftbridge_broker.config.yamlfile import read_entries
from liftbridge_broker.errors import ConfigError

FUZZ_COUNT = 100_000
FUZZ_SECONDS_MAX = 60

VALUES = {
    "listen": "127.0.0.1:7",
    "host": "b.example",
    "streams.retention.max.bytes": 1024,
    "streams.retention.max.age": "2h",
    "streams.compact.enabled": True,
    "streams.fsync.policy": "commit",
    "clustering.min.insync.replicas": 2,
    "nats.servers": ["nats://a:1", "b:2"],
    "nats.embedded": False,
    "cursors.stream.partitions": 3,
    "metrics.streams.max": 5,
}
ITEMS = sorted(VALUES.items(), key=lambda item: item[0])


def nested(draw, chosen):
    """The settings as a tree whose keys are cut at any of their dots, in any case."""
    tree = {}
    for key, value in chosen:
        parts = key.split(".")
        cuts = draw(st.lists(st.booleans(), min_size=len(parts) - 1, max_size=len(parts) - 1))
        path = [parts[0]]
        for part, is_cut in zip(parts[1:], cuts, strict=True):
            if is_cut:
                path.append(part)
            else:
                path[-1] += "." + part
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
    return recased(draw, tree)


def recased(draw, tree):
    style = draw(st.sampled_from([str.lower, str.upper, str.title]))
    return {
        style(name): recased(draw, below) if isinstance(below, dict) else below
        for name, below in tree.items()
    }


@st.composite
def spellings(draw):
    chosen = draw(st.lists(st.sampled_from(ITEMS), unique_by=lambda item: item[0]))
    flow = draw(st.sampled_from([None, True, False]))
    text = yaml.safe_dump(nested(draw, chosen), default_flow_style=flow)
    return dict(chosen), text


def as_text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


@given(spellings())
def test_dotted_nested_and_mixed_keys_of_any_case_give_the_same_options(spelling):
    chosen, text = spelling
    entries = read_entries(text.encode(), "f")
    read = {e.key: e.text if isinstance(e.text, str) else ",".join(e.text) for e in entries}
    expected = {key: as_text(value) for key, value in chosen.items()}
    assert read == expected
    by_file = load(flags=read, environ={}, path=None)
    assert by_file == load(flags=expected, environ={}, path=None)


def refusal_of(call, *arguments, **options):
    """Text of the refusal, empty when the call succeeds; any other error is a failure."""
    try:
        call(*arguments, **options)
    except ConfigError as error:
        return error.text
    return ""


@given(st.sampled_from(sorted(SETTINGS)), st.text(max_size=30))
def test_any_text_for_any_setting_is_taken_or_refused_by_name(key, text):
    refusal = refusal_of(load, flags={key: text}, environ={}, path=None)
    section = key.split(".")[0]  # half of a pair may be refused by the name of the other half
    assert refusal == "" or section in refusal


def mutated(rng, seeds):
    """A small document with a few bytes changed, cut, doubled, or joined to another one."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if position < len(data):
                data[position] = rng.randrange(256)
            case 1:
                data[position:position] = rng.choice(TOKENS)
            case 2:
                del data[position : position + rng.randint(1, 8)]
            case 3:
                data[position:position] = data[position : position + rng.randint(1, 16)]
            case _:
                data = data[:position] + rng.choice(seeds)[-position:]
        data = data or bytearray(b" ")
    return bytes(data)


SEEDS = [
    b"listen: a:1\nstreams:\n  retention.max: {bytes: 1}\n",
    b"nats.servers: [a, 'b', \"c\"]\nport: 7\n",
    b"a: &x 1\nb: *x\n? c\n: |\n  text\n",
    b"---\nk: !!str v # c\n...\n",
    b"tls:\n  - a\n  - b: c\n",
]
TOKENS = [b"&a ", b"*a", b"!!map ", b"{", b"}", b"[", b"]", b"? ", b": ", b"- ", b"\n", b"\t", b"|"]
TOKENS += [
    b">",
    b"'",
    b'"',
    b"%YAML 1.1\n",
    b"---\n",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"#",
    b"<<: ",
]


@pytest.mark.timeout(FUZZ_SECONDS_MAX * 2)
def test_hundred_thousand_damaged_files_are_read_or_refused(fuzz):
    started = time.process_time()
    refused_count = 0
    for rng in fuzz.rounds(20_240_607, FUZZ_COUNT):
        refusal = refusal_of(read_entries, mutated(rng, SEEDS), "fuzz")
        assert refusal.partition(":")[0] in {"", "fuzz"}
        refused_count += refusal != ""
    assert fuzz.is_long or time.process_time() - started < FUZZ_SECONDS_MAX
    assert fuzz.count // 100 < refused_count < fuzz.count - fuzz.count // 100
