"""The log is one JSON object a line, for kopf's lines as well, and holds no secrets."""

import gc
import io
import json
import logging

import pytest
import structlog

from liftbridge_operator.process.logs import MASK, configure_logs, mask_text


@pytest.fixture
def lines():
    """What is logged while the test runs, as objects."""
    root, kopf = logging.getLogger(), logging.getLogger("kopf")
    before = (list(root.handlers), root.level, kopf.level)
    gc.collect()  # asyncio logs what it finds in the garbage of other tests
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.reset_defaults()
    root.handlers, root.level, kopf.level = before


def test_lines_are_objects_with_a_time_a_level_and_a_name(lines):
    structlog.get_logger("liftbridge.operator").info("pass_refused", key="n/c", retry_s=1.5)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "pass_refused",
        "key": "n/c",
        "retry_s": 1.5,
        "level": "info",
        "logger": "liftbridge.operator",
    }


def test_kopf_is_heard_when_something_is_wrong_only(lines):
    logging.getLogger("kopf.objects").info("Handler 'seen' succeeded.")
    logging.getLogger("kopf.reactor").warning("a watch is slow")
    assert [line["event"] for line in lines()] == ["a watch is slow"]


def test_secrets_are_masked_by_name_and_by_form(lines):
    log = structlog.get_logger("liftbridge.operator")
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJvcGVyYXRvciJ9.c2lnbmF0dXJl"
    log.info("connected", password="hunter2", url="nats://user:hunter2@host", header=token)
    (line,) = lines()
    assert line["password"] == MASK
    assert "hunter2" not in json.dumps(line)
    assert token not in json.dumps(line)


def test_tracebacks_are_masked_and_stay_in_one_line(lines):
    try:
        int("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----")
    except ValueError:
        structlog.get_logger("liftbridge.operator").exception("pass_failed")
    (line,) = lines()
    assert "MIIabc" not in line["exception"]
    assert "ValueError" in line["exception"]


def test_control_characters_do_not_leave_their_field(lines):
    structlog.get_logger("liftbridge.operator").info("seen", name="a\nb\x1b[31m")
    (line,) = lines()
    assert line["name"] == "a\\nb\\x1b[31m"


@pytest.mark.parametrize(
    "text", ["SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "Bearer abcdefgh1234"]
)
def test_forms_of_secrets(text):
    assert MASK in mask_text(f"before {text} after")


def test_console_form_is_for_people(lines):
    stream = io.StringIO()
    configure_logs(level="warning", style="console", stream=stream)
    log = structlog.get_logger("liftbridge.console")
    log.info("quiet")
    log.warning("loud", size=3)
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
