"""The reference of the data source says what its tables of options and columns say."""

import ast
import json
import re
import shlex

import pytest

from liftbridge_client.cli import exits
from liftbridge_testkit.pages import commands, commands_of, sections, words_of
from liftbridge_testkit.repository import ROOT
from pyspark_liftbridge.cli import given
from pyspark_liftbridge.cli.failures import MISSING
from pyspark_liftbridge.cli.query import WindowRow
from pyspark_liftbridge.plan import offsets
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


@pytest.mark.shows("reference/spark.md", "Offsets")
def test_reference_shows_offsets_as_they_are_kept(shown):
    (block,) = shown.take("Offsets")
    kept = json.loads(block.text)
    assert offsets.parse(kept).as_json() == kept


@pytest.mark.shows("how-to/use-spark-features.md", "")
def test_packages_to_install_are_those_of_the_tests(shown):
    (line,) = commands_of(shown, "")
    program, verb, *packages = shlex.split(line)
    assert (program, verb) == ("pip", "install")
    tested = (ROOT / "requirements" / "spark.in").read_text(encoding="utf-8").splitlines()
    assert packages != []
    for package in packages:
        assert any(line.startswith(package) for line in tested), package


def first_cells(page, heading):
    """Texts between backticks in the first cells of the table that begins so, and all else."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (body,) = re.findall(
        rf"^\| {heading} \|[^\n]*\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", text, re.MULTILINE
    )
    return [line.split("|")[1].strip() for line in body.splitlines()]


def test_exit_codes_of_the_reference_are_those_of_commands():
    known = {value for name, value in vars(exits).items() if name.isupper() and type(value) is int}
    documented = [int(cell) for cell in first_cells("reference/command.md", "Exit code")]
    assert documented == sorted(known | {MISSING, given.BEATEN})


def test_columns_of_measurements_are_those_of_the_how_to():
    cells = first_cells("how-to/query-streams.md", "Column")
    assert [name for cell in cells for name in re.findall("`(.*?)`", cell)] == [*WindowRow._fields]


def audit_texts():
    """Patterns of what an audit says of a difference: texts it assigns, and those of `_row`."""
    path = ROOT / "spark" / "src" / "pyspark_liftbridge" / "jobs" / "audit.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="text")], value=ast.JoinedStr() as found):
                yield pattern_of(found)
            case ast.Call(
                func=ast.Attribute(attr="_row" | "_note"),
                args=[_, _, ast.JoinedStr() | ast.Constant() as found],
            ):
                yield pattern_of(found)
            case _:
                pass


def pattern_of(found):
    parts = found.values if isinstance(found, ast.JoinedStr) else [found]
    return "".join(re.escape(one.value) if isinstance(one, ast.Constant) else ".+" for one in parts)


def test_texts_of_an_audit_are_those_of_the_how_to():
    cells = first_cells("how-to/replay-and-audit-streams.md", "Text")
    texts = [text for cell in cells for text in re.findall("`(.*?)`", cell)]
    patterns = list(audit_texts())
    assert len(patterns) > 5
    unknown = [text for text in texts if not any(re.fullmatch(one, text) for one in patterns)]
    untold = [one for one in patterns if not any(re.fullmatch(one, text) for text in texts)]
    assert (unknown, untold) == ([], [])


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
