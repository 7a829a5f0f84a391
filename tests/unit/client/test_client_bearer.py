"""Bearer tokens of a client: what is refused, what is shown, and files that change."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from liftbridge_client import Token, UsageError, connect
from liftbridge_client.admin_model import ApiToken, NewToken
from liftbridge_client.bearer import TOKEN_BYTES_MAX, Bearer
from liftbridge_client.cli.profiles import Profile

SECRET = "lbt_abc123def456_" + "S" * 46


def opened(token: Token | None, *, is_encrypted: bool = True) -> Bearer:
    bearer = Bearer(token, is_encrypted=is_encrypted)
    bearer.open()
    return bearer


def test_without_a_token_calls_have_no_metadata() -> None:
    assert opened(None, is_encrypted=False).metadata() is None


def test_token_is_put_into_calls() -> None:
    assert opened(Token(value=SECRET)).metadata() == (("authorization", f"Bearer {SECRET}"),)


def test_token_is_not_shown() -> None:
    assert SECRET not in repr(Token(value=SECRET))
    made = NewToken(SECRET, ApiToken("a", "p", (), datetime.now(UTC), None, ""))
    assert SECRET not in repr(made)


def test_token_is_sent_over_plaintext_only_if_that_is_allowed() -> None:
    with pytest.raises(UsageError, match="is not sent over plaintext"):
        opened(Token(value=SECRET), is_encrypted=False)
    assert opened(Token(value=SECRET, allows_plain=True), is_encrypted=False).metadata()


async def test_client_refuses_it_before_it_connects() -> None:
    with pytest.raises(UsageError, match="is not sent over plaintext"):
        async with connect("localhost:1", token=Token(value=SECRET), retry_time=timedelta(0)):
            raise AssertionError("connected")


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (Token(), "needs either `value` or `file`"),
        (Token(value="x", file=Path("y")), "needs either `value` or `file`"),
        (Token(value="Bearer x"), "printable characters without spaces"),
        (Token(value="x\n"), "printable characters without spaces"),
        (Token(value="é"), "printable characters without spaces"),
        (Token(value="x" * (TOKEN_BYTES_MAX + 1)), "must be 1 to 8192"),
        (Token(file=Path("/does/not/exist")), "cannot read /does/not/exist: No such file"),
    ],
)
def test_what_cannot_be_a_token_is_refused_without_being_shown(token: Token, text: str) -> None:
    with pytest.raises(UsageError, match=text) as refusal:
        opened(token)
    assert token.value not in str(refusal.value) or len(token.value) < 9
    assert refusal.value.advice


def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """As Kubernetes does it: a new file, behind a link that is redirected."""
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "token"
    first.write_text("one\n")
    second.write_text("two\n")
    link.symlink_to(first)
    bearer = opened(Token(file=link))
    assert bearer.metadata() == (("authorization", "Bearer one"),)
    (tmp_path / "new").symlink_to(second)
    (tmp_path / "new").rename(link)
    assert bearer.metadata() == (("authorization", "Bearer two"),)
    link.unlink()
    assert bearer.metadata() == (("authorization", "Bearer two"),)
    link.write_text("not a token")
    assert bearer.metadata() == (("authorization", "Bearer two"),)
    link.write_text("three")
    os.utime(link, ns=(0, 1))
    assert bearer.metadata() == (("authorization", "Bearer three"),)


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({}, None),
        ({"LIFTBRIDGE_TOKEN": ""}, None),
        ({"LIFTBRIDGE_TOKEN": "x"}, Token(value="x")),
        ({"LIFTBRIDGE_TOKEN": "x", "LIFTBRIDGE_TOKEN_FILE": "f"}, Token(file=Path("f"))),
    ],
)
def test_token_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], token: Token | None
) -> None:
    for name in ("LIFTBRIDGE_TOKEN", "LIFTBRIDGE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Token.from_environment() == token


def test_profile_has_a_file_and_a_given_token_wins() -> None:
    profile = Profile(token_file="/t", plain_token=True)
    assert Profile().token() is None
    assert profile.token() == Token(file=Path("/t"), allows_plain=True)
    assert profile.token(Token(value="x")) == Token(value="x", allows_plain=True)
