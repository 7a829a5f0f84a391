"""The log: two forms, one look for everybody, one event a line, and no secret in it."""

import gc
import io
import json
import logging
import random
import re
import string

import hpack
import pytest
import structlog

from liftbridge_broker.adapters.observe.logs import configure_logs, set_level
from liftbridge_broker.adapters.observe.redaction import SECRETS_MAX, Redactor

SEED_OF_NKEY = "SUA" + "M3XW5D" * 9 + "Q"
TOKEN = "eyJhbGciOiJFZDI1NTE5In0.eyJqdGkiOiJ4In0.c2ln"
CREDENTIALS = f"""-----BEGIN USER NKEY SEED-----
{SEED_OF_NKEY}
------END USER NKEY SEED------"""
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----"


@pytest.fixture
def restored():
    """Puts the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture
def log_to(restored):
    """Configures the log and gives the stream it goes to and its redactor."""

    def configure(style="json", level="debug"):
        gc.collect()  # asyncio logs what it finds in the garbage of other tests
        stream, redactor = io.StringIO(), Redactor()
        configure_logs(level=level, style=style, stream=stream, redactor=redactor)
        return stream, redactor

    return configure


def test_json_event_is_one_object_a_line(log_to):
    stream, _ = log_to()
    structlog.stdlib.get_logger("liftbridge").info("isr_shrunk", partition=3, lag_ms=812)
    event = json.loads(stream.getvalue())
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "isr_shrunk", "level": "info", "partition": 3, "lag_ms": 812}


def test_console_event_is_one_readable_line_without_colours(log_to):
    stream, _ = log_to("console")
    structlog.stdlib.get_logger("liftbridge").warning("isr_shrunk", partition=3)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert "warning" in line
    assert "isr_shrunk" in line
    assert "partition=3" in line


@pytest.mark.parametrize("style", ["console", "json"])
def test_lines_of_libraries_look_like_ours(log_to, style):
    stream, _ = log_to(style)
    logging.getLogger("nats.aio.client").error("nats: %s", "empty response")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "nats: empty response" in line
    assert "nats.aio.client" in line
    assert "error" in line
    if style == "json":
        assert json.loads(line)["logger"] == "nats.aio.client"


def test_level_hides_what_is_less_important_and_can_change(log_to):
    stream, _ = log_to(level="warn")
    log = structlog.stdlib.get_logger("liftbridge")
    log.info("hidden")
    logging.getLogger("nats").info("hidden")
    assert stream.getvalue() == ""
    set_level("debug")
    log.debug("shown")
    assert json.loads(stream.getvalue())["event"] == "shown"


def test_level_can_change_both_ways(log_to):
    stream, _ = log_to(level="debug")
    set_level("error")
    structlog.stdlib.get_logger("liftbridge").warning("hidden")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("style", ["console", "json"])
def test_nobody_can_begin_a_line_of_his_own(log_to, style):
    stream, _ = log_to(style)
    evil = "x\n2024-01-01 [info] all_is_well\r\x1b[2J\u2028"
    structlog.stdlib.get_logger("liftbridge").warning("connection_abused", peer=evil)
    logging.getLogger("library").warning("peer said %s", evil)
    text = stream.getvalue()
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text


def test_very_long_texts_are_cut(log_to):
    stream, _ = log_to()
    structlog.stdlib.get_logger("liftbridge").warning("nats_error", reason="x" * 100_000)
    assert len(stream.getvalue()) < 5_000


def test_configuring_again_does_not_write_twice(log_to):
    first, _ = log_to()
    second, _ = log_to()
    structlog.stdlib.get_logger("liftbridge").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def raised(text):
    """An error that was raised and caught, with its traceback."""
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        raise ValueError(text)
    return caught.value


class TestSecrets:
    """Scans everything that is written for secrets that went in by every way there is."""

    @pytest.mark.parametrize("style", ["console", "json"])
    @pytest.mark.parametrize(
        "secret", ["hunter2-ü", 'quo"te\\d', "line\nbreak", "a b c d", "*regex(+"]
    )
    def test_known_values_never_reach_the_log(self, log_to, style, secret):
        stream, redactor = log_to(style)
        redactor.add(secret)
        log = structlog.stdlib.get_logger("liftbridge")
        log.info("nats_error", reason=f"authorization with {secret} failed")
        log.info("said %s", secret)
        log.info("nats_error", detail={"deep": [secret]})
        logging.getLogger("nats").error("tried %r", secret)
        log.error("failed", exc_info=raised(secret))
        logging.getLogger("nats").error("failed", exc_info=raised(secret))
        text = stream.getvalue()
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
            assert form not in text
        assert text.count("***") >= 6

    @pytest.mark.parametrize("style", ["console", "json"])
    def test_secrets_are_known_by_their_form(self, log_to, style):
        stream, _ = log_to(style)
        log = structlog.stdlib.get_logger("liftbridge")
        url = "nats://me:swordfish@h:4222"
        for secret in (url, SEED_OF_NKEY, TOKEN, CREDENTIALS, PRIVATE_KEY):
            log.info("nats_error", reason=f"value {secret} is bad")
            logging.getLogger("nats").error("value %s is bad", secret)
            log.error("failed", exc_info=raised(secret))
        text = stream.getvalue()
        for part in ("swordfish", SEED_OF_NKEY, TOKEN, "MC4CAQ"):
            assert part not in text
        assert "nats://***@h:4222" in text

    @pytest.mark.parametrize(
        "name", ["password", "nats_password", "Secret", "nkey_seed", "credentials", "jwt"]
    )
    def test_secrets_are_known_by_the_name_of_their_field(self, log_to, name):
        stream, _ = log_to()
        structlog.stdlib.get_logger("liftbridge").info("nats_connected", **{name: "swordfish"})
        assert json.loads(stream.getvalue())[name] == "***"

    def test_ordinary_words_are_left_alone(self):
        redactor = Redactor()
        redactor.add("")
        redactor.add("abc")
        text = "a partition at nats://127.0.0.1:4222/x?y=user@example abc SUAB"
        assert redactor.mask_text(text) == text

    def test_known_values_are_bounded_and_the_newest_stay(self):
        redactor = Redactor()
        rng = random.Random(1)
        secrets = ["".join(rng.choices(string.ascii_letters, k=12)) for _ in range(SECRETS_MAX + 5)]
        for secret in secrets:
            redactor.add(secret)
        masked = redactor.mask_text(" ".join(secrets))
        assert masked.count("***") == SECRETS_MAX
        assert secrets[-1] not in masked


def test_headers_of_calls_are_in_no_log(log_to):
    """hpack logs each header with its value; a token of a client is one."""
    stream, _ = log_to()
    block = hpack.Encoder().encode([("authorization", "Bearer s3cret")], huffman=False)
    assert hpack.Decoder().decode(block) == [("authorization", "Bearer s3cret")]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("library", ["aiohttp.server", "aiohttp.access", "asyncio", "hpack.table"])
def test_libraries_that_tell_every_step_are_quiet_and_their_warnings_are_not(log_to, library):
    stream, _ = log_to()
    logging.getLogger(library).debug("a step")
    logging.getLogger(library).info("a step")
    assert stream.getvalue() == ""
    logging.getLogger(library).warning("a fault")
    assert json.loads(stream.getvalue())["event"] == "a fault"
