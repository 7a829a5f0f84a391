"""One transition is one log event and one count."""

import gc
import io
import json
import logging

import pytest

from liftbridge_broker.adapters.observe.catalogue import load_catalogue
from liftbridge_broker.adapters.observe.logs import configure_logs
from liftbridge_broker.adapters.observe.observer import LINES_MAX, WINDOW_NS, StructlogObserver
from liftbridge_broker.adapters.observe.redaction import Redactor

CATALOGUE = load_catalogue()


@pytest.fixture(scope="module", autouse=True)
def no_garbage():
    """Garbage of other modules, of which asyncio would log what it finds, is gone."""
    gc.collect()


@pytest.fixture
def stream():
    """Standard error of a JSON log; what was configured before the test comes back after it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(level="debug", style="json", stream=stream, redactor=Redactor())
    yield stream
    root.handlers = handlers
    root.setLevel(level)


def events(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Clock:
    """Time that the test moves."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.mark.parametrize("spec", CATALOGUE.transitions.values(), ids=CATALOGUE.transitions)
def test_every_transition_makes_one_event_and_one_count(stream, spec):
    observer = StructlogObserver(CATALOGUE)
    fields: dict[str, object] = dict.fromkeys(spec.fields, "x")
    added = set()
    if spec.adds is not None:
        fields[spec.adds.field] = 3
        added.add(spec.adds.metric)
    observer.transition(spec.kind, fields)
    (event,) = events(stream)
    assert event.pop("timestamp")
    assert event == {"event": spec.kind, "level": spec.level.value, **fields}
    samples = observer.samples()
    shared = samples.pop("transitions_total")
    counted = {kind for kind, count in shared.items() if count}
    counted |= {name for name, count in samples.items() if count}
    assert counted == {spec.metric or spec.kind} | added


def test_field_of_a_transition_is_added_up_by_its_label(stream):
    observer = StructlogObserver(CATALOGUE)
    spec = CATALOGUE.transitions["segments_deleted"]
    fields: dict[str, object] = dict.fromkeys(spec.fields, 0)
    for reason, size in (("bytes", 10), ("age", 1), ("bytes", 20)):
        observer.transition(spec.kind, {**fields, "bytes": size, "reason": reason})
    assert observer.samples()["log_cleaned_bytes_total"] == {"bytes": 30, "age": 1}
    assert len(events(stream)) == 3


def test_counts_begin_at_zero_for_every_kind():
    samples = StructlogObserver(CATALOGUE).samples()
    shared = samples["transitions_total"]
    assert set(shared.values()) == {0}
    added = {spec.adds.metric for spec in CATALOGUE.transitions.values() if spec.adds}
    own = set(samples) - added - {"transitions_total"}
    assert len(shared) + len(own) == len(CATALOGUE.transitions)


def test_repeated_events_are_limited_counted_and_told_of_later(stream):
    clock = Clock()
    observer = StructlogObserver(CATALOGUE, monotonic_ns=clock)
    for number in range(LINES_MAX + 50):
        observer.transition("partition_offline", {"partition": number})
    observer.transition("stream_deleted", {"stream": "s"})  # other kinds are not held back
    assert len(events(stream)) == LINES_MAX + 1
    clock.now_ns = WINDOW_NS
    observer.transition("partition_offline", {"partition": 0})
    observer.transition("partition_offline", {"partition": 1})
    last, very_last = events(stream)[-2:]
    assert last["suppressed"] == 50
    assert "suppressed" not in very_last
    assert observer.samples()["transitions_total"]["partition_offline"] == LINES_MAX + 52


def test_every_event_of_the_audit_is_told(stream):
    observer = StructlogObserver(CATALOGUE, monotonic_ns=Clock())
    for number in range(LINES_MAX + 50):
        observer.transition("audit", {"request": str(number)})
    told = events(stream)
    assert len(told) == LINES_MAX + 50
    assert not any("suppressed" in event for event in told)
    assert [one.kind for one in CATALOGUE.transitions.values() if not one.is_limited] == ["audit"]


def test_kind_that_is_not_listed_is_still_told(stream):
    observer = StructlogObserver(CATALOGUE)
    observer.transition("no_such_kind", {"stream": "s"})
    (event,) = events(stream)
    assert (event["event"], event["kind"], event["stream"]) == ("unlisted", "no_such_kind", "s")
    assert observer.samples()["transitions_total"]["unlisted"] == 1


def test_fields_of_the_caller_are_not_changed(stream):
    fields = {"stream": "s", "password": "p"}
    StructlogObserver(CATALOGUE).transition("stream_deleted", fields)
    assert fields == {"stream": "s", "password": "p"}
    assert events(stream)[0]["password"] == "***"
