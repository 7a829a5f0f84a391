"""The operator's copy of the settings of brokers says what the brokers' own table says."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic.fields import FieldInfo

from liftbridge_broker.config.settings import Kind, Setting
from liftbridge_broker.config.table import SETTINGS
from liftbridge_operator.model.base import Model
from liftbridge_operator.model.broker_config import BrokerConfig, StreamDefaults
from liftbridge_operator.model.broker_config import Setting as Mark
from liftbridge_operator.model.catalogue.settings import INTEGER_MAX, load_settings
from liftbridge_operator.model.cluster import FEATURE_LEVELS
from liftbridge_operator.model.stream import StreamConfig
from liftbridge_testkit.repository import ROOT

COPY = ROOT / "operator" / "src" / "liftbridge_operator" / "model" / "catalogue" / "settings.yaml"
HEADING = (
    "# Settings of brokers; written by `pytest tests/meta/test_broker_settings.py --rewrite`.\n"
)
VERSION = FEATURE_LEVELS[max(FEATURE_LEVELS)]
TEXTS = (
    *("", "0", "1", "-1", "2", "17", "1000", "1024", "65536", "1000000", "10000001"),
    *("9223372036854775807", "9223372036854775808", "99999999999999999999", "1.5", "x"),
    *("true", "False", "yes", "OFF", "maybe"),
    *("15s", "1h30m", "168h", "250ms", "1.5s", "1ns", "1us", "5", "soon", "1s ", "9999999h"),
    *("1KiB", "64MiB", "1 GB", "1TB", "64 miB", "1xb", "9000000TiB"),
    *("0.0.0.0:9292", ":9292", "9292", "[::1]:9292", "::1:9292", "h:70000", "a b:1", "host:1"),
    *("debug", "INFO", "interval", "balanced", "never", "json", "off", "a,b c", "line\nbreak"),
)


def row_of(setting: Setting) -> dict[str, Any]:
    """What of a setting a value is judged by; defaults are left out."""
    is_bounded = setting.kind in {Kind.DURATION, Kind.SIZE, Kind.INTEGER}
    row: dict[str, Any] = {"kind": setting.kind.value}
    if is_bounded and setting.minimum:
        row["minimum"] = setting.minimum
    if is_bounded and setting.maximum != INTEGER_MAX:
        row["maximum"] = setting.maximum
    if setting.choices:
        row["choices"] = list(setting.choices)
    if setting.off:
        row["off"] = setting.off
    if setting.is_secret:
        row["is_secret"] = True
    return row


def test_copy_is_the_table_of_brokers(rewrite: bool) -> None:
    table = {"version": VERSION, "settings": {key: row_of(one) for key, one in SETTINGS.items()}}
    wanted = HEADING + yaml.safe_dump(table, sort_keys=True, width=100)
    if rewrite:
        COPY.write_text(wanted, encoding="utf-8")
    assert COPY.read_text(encoding="utf-8") == wanted


def is_taken(setting: Setting, text: str) -> bool:
    """Whether a broker starts with a value."""
    try:
        setting.read(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("key", SETTINGS)
def test_operator_takes_what_brokers_take(key: str) -> None:
    row = load_settings().rows[key]
    judged = {text: row.against(text) == "" for text in TEXTS}
    assert judged == {text: is_taken(SETTINGS[key], text) for text in TEXTS}


def test_texts_try_every_kind_both_ways() -> None:
    for kind in Kind:
        found = {
            is_taken(one, text) for one in SETTINGS.values() for text in TEXTS if one.kind is kind
        }
        assert found == {True, False}, kind


def typed_fields(model: type[Model]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Each field that stands for a setting of brokers: the setting, its name and the field."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            yield from typed_fields(field.annotation)
        yield from ((one.key, name, field) for one in field.metadata if isinstance(one, Mark))


def field_texts() -> list[tuple[str, str]]:
    """Settings that fields of the operator describe as well, with those descriptions."""
    found = [(key, field.description or "") for key, _, field in typed_fields(BrokerConfig)]
    for key, name, _ in typed_fields(StreamDefaults):
        found.append((key, StreamConfig.model_fields[name].description or ""))
    return found


@pytest.mark.parametrize(("key", "text"), field_texts())
def test_fields_describe_settings_in_the_words_of_brokers(key: str, text: str) -> None:
    """The description of a field is that of the setting, or its beginning."""
    assert text
    assert SETTINGS[key].doc.startswith(text.removesuffix("."))
