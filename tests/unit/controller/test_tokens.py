"""API tokens in the metadata: who may add, end and remove them, and what each guard refuses."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.callers.commands import CreateToken, ExpireToken, RevokeToken
from liftbridge_broker.controller.callers.tokens import REMEMBERED_NS, TOKENS_MAX, VERIFIER_PREFIX
from liftbridge_broker.controller.commands import Bootstrap, Command
from liftbridge_broker.controller.records import Done
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState, TokenState
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidRequestError,
    LiftbridgeError,
    LimitError,
    NotFoundError,
)
from liftbridge_broker.model.ids import MetadataIndex

VERIFIER = VERIFIER_PREFIX + "s" * 22 + "$" + "h" * 43
FIRST = CreateToken(
    token_id="a" * 12, principal="billing", groups=("ops",), verifier=VERIFIER, created=5, expires=9
)


def run(state: ClusterState, command: Command) -> object:
    return apply(state, MetadataIndex(state.applied_index + 1), command).answer


@pytest.fixture
def state() -> ClusterState:
    state = ClusterState()
    run(state, Bootstrap(cluster_id="c", feature_level=4))
    return state


def test_a_token_is_kept_until_it_is_revoked(state: ClusterState) -> None:
    assert run(state, FIRST) == Done()
    known = TokenState("a" * 12, "billing", ("ops",), VERIFIER, 5, 9, "")
    assert state.tokens == {"a" * 12: known}
    assert run(state, RevokeToken(token_id="a" * 12)) == Done()
    assert not state.tokens


def test_the_end_of_a_token_only_comes_nearer(state: ClusterState) -> None:
    run(state, FIRST)
    assert run(state, ExpireToken(token_id=FIRST.token_id, expires=7)) == Done()
    assert state.tokens[FIRST.token_id].expires == 7
    assert run(state, ExpireToken(token_id=FIRST.token_id, expires=8)) == Done()
    assert state.tokens[FIRST.token_id].expires == 7


def test_a_token_without_an_end_gets_one(state: ClusterState) -> None:
    run(state, replace(FIRST, expires=0))
    run(state, ExpireToken(token_id=FIRST.token_id, expires=2**60))
    assert state.tokens[FIRST.token_id].expires == 2**60


@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [
        (replace(FIRST, token_id="A" * 12), InvalidRequestError, "Invalid token id 'AAAA"),
        (replace(FIRST, token_id="a" * 11), InvalidRequestError, "Invalid token id"),
        (replace(FIRST, principal=""), InvalidRequestError, "a name that is not 1 to 256"),
        (replace(FIRST, principal=" x"), InvalidRequestError, "a name that is not 1 to 256"),
        (replace(FIRST, principal="é" * 129), InvalidRequestError, "a name that is not"),
        (replace(FIRST, principal="a\nb"), InvalidRequestError, "a name that is not"),
        (replace(FIRST, groups=("",)), InvalidRequestError, "a group that is not 1 to 256"),
        (replace(FIRST, groups=("x", "x")), InvalidRequestError, "a group twice"),
        (
            replace(FIRST, groups=tuple(map(str, range(65)))),
            InvalidRequestError,
            "65 groups, at most 64",
        ),
        (replace(FIRST, verifier="x"), InvalidRequestError, "its verifier has another form"),
        (
            replace(FIRST, verifier=VERIFIER.replace("m=19456", "m=99456")),
            InvalidRequestError,
            "its verifier has another form",
        ),
        (replace(FIRST, expires=5), InvalidRequestError, "it ends before it begins"),
        (RevokeToken(token_id="b" * 12), NotFoundError, "no such token: bbbb"),
        (ExpireToken(token_id="b" * 12, expires=3), NotFoundError, "no such token: bbbb"),
    ],
)
def test_refusals_name_the_rule(
    state: ClusterState, command: Command, kind: type[LiftbridgeError], text: str
) -> None:
    answer = run(state, command)
    assert type(answer) is kind
    assert text in str(answer)
    assert not state.tokens


def test_an_end_must_lie_after_1970(state: ClusterState) -> None:
    run(state, FIRST)
    refused = run(state, ExpireToken(token_id=FIRST.token_id, expires=0))
    assert isinstance(refused, InvalidRequestError)


def test_an_id_is_used_once(state: ClusterState) -> None:
    run(state, FIRST)
    again = run(state, replace(FIRST, principal="mallory"))
    assert isinstance(again, AlreadyExistsError)
    assert state.tokens[FIRST.token_id].principal == "billing"


@pytest.mark.parametrize(
    "command", [FIRST, RevokeToken(token_id="a" * 12), ExpireToken(token_id="a" * 12, expires=1)]
)
def test_tokens_wait_for_the_feature_level(command: Command) -> None:
    state = ClusterState()
    run(state, Bootstrap(cluster_id="c", feature_level=3))
    answer = run(state, command)
    assert isinstance(answer, FailedPreconditionError)
    assert "need feature level 4, and 3 is in force" in str(answer)


def test_the_number_of_tokens_is_bounded_and_ended_ones_make_room(state: ClusterState) -> None:
    for number in range(TOKENS_MAX):
        token_id = f"{number:012d}"
        expires = 9 if number == 0 else 0
        state.tokens[token_id] = TokenState(token_id, "p", (), VERIFIER, 5, expires, "")
    just_before = replace(FIRST, created=8 + REMEMBERED_NS, expires=0)
    assert isinstance(run(state, just_before), LimitError)
    assert run(state, replace(just_before, created=9 + REMEMBERED_NS)) == Done()
    assert len(state.tokens) == TOKENS_MAX
    assert "0" * 12 not in state.tokens
