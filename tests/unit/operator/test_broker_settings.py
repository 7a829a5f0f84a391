"""What is told of settings that brokers refuse."""

import pytest

from liftbridge_operator.model.catalogue.settings import load_settings

TABLE = load_settings()


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("streams.max.count", "x", "'x' is not a valid integer"),
        ("streams.max.count", "0", "'0' is less than 1"),
        ("streams.max.count", "10000001", "'10000001' is more than 10000000"),
        ("publishers.ttl", "10ms", "'10ms' is less than 1s"),
        ("streams.fsync.policy", "often", "'often' is not one of never, interval, commit, auto"),
        ("nats.password", "a\nb", "the value is not a valid text"),
        ("no.such", "1", "brokers know no such setting"),
    ],
)
def test_reason_says_what_is_wrong(key, text, reason):
    ((found, told),) = TABLE.against(TABLE.version, {key: text})
    assert found == key
    assert told.startswith(reason) or reason in told


def test_what_brokers_take_is_not_told():
    assert TABLE.against(TABLE.version, {"streams.max.count": "5", "logging.level": "DEBUG"}) == []


def test_names_of_other_versions_are_not_judged():
    assert TABLE.against("9.0.0", {"no.such": "1"}) == []
    assert len(TABLE.against("9.0.0", {"streams.max.count": "x"})) == 1
