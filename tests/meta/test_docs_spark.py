"""The reference of the data source says what its tables of options and columns say."""

import re
import shlex

import pytest

from liftbridge_testkit.pages import commands, sections, words_of
from liftbridge_testkit.repository import ROOT
from pyspark_liftbridge.plan.table import OPTIONS
from pyspark_liftbridge.source.schema import COLUMNS, KAFKA_COLUMNS

REFERENCE = ROOT / "docs" / "reference" / "spark.md"
OPTION_HEADING = ("Option", "Value", "Default", "For", "Meaning")
COLUMN_HEADING = ("Column", "Type", "Null", "Meaning")


def table(*lines: tuple[str, ...]) -> str:
    heading, *body = lines
    shown = [heading, ("---",) * len(heading), *body]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in shown) + "\n"


def options_text() -> str:
    return table(
        OPTION_HEADING,
        *(
            (
                f"`{one.name}`",
                one.rule,
                "none" if one.default is None else f"`{one.default}`",
                ", ".join(sorted(one.uses)),
                one.meaning,
            )
            for one in OPTIONS
        ),
    )


def columns_text(columns) -> str:
    return table(
        COLUMN_HEADING,
        *(
            (f"`{one.name}`", f"`{one.ddl}`", "yes" if one.is_nullable else "no", one.meaning)
            for one in columns
        ),
    )


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("options", options_text()),
        ("columns", columns_text(COLUMNS)),
        ("columns of kafka", columns_text(KAFKA_COLUMNS)),
    ],
)
def test_reference_repeats_the_table_of_the_code(mark, text, rewrite):
    part = re.compile(rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- end of {mark} -->)", re.DOTALL)
    before = REFERENCE.read_text(encoding="utf-8")
    after, count = part.subn(lambda match: match[1] + text + match[2], before)
    assert count == 1
    if rewrite:
        REFERENCE.write_text(after, encoding="utf-8")
    assert REFERENCE.read_text(encoding="utf-8") == after


def test_no_cell_ends_before_its_time():
    assert [one.name for one in OPTIONS if "|" in one.rule + one.meaning] == []
    assert [one.name for one in COLUMNS if "|" in one.ddl + one.meaning] == []


def lines_for_spark():
    """Command lines of jobs in all pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for blocks in sections(page).values():
            for block in blocks:
                if block.language in ("console", "sh", "bash"):
                    lines = commands(block)
                    yield from (one for one in lines if one.startswith("liftbridge spark "))


def test_commands_reach_the_program_as_pages_show_them():
    lines = list(lines_for_spark())
    assert len(lines) > 10
    for line in lines:
        assert words_of(line) == shlex.split(line)


@pytest.mark.parametrize("line", ['liftbridge "a `b.c` d"', "liftbridge a | b", "liftbridge 'a"])
def test_command_that_a_shell_would_take_apart_is_found(line):
    with pytest.raises(ValueError, match="line 1"):
        words_of(line)
