"""Options of the source and the sink: every one, its values, and each refusal."""

import re

import pytest

from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from pyspark_liftbridge.plan.options import (
    ArchivePlace,
    OptionError,
    Places,
    read_sink,
    read_source,
)
from pyspark_liftbridge.plan.table import EARLIEST, LATEST, OPTIONS, READS, Use

NEEDED = {
    Use.BATCH: {"servers": "a:1", "subscribe": "orders"},
    Use.STREAM: {"servers": "a:1", "subscribe": "orders"},
    Use.SINK: {"servers": "a:1"},
}
# Kind of value -> what it is not.
WRONG = {
    "true or false": ["yes", "1", ""],
    "a whole number of at least 1": ["0", "-1", "1.5", "", "1e3", "9" * 30],
    "a whole number of at least 0": ["-1", "x"],
    "a whole number from 0 to 1000": ["-1", "1001"],
    "a whole number from 1 to 1000, or -1 for all brokers": ["0", "-2", "1001"],
    "a size such as 1048576, 512k or 64m": ["0", "-1", "4t", "m", ""],
    "a time such as 500ms, 30s or 15m": ["0s", "10", "1w", "", "-1s"],
    "milliseconds since 1970": ["-1", "now", "1e3"],
    "a path": ["", " "],
    "a name": [""],
    "the name of a stream": [""],
    "the address of an archive: a folder, s3://bucket/path, gs:// or az://": [""],
    "a URL": ["", " "],
    "a regular expression": ["(", ""],
    "brokers as host:port, separated by commas": ["", "a:1,,b:1", "a:1,a:1"],
    "names of streams, separated by commas, each once": ["", "a,", "a,a"],
    "names of columns, separated by commas, each once": ["", "offset,offset"],
    'JSON such as {"orders": [0, 1]}': [
        "",
        "[]",
        "{}",
        '{"s":[]}',
        '{"s":[-1]}',
        '{"s":[true]}',
        '{"s":0}',
        '{"s":[0],"s":[1]}',
        '{"":[0]}',
        "[" * 100_000,
    ],
    'JSON such as {"orders": {"0": 1764000000000}}, milliseconds since 1970': [
        "{}",
        '{"s":{}}',
        '{"s":{"0":-1}}',
        '{"s":{"0":1.5}}',
    ],
    'earliest, latest or JSON such as {"orders": {"0": 123, "1": -2, "2": -1}}': [
        "first",
        '{"s":{"0":-3}}',
        '{"s":{"x":1}}',
        '{"s":{"0":true}}',
        '{"s":{"0":1,"0":2}}',
        '{"s":{"16777216":1}}',
    ],
}


def read(use, **given):
    options = {**NEEDED[use], **{name.replace("__", "."): text for name, text in given.items()}}
    return (
        read_sink(options) if use is Use.SINK else read_source(options, is_stream=use is Use.STREAM)
    )


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_refuses_what_it_is_not_by_name_value_and_rule(option):
    is_choice = option.rule not in WRONG
    for text in ["other", ""] if is_choice else WRONG[option.rule]:
        use = min(option.uses)
        given = {**NEEDED[use], option.name: text}
        if option.name in ("subscribePattern", "assign"):
            del given["subscribe"]
        with pytest.raises(OptionError) as caught:
            read_sink(given) if use is Use.SINK else read_source(given, is_stream=use is Use.STREAM)
        assert str(caught.value).startswith(f"option '{option.name}': ")
        assert str(caught.value).endswith(f"must be {option.rule}")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_refused_where_it_does_not_belong(option):
    for use in set(Use) - option.uses:
        given = {**NEEDED[use], option.name: "x"}
        with pytest.raises(OptionError, match=re.escape(f"option '{option.name}' is for a ")):
            read_sink(given) if use is Use.SINK else read_source(given, is_stream=use is Use.STREAM)


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize(
    ("name", "hint"),
    [("startingOffset", "startingOffsets"), ("failondataloss_", "failOnDataLoss"), ("qqq", None)],
)
def test_unknown_option_fails_with_the_nearest_name(use, name, hint):
    with pytest.raises(OptionError) as caught:
        read(use, **{name: "x"})
    told = f"unknown option '{name}'" + (f"; did you mean {hint}?" if hint else "")
    assert str(caught.value) == told


@pytest.mark.parametrize("use", sorted(READS))
def test_store_of_an_archive_needs_the_archive(use):
    given = {"archive": "s3://b/a", "archive__region": "r", "archive__allow_http": "TRUE"}
    place = read(use, **given).archive
    assert place == ArchivePlace("s3://b/a", (("region", "r"), ("allow_http", "true")))
    del given["archive"]
    with pytest.raises(OptionError, match=r"option 'archive\.region' needs archive"):
        read(use, **given)
    assert read(use).archive is None


def test_defaults_are_those_of_the_table():
    batch, stream = read(Use.BATCH), read(Use.STREAM)
    assert (batch.start, batch.end) == (Places(EARLIEST, {}), Places(LATEST, {}))
    assert stream.start == Places(LATEST, {})
    assert stream.limits == (None, None, 900 * SECOND_NS, None)
    assert batch.split == (None, None, 10_000)
    assert batch.fetch == (120 * SECOND_NS, 3, 4 << 20, "auto", False, False)
    assert batch.shape == (None, False, False)
    assert (batch.fails_on_loss, batch.has_pushdown, batch.cursor_id) == (True, False, "")
    sink = read(Use.SINK)
    assert (sink.ack_policy, sink.partitioner, sink.is_exactly_once) == ("all", "key", False)


def test_names_are_taken_in_any_case():
    assert read_source(
        {"SERVERS": "a:1", "subScribe": "s"}, is_stream=False
    ).subscription.streams == ("s",)


@pytest.mark.parametrize("prefix", ["starting", "ending"])
def test_times_go_before_offsets_and_one_time_before_many(prefix):
    by_time = f"{prefix}OffsetsByTimestamp"
    given = {f"{prefix}Offsets": '{"s":{"0":5}}'}
    place = {"starting": "start", "ending": "end"}[prefix]
    assert getattr(read(Use.BATCH, **given), place) == Places(None, {"s": {0: 5}})
    given[by_time] = '{"s":{"0":7}}'
    assert getattr(read(Use.BATCH, **given), place) == Places(None, {"s": {0: 7}}, is_time=True)
    given[f"{prefix}Timestamp"] = "9"
    assert getattr(read(Use.BATCH, **given), place) == Places(9, {}, is_time=True)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("500ms", 500 * MILLISECOND_NS), ("2 h", 7_200 * SECOND_NS), ("1D", 86_400 * SECOND_NS)],
)
def test_times_have_units(text, ns):
    assert read(Use.STREAM, maxTriggerDelay=text).limits.delay_ns == ns


@pytest.mark.parametrize(
    ("text", "count"),
    [("1048576", 1 << 20), ("512k", 512 << 10), ("4MiB", 4 << 20), ("1gb", 1 << 30)],
)
def test_sizes_have_units(text, count):
    assert read(Use.BATCH, fetch__maxBytes=text).fetch.bytes_max == count


@pytest.mark.parametrize(
    ("use", "given", "text"),
    [
        (Use.BATCH, {"assign": '{"s":[0]}'}, "exactly one of .* not subscribe and assign"),
        (Use.BATCH, {"startingOffsets": "latest"}, "a batch cannot start at latest"),
        (Use.BATCH, {"startingOffsets": '{"s":{"0":-1}}'}, "a batch cannot start at latest"),
        (Use.BATCH, {"endingOffsets": "earliest"}, "a batch cannot end at earliest"),
        (Use.BATCH, {"endingOffsets": '{"s":{"0":-2}}'}, "a batch cannot end at earliest"),
        (
            Use.STREAM,
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "'minOffsetsPerTrigger': 5 is more than maxOffsetsPerTrigger, 4",
        ),
        (Use.BATCH, {"tls__cert": "c"}, "'tls.cert' and 'tls.key' must be set together"),
        (Use.SINK, {"tls__key": "c"}, "'tls.cert' and 'tls.key' must be set together"),
        (Use.SINK, {"delivery": "exactly-once", "ackPolicy": "leader"}, "needs ackPolicy all"),
        (Use.SINK, {"createStream__replicationFactor": "3"}, "needs createStream.partitions"),
    ],
)
def test_options_that_do_not_go_together_are_refused(use, given, text):
    with pytest.raises(OptionError, match=text):
        read(use, **given)


@pytest.mark.parametrize("use", Use)
def test_what_is_needed_is_asked_for(use):
    for name in NEEDED[use]:
        given = {key: text for key, text in NEEDED[use].items() if key != name}
        with pytest.raises(OptionError, match=r"servers|exactly one of .* none is given"):
            read_sink(given) if use is Use.SINK else read_source(given, is_stream=use is Use.STREAM)


def test_a_long_wrong_value_is_shown_in_part():
    with pytest.raises(OptionError) as caught:
        read(Use.BATCH, assign="x" * 1_000)
    assert len(str(caught.value)) < 200
