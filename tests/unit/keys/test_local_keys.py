"""Master keys in a file and in the environment."""

from contextlib import suppress
from random import Random

import pytest

from liftbridge_broker.adapters.keys.local import LocalKeys, environment_id, local_keys
from liftbridge_broker.errors import ConfigError, KeyUnavailableError
from liftbridge_broker.model.keys import MASTER_KEYS_MAX, WRAPPED_BYTES_MAX, check_value

HEX = "ab" * 32
DATA_KEY = b"d" * 32


def refusal(text: str, environment: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        local_keys(text, "/etc/keys", environment)
    assert caught.value.__cause__ is None
    return caught.value.text


def test_lines_are_keys_by_id_and_the_first_is_preferred() -> None:
    keys = local_keys(f"# comment\n\n new {HEX}\nold\t{'cd' * 32}\n", "/etc/keys", "")
    assert [key.key_id for key in keys.known] == ["new", "old"]
    assert keys.known[0].check == check_value(bytes.fromhex(HEX))
    assert HEX not in repr(keys)
    assert "\\xab" not in repr(keys)


@pytest.mark.parametrize("size", [16, 32])
def test_key_of_the_original_has_an_id_of_its_own(size: int) -> None:
    keys = local_keys("", "", "k" * size)
    (key,) = keys.known
    assert key.key_id == environment_id(b"k" * size)
    assert keys.known != local_keys("", "", "l" * size).known
    wrapped = keys.wrap(key.key_id, DATA_KEY, "s")
    line = f"{key.key_id} {b'k'.hex() * size}"
    moved = local_keys(f"main {HEX}\n{line}\n", "/etc/keys", "")
    assert moved.unwrap(key.key_id, wrapped, "s") == DATA_KEY
    assert len(local_keys(line, "/etc/keys", "k" * size).known) == 1


@pytest.mark.parametrize(
    ("text", "environment", "found"),
    [
        ("main", "", "line 1 of /etc/keys: must be an id and a key"),
        (f"main {HEX} more", "", "line 1"),
        (f"# c\nmain {HEX[:-2]}", "", "line 2 of /etc/keys: the key of 'main' must be 64"),
        (f"main {'zz' * 32}", "", "64 hexadecimal digits"),
        (f"main {HEX}\nmain {HEX}", "", "line 2 of /etc/keys repeats id 'main'"),
        (f"{'m' * 256} {HEX}", "", "255 bytes"),
        ("", "short", "must have 16 or 32 bytes, has 5"),
        ("\n".join(f"k{n} {HEX}" for n in range(MASTER_KEYS_MAX + 1)), "", "at most 16"),
    ],
)
def test_wrong_key_is_refused_by_place_without_the_key(
    text: str, environment: str, found: str
) -> None:
    message = refusal(text, environment)
    assert found in message
    assert HEX[:20] not in message
    assert "short" not in message


def test_wrapped_key_opens_only_with_its_master_key_for_its_stream() -> None:
    keys = LocalKeys({"a": b"a" * 32, "b": b"b" * 32})
    wrapped = keys.wrap("a", DATA_KEY, "orders")
    assert len(wrapped) <= WRAPPED_BYTES_MAX
    assert wrapped != keys.wrap("a", DATA_KEY, "orders")
    assert keys.unwrap("a", wrapped, "orders") == DATA_KEY
    for key_id, data, purpose in (
        ("b", wrapped, "orders"),
        ("a", wrapped, "other"),
        ("a", wrapped[:-1], "orders"),
        ("a", b"", "orders"),
        ("c", wrapped, "orders"),
    ):
        with pytest.raises(KeyUnavailableError, match=f"'{key_id}'") as caught:
            keys.unwrap(key_id, data, purpose)
        assert caught.value.__cause__ is None


def test_fuzzed_files_are_read_or_refused() -> None:
    random = Random(5)
    good = f"main {HEX}\n# c\nold {HEX}\n"
    for _ in range(2_000):
        text = list(good)
        for _ in range(random.randrange(1, 4)):
            text[random.randrange(len(text))] = chr(random.choice((random.randrange(256), 10, 32)))
        with suppress(ConfigError):
            assert len(local_keys("".join(text), "/etc/keys", "").known) <= 2
