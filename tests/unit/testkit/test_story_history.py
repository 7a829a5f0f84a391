"""Journals outlive their writers, and what is broken in a log that they tell of is noticed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from liftbridge_client import RetriableError
from liftbridge_testkit.checker import Outcome, Stored
from liftbridge_testkit.kube.gaps import figures, longest_gap
from liftbridge_testkit.kube.journal import Journal, read
from liftbridge_testkit.kube.verdict import Verdict, broken

MESSAGES = 6


class Clock:
    """Goes on by a tenth of a second with each look."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def right_run(path: Path) -> list[Stored]:
    """A journal of a run in which everything was acknowledged and read; its log."""
    journal = Journal(path, 0, Clock())
    log = []
    for offset in range(MESSAGES):
        sequence, value = journal.invoke(64)
        journal.acked(sequence, offset)
        log.append(Stored(offset, value))
        journal.delivered(log[-1])
    journal.close()
    return log


def numbered(log: list[Stored]) -> list[Stored]:
    return [Stored(offset, record.value) for offset, record in enumerate(log)]


def promises(path: Path, log: list[Stored]) -> set[str]:
    return {one.promise for one in broken(read(path), log)}


def test_right_run_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s-0.jsonl"
    log = right_run(path)
    assert broken(read(path), log) == []
    account = read(path)
    assert [round(one.acked, 1) for one in account.acks][:2] == [100.2, 100.5]
    assert (account.newest_acked, account.delivered, account.unknown) == (5, MESSAGES, 0)


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (lambda log: log[:-1], "acked"),
        (lambda log: numbered([*log[:2], *log[3:]]), "acked"),
        (lambda log: numbered([*log[:2], log[3], log[2], *log[4:]]), "order"),
        (lambda log: [*log[:3], Stored(2, log[3].value), *log[4:]], "offsets"),
        (
            lambda log: [*log[:3], log[3]._replace(value=log[3].value[:-1] + b"?"), *log[4:]],
            "bytes",
        ),
        (lambda log: [*log, Stored(MESSAGES, log[0].value)], "acked"),
        (lambda log: [*log[:2], *log[3:]], "offsets"),
    ],
    ids=["lost", "lost, closed up", "reordered", "offset twice", "changed", "twice", "a hole"],
)
def test_planted_fault_is_seen(
    tmp_path: Path, plant: Callable[[list[Stored]], list[Stored]], promise: str
) -> None:
    path = tmp_path / "s-0.jsonl"
    log = right_run(path)
    assert promise in promises(path, plant(log))


def test_reader_that_missed_the_end_or_got_other_bytes_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "s-0.jsonl"
    log = right_run(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert promises(path, log) == {"readers"}
    path.write_text("".join([*lines[:-1], lines[-1].replace('"n": 64', '"n": 65')]))
    assert promises(path, log) == {"readers"}


def test_partition_that_nobody_read_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "s-0.jsonl"
    log = right_run(path)
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"read"' not in line]
    path.write_text("".join(kept))
    assert promises(path, log) == {"readers"}


def test_publisher_goes_on_under_another_number_after_a_lost_answer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s-0.jsonl", 0, Clock())
    first, lost = journal.invoke(64)
    journal.unknown(first)
    second, _ = journal.invoke(64)  # its publisher ends without a word
    third, kept = journal.invoke(64)
    journal.acked(third, 0)
    fourth, _ = journal.invoke(64)
    journal.refused(fourth)
    journal.note_error(RetriableError("broker 3 is away"))
    journal.delivered(Stored(0, kept))
    journal.delivered(Stored(1, lost))
    journal.close()
    account = read(tmp_path / "s-0.jsonl")
    assert (first, second, third, fourth) == (0, 0, 0, 1)
    assert [one.count(Outcome.UNKNOWN) for one in [account.history]] == [2]
    assert (account.unknown, account.refused) == (2, 1)
    assert account.errors == {"RetriableError: broker # is away": 1}
    # What was under way when the answer was lost may come later.
    assert broken(account, [Stored(0, kept), Stored(1, lost)]) == []


def test_journal_that_was_cut_off_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "s-0.jsonl"
    right_run(path)
    whole = path.read_text()
    path.write_text(whole[: whole.rindex('"acked"')])
    account = read(path)
    assert len(account.acks) == MESSAGES - 1
    assert account.unknown == 1


def test_verdict_names_the_partition_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "s-0.jsonl"
    log = right_run(path)
    verdict = Verdict()
    verdict.take("s/0", read(path), log)
    verdict.take("s/1", read(path), log[:-1])
    assert verdict.counts == {
        "acked": 12,
        "refused": 0,
        "unknown": 0,
        "delivered": 12,
        "stored": 11,
    }
    assert [line.split(":")[:2] for line in verdict.violations] == [
        ["s/1", " acked"],
        ["s/1", " readers"],
    ]


def test_gap_counts_whole_wherever_it_touches_the_interval() -> None:
    acks = [1.0, 2.0, 5.0, 6.0, 9.0]
    assert longest_gap(acks, 3.0, 4.0) == 3.0
    assert longest_gap(acks, 2.5, 5.5) == 3.0
    assert longest_gap(acks, 5.1, 5.9) == 1.0
    assert longest_gap(acks, 0.0, 20.0) == 11.0
    assert longest_gap(acks, 9.0, 9.0) == 3.0
    assert longest_gap([], 1.0, 4.0) == 3.0
    assert longest_gap([5.0], 1.0, 4.0) == 4.0


def test_figures_over_gaps() -> None:
    assert figures([1.0, 2.5, 1.0, 2.5]) == (4, 1.75, 2.5, 2.5)
    assert figures([]) == (0, 0.0, 0.0, 0.0)
