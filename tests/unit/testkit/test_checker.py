"""The checker sees each kind of broken promise, and nothing in a history that is right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_testkit.checker import (
    VIOLATIONS_MAX,
    History,
    Identity,
    Outcome,
    Stored,
    check,
    decode,
    encode,
)


def run(messages: int = 6) -> tuple[History, list[Stored]]:
    """A run that is right: two publishers take turns and every message is acked."""
    history = History()
    publishers = [history.new_publisher(), history.new_publisher()]
    log: list[Stored] = []
    for number in range(messages):
        publisher = publishers[number % 2]
        sequence, value = publisher.invoke()
        log.append(Stored(len(log), value))
        publisher.acked(sequence, log[-1].offset)
    return history, log


def promises(history: History, log: list[Stored]) -> set[str]:
    return {violation.promise for violation in check(history, log)}


def renumbered(log: list[Stored]) -> list[Stored]:
    return [Stored(offset, record.value) for offset, record in enumerate(log)]


def test_right_run_has_no_violations() -> None:
    history, log = run()
    assert check(history, log) == []


def test_missing_acked_message_is_seen() -> None:
    history, log = run()
    assert promises(history, log[:-1]) == {"acked"}


def test_acked_message_at_another_offset_is_seen() -> None:
    history, log = run()
    swapped = [*log[:2], log[3], log[2], *log[4:]]
    assert promises(history, renumbered(swapped)) == {"acked"}


def test_acked_message_stored_twice_is_seen() -> None:
    history, log = run()
    assert promises(history, renumbered([*log, log[0]])) == {"acked"}


def test_refused_message_that_is_stored_is_seen() -> None:
    history, log = run()
    publisher = history.publishers[0]
    sequence, value = publisher.invoke()
    publisher.refused(sequence)
    assert check(history, log) == []
    assert promises(history, renumbered([*log, Stored(0, value)])) == {"refused"}


def test_unknown_message_may_be_stored_once_or_not_at_all() -> None:
    history, log = run()
    _, value = history.publishers[0].invoke()
    once = renumbered([*log, Stored(0, value)])
    assert check(history, log) == []
    assert check(history, once) == []
    assert promises(history, renumbered([*once, Stored(0, value)])) == {"unknown"}


def test_reordered_publisher_is_seen() -> None:
    history = History()
    publisher = history.new_publisher()
    values = [publisher.invoke()[1] for _ in range(3)]
    log = [Stored(0, values[1]), Stored(1, values[0]), Stored(2, values[2])]
    assert promises(history, log) == {"order"}


def test_gap_in_the_offsets_is_seen() -> None:
    history = History()
    values = [history.new_publisher().invoke()[1] for _ in range(2)]
    assert promises(history, [Stored(0, values[0]), Stored(2, values[1])]) == {"offsets"}


def test_repeated_offset_is_seen() -> None:
    history = History()
    values = [history.new_publisher().invoke()[1] for _ in range(2)]
    assert promises(history, [Stored(0, values[0]), Stored(0, values[1])]) == {"offsets"}


def test_log_that_starts_late_is_seen() -> None:
    history, log = run()
    assert "offsets" in promises(history, log[1:])


def test_changed_byte_is_seen() -> None:
    history, log = run()
    value = bytearray(log[2].value)
    value[-1] ^= 1
    log[2] = Stored(2, bytes(value))
    assert promises(history, log) == {"bytes", "acked"}


def test_foreign_message_is_seen() -> None:
    history, log = run()
    foreign = encode(Identity(99, 0))
    assert promises(history, renumbered([*log, Stored(0, foreign)])) == {"bytes"}


def test_delivery_that_differs_from_the_log_is_seen() -> None:
    history, log = run()
    delivered = history.new_subscription()
    delivered += [log[0], Stored(1, log[2].value)]
    assert promises(history, log) == {"readers"}


def test_delivery_of_what_was_lost_is_seen() -> None:
    history, log = run()
    _, value = history.publishers[0].invoke()
    history.new_subscription().append(Stored(len(log), value))
    assert promises(history, log) == {"readers"}


def test_delivery_with_a_gap_is_seen() -> None:
    history, log = run()
    history.new_subscription().extend([log[0], log[2]])
    assert promises(history, log) == {"readers"}


def test_reports_are_bounded() -> None:
    history, _ = run(1_000)
    assert len(check(history, [])) == VIOLATIONS_MAX


def test_outcomes_are_counted() -> None:
    history, _ = run(4)
    history.publishers[0].invoke()
    sequence, _ = history.publishers[1].invoke()
    history.publishers[1].refused(sequence)
    counts = [history.count(outcome) for outcome in Outcome]
    assert counts == [1, 4, 1]


def test_answer_to_an_answered_message_is_a_bug_of_the_test() -> None:
    publisher = History().new_publisher()
    sequence, _ = publisher.invoke()
    publisher.acked(sequence, 0)
    with pytest.raises(AssertionError, match="answered twice"):
        publisher.acked(sequence, 1)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_value_tells_its_identity(publisher: int, sequence: int, size: int) -> None:
    identity = Identity(publisher, sequence)
    assert decode(encode(identity, size)) == identity


@given(st.binary(max_size=100))
def test_other_bytes_have_no_identity(value: bytes) -> None:
    assert decode(value) is None
