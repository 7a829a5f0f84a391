"""What the benchmark concludes from its figures: ratios, targets, the rate without loss."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from liftbridge_testkit.bench import report
from liftbridge_testkit.bench.beside import BOUNDS, BesideResult
from liftbridge_testkit.bench.loadgen import Measurement, parse
from liftbridge_testkit.bench.rows import ROWS, Row, Samples, outcome, works_for
from liftbridge_testkit.bench.systems import Sample, Sizes, measured, search, witnessed

RATE = Row("r", "a rate", "publish", "publish", "rate", 0.5)
CPU = Row("c", "a cost", "publish", "publish", "cpu_us", 2.0)


def samples(ours: list[float], theirs: list[float]) -> Samples:
    return {
        ("liftbridge", "publish"): [Sample(value, value / 10) for value in ours],
        ("jetstream", "publish"): [Sample(value, value / 10) for value in theirs],
    }


def broker_that_stores(limit: float) -> tuple[Callable[[float], Sample], list[float]]:
    """A broker that loses messages above a rate; the publisher can reach 1,000 a second."""
    asked: list[float] = []

    def attempt(rate: float) -> Sample:
        asked.append(rate)
        offered = rate or 1_000.0
        lost = 0 if offered <= limit else 10
        return Sample(min(offered, limit), 1.0, {"lost": lost, "offered_rate": offered})

    return attempt, asked


def test_ratio_is_that_of_the_medians() -> None:
    found = outcome(RATE, samples([10, 60, 50], [100, 100, 90]))
    assert found is not None
    assert found.reference == 100
    assert found.ratios == {"liftbridge": 0.5}
    assert found.spread == {"liftbridge": (0.1, 0.6)}


def test_row_without_figures_is_left_out() -> None:
    assert outcome(RATE, {("jetstream", "publish"): [Sample(1, 1)]}) is None
    assert outcome(RATE, {("liftbridge", "publish"): [Sample(1, 1)]}) is None


@pytest.mark.parametrize(
    ("row", "ratio", "is_met"),
    [(RATE, 0.5, True), (RATE, 0.49, False), (CPU, 2.0, True), (CPU, 2.01, False)],
)
def test_target_is_met_at_its_limit(row: Row, ratio: float, is_met: bool) -> None:
    assert row.is_met(ratio) is is_met


def test_search_takes_the_first_run_when_it_loses_nothing() -> None:
    attempt, asked = broker_that_stores(5_000)
    assert search(attempt, 6).rate == 1_000
    assert asked == [0.0]


def test_search_closes_in_on_the_highest_rate_without_loss() -> None:
    attempt, asked = broker_that_stores(700)
    best = search(attempt, 8)
    assert 690 <= best.rate <= 700
    assert not best.value("lost")
    assert len(asked) == 9


def test_search_says_when_every_rate_loses() -> None:
    attempt, _ = broker_that_stores(0)
    best = search(attempt, 3)
    assert best.rate == 0
    assert best.notes == ("every rate tried lost messages",)


def test_cpu_is_shared_among_all_messages_with_the_warm_up() -> None:
    readings = iter([1.0, 3.0])
    run = Measurement(900, 1.0, 900.0, {"warm_up": 100})
    assert measured(lambda: run, lambda: next(readings)).cpu_us == pytest.approx(2_000)


def test_subscriber_that_missed_something_is_noted() -> None:
    assert witnessed(Sample(1, 1), 10, 10).notes == ()
    assert "received 9 of 10" in witnessed(Sample(1, 1), 9, 10).notes[0]


@pytest.mark.parametrize("system", ["liftbridge", "jetstream"])
def test_fast_run_that_left_out_work_does_not_count(system: str) -> None:
    runs = samples([90], [100])
    assert (found := outcome(RATE, runs)) is not None
    assert found.verdict("liftbridge") == "yes"
    runs[system, "publish"] = [witnessed(runs[system, "publish"][0], 9, 10)]
    assert (found := outcome(RATE, runs)) is not None
    assert found.verdict("liftbridge") == "INCOMPLETE"


def test_rows_bring_the_works_they_build_on() -> None:
    rows = [row for row in ROWS if row.key in {"replay-singles", "replay"}]
    assert works_for(rows, "liftbridge") >= {"publish", "replay", "latency", "replay-singles"}
    assert works_for(rows, "jetstream") == {"publish", "replay"}


def test_keys_of_rows_are_unique() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_output_of_the_load_generator_is_read() -> None:
    found = parse(json.dumps({"count": 5, "seconds": 0.5, "rate": 10.0, "p50_us": 7, "x": "y"}))
    assert (found.count, found.rate, found.number("p50_us")) == (5, 10.0, 7.0)
    assert found.number("x") is None


def test_table_shows_ratio_target_and_verdict() -> None:
    text = report.comparison(
        {
            ("jetstream", "publish"): [Sample(100_000, 4.0)],
            ("liftbridge", "publish"): [Sample(40_000, 6.0)],
        }
    )
    rate, cpu = text.splitlines()[2:]
    assert rate.split("|")[1].strip() == "PublishAsync, 1,024 in flight"
    assert " 0.40 " in rate
    assert rate.endswith("NO |")
    assert " 1.50 " in cpu
    assert cpu.endswith("yes |")


def test_acks_beside_a_read_are_compared_with_those_alone() -> None:
    shown = report.bounds_table("acks", BesideResult(200.0, 380.0, 420.0), BOUNDS)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines()[2:]]
    assert [(cell[1], cell[2], cell[4]) for cell in cells] == [
        ("1.90", "<= 2", "yes"),
        ("2.10", "<= 2", "NO"),
    ]


def test_lines_of_a_table_have_one_width() -> None:
    text = report.table(["a", "b"], [["long name", "1"], ["x", "1,000"]])
    assert len({len(line) for line in text.splitlines()}) == 1


def test_tables_take_the_place_of_the_old_ones_in_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    found = samples([80_000.0], [100_000.0])
    result = report.document(found, Sizes(), 1, "a generator", None, None, None, None, (), 0.5)
    report.replace_marked(page, report.markdown(found, None, None, None, None, (), result))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert " 0.80 " in text
    assert "load average 0.5" in " ".join(text.split())


def test_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    with pytest.raises(ValueError, match="markers"):
        report.replace_marked(page, "tables")
    assert page.read_text() == "no markers\n"
