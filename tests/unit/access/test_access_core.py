"""API tokens, bearer fields, failed attempts and verified tokens: forms and bounds."""

import pytest

from liftbridge_broker.access import attempts, verified
from liftbridge_broker.access.api_tokens import LENGTH, ApiToken, parse_token
from liftbridge_broker.access.attempts import FailedAttempts
from liftbridge_broker.access.bearer import TOKEN_BYTES_MAX, token_of
from liftbridge_broker.access.identities import Identity, Proof
from liftbridge_broker.access.verified import VerifiedTokens
from liftbridge_testkit.fuzzing import Fuzz

TOKEN = ApiToken("abc123def456", "S" * 40)


def test_a_token_is_read_as_it_was_written() -> None:
    assert TOKEN.text == "lbt_abc123def456_" + "S" * 40 + "08gPWK"
    assert len(TOKEN.text) == LENGTH
    assert parse_token(TOKEN.text) == TOKEN


def test_a_token_shows_no_secret() -> None:
    assert "S" * 40 not in repr(TOKEN)
    assert "S" * 40 not in f"{TOKEN}"


@pytest.mark.fuzz
def test_no_other_text_is_a_token(fuzz: Fuzz) -> None:
    """The check sum finds every single wrong character, and most other damage."""
    for random in fuzz.rounds(seed=2, count=2_000):
        text = list(TOKEN.text)
        place = random.randrange(len(text))
        text[place] = random.choice("aZ09_-é\0")
        damaged = "".join(text)
        assert (parse_token(damaged) is None) == (damaged != TOKEN.text)
        assert parse_token(damaged[:place]) is None
        assert parse_token(damaged * 2) is None


@pytest.mark.parametrize(
    ("field", "token"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  a.b-c_d~e+f/g= ", "a.b-c_d~e+f/g="),
        (b"Basic abc", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer a b", None),
        (b"Bearer a,Bearer b", None),
        (b"Bearer \xff", None),
        (b"", None),
        (b"Bearer " + b"a" * TOKEN_BYTES_MAX, "a" * TOKEN_BYTES_MAX),
        (b"Bearer " + b"a" * (TOKEN_BYTES_MAX + 1), None),
    ],
)
def test_bearer_token_is_taken_out_of_its_field(field: bytes, token: str | None) -> None:
    assert token_of(field) == token


def test_attempts_of_an_address_run_out_and_come_back() -> None:
    failed = FailedAttempts()
    for number in range(attempts.ADDRESS_MAX):
        assert failed.allow("a", 5)
        assert failed.note("a", 5) == (number == attempts.ADDRESS_MAX - 1)
    assert not failed.allow("a", 5)
    assert failed.allow("b", 5)
    assert not failed.allow("a", 4 + attempts.ADDRESS_REFILL_NS)
    assert failed.allow("a", 5 + attempts.ADDRESS_REFILL_NS)
    failed.note("a", 5 + attempts.ADDRESS_REFILL_NS)
    assert not failed.allow("a", 5 + attempts.ADDRESS_REFILL_NS)


def test_attempts_of_all_addresses_are_bounded_too() -> None:
    failed = FailedAttempts()
    for number in range(attempts.ALL_MAX):
        assert failed.allow(f"{number}", 0)
        failed.note(f"{number}", 0)
    assert not failed.allow("another", 0)
    assert failed.allow("another", attempts.ALL_REFILL_NS)


def test_table_of_addresses_is_bounded() -> None:
    failed = FailedAttempts()
    for number in range(attempts.ADDRESSES_MAX + 5):
        failed.note(f"{number}", 0)
    assert len(failed._by_source) == attempts.ADDRESSES_MAX


def test_verified_token_is_known_until_its_time_is_over() -> None:
    table, identity = VerifiedTokens(b"k" * 32), Identity(proof=Proof.TOKEN)
    name = table.digest(b"token")
    assert table.find(name, 0) is None
    table.add(name, identity, 7)
    assert table.find(name, 6 + verified.VERIFIED_NS) is identity
    assert table.find(name, 7 + verified.VERIFIED_NS) is None


def test_table_of_verified_tokens_is_bounded_and_keeps_those_in_use() -> None:
    table, identity = VerifiedTokens(b"k" * 32), Identity(proof=Proof.TOKEN)
    names = [b"%d" % number for number in range(verified.VERIFIED_MAX)]
    for name in names:
        table.add(name, identity, 0)
    table.find(names[0], 0)
    table.add(b"more", identity, 0)
    assert table.find(names[0], 0) is identity
    assert table.find(names[1], 0) is None
    assert len(table._known) == verified.VERIFIED_MAX


def test_verified_tokens_are_named_by_a_keyed_hash() -> None:
    first, second = VerifiedTokens(b"1" * 32), VerifiedTokens(b"2" * 32)
    assert first.digest(b"token") != second.digest(b"token")
    assert b"1" * 32 not in repr(first).encode()
