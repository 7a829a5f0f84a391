"""What comments, docstrings and scripts cite exists: rules, scenarios, policies, pages, decisions.

The rules are in `docs/spec`. Public sources (KIP-101, RFC 9113, the Raft paper) are cited by their
own names; sections of anything else cannot be looked up by a reader of this repository.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from liftbridge_testkit.repository import GENERATED, ROOT, files, relative

DOCS = ROOT / "docs"
ROOTS = ("broker/", "client/", "operator/", "proto/", "spark/", "tests/")
SUFFIXES = {".proto", ".py", ".txt", ".yaml"}
PLANTED = {f"tests/meta/test_{name}.py" for name in ("architecture", "citations", "tree")}
"""Files with citations of what does not exist, on purpose."""

# `C5`, `L3.b`, `S143`; neither a part of a word, of a path or of an escape.
NUMBERED = re.compile(r"(?<![\w%\\./-])(R0|[CFILRS][1-9]\d{0,2})(?![\w%*-])")
NAMED = re.compile(r"\b(?:rule|defect) ([A-Z]\d*)\b")
POLICIES = re.compile(r"\bstorage\s+polic(?:y|ies)\s+(\d+(?:(?:,| and)\s+\d+)*)")
SECTION = re.compile(r'"([^"\n]+)" in (docs/[\w/-]+\.md)')
PAGE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md\b")
DECISION = re.compile(r"\bADR (\d+)\b")
SILENCED = re.compile(r"[#] noqa\b.*")
OUTSIDE = re.compile(
    r"\b(?:spec|specification|protocol|architecture) \d+(?:\.\d+)*\b"
    r"|\b(?:spec|replication|storage|liftbridge|testing|security)(?:\.md)? \d\.\d+\b"
    r"|\b(?:replication|architecture|storage|liftbridge|testing|security)\.md \d"
    r"|\b1\.15\b|\bdoc \d+\.\d"
)


@cache
def headings(page: str) -> tuple[str, ...]:
    """Headings of a page of the documentation."""
    path = ROOT / page
    return tuple(re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE))


@cache
def anchors() -> frozenset[str]:
    """Names that the documentation explains: `L1`, `E`, `I5`, `S43`, `R7`, `policy 4`, `D14`."""
    told = [heading.removeprefix("Rule ") for heading in headings("docs/spec/replication.md")]
    numbered = (re.match(r"([CFILR]\d+|E) ", heading) for heading in told)
    policies = re.findall(r"Storage (policy \d+):", "\n".join(headings("docs/spec/storage.md")))
    stories = (DOCS / "spec" / "scenarios.md").read_text(encoding="utf-8")
    defects = (DOCS / "reference" / "compatibility.md").read_text(encoding="utf-8")
    return frozenset(
        {match[1] for match in numbered if match}
        | set(policies)
        | set(re.findall(r'<a id="[rs]\d+"></a>([RS]\d+) \|', stories))
        | set(re.findall(r"\b(D\d+)\b", defects))
    )


def faults(text: str) -> Iterator[str]:
    """Citations in a text that lead nowhere."""
    text = SILENCED.sub("", text)
    cited = NUMBERED.findall(text) + NAMED.findall(text)
    for numbers in POLICIES.findall(text):
        cited += [f"policy {number}" for number in re.findall(r"\d+", numbers)]
    yield from sorted({name for name in cited if name not in anchors()})
    for page in PAGE.findall(text):
        if not (ROOT / page).is_file():
            yield page
    for title, page in SECTION.findall(text):
        if (ROOT / page).is_file() and title not in headings(page):
            yield f"{title} in {page}"
    for number in DECISION.findall(text):
        if not list((DOCS / "adr").glob(f"{int(number):04}-*.md")):
            yield f"ADR {number}"
    yield from OUTSIDE.findall(text)


def cited_files() -> Iterator[Path]:
    """Sources, tests, scripts and lists of guards, without what is generated."""
    for path in files():
        name = relative(path)
        is_ours = name.startswith(ROOTS) and GENERATED not in path.parents
        if is_ours and path.suffix in SUFFIXES and name not in PLANTED:
            yield path


def test_every_citation_leads_to_a_rule_a_page_or_a_decision():
    wrong = [
        f"{relative(path)}: {fault}"
        for path in cited_files()
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_every_script_is_listed_and_every_listed_one_exists():
    page = (DOCS / "spec" / "scenarios.md").read_text(encoding="utf-8")
    listed = {
        (int(number), script)
        for number, row in re.findall(r"</a>S(\d+) \|([^\n]*)\|$", page, re.MULTILINE)
        for script in re.findall(r"`(\w+)`", row)
    }
    scripts = {path.stem for path in (ROOT / "tests" / "scenarios").glob("s[0-9]*.txt")}
    assert listed == {(int(script[1:4]), script) for script in scripts}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Advance (L4), as I3 and S33 need; guard C5.9_session, rule E, rule R0.", []),
        ("KIP-101, RFC 9113 6.5, Raft 5.4.2, S3 lists, %C3%BC, a.C99, L99x  # noqa: S603 - x", []),
        ("(L9)", ["L9"]),
        ("C26 and I29, rule Z, defect D14, defect D99", ["C26", "D99", "I29", "Z"]),
        ("(S117) R24", ["R24", "S117"]),
        ("storage policies 1, 7 and 14", ["policy 14"]),
        ("See docs/spec/replication.md and docs/spec/none.md.", ["docs/spec/none.md"]),
        ('"State" in docs/spec/replication.md', []),
        ('"Fate" in docs/spec/replication.md', ["Fate in docs/spec/replication.md"]),
        ("ADR 3, ADR 0003, ADR 999", ["ADR 999"]),
        ("as in spec 1.8", ["spec 1.8"]),
        ("replication protocol 1.15", ["protocol 1.15"]),
        ("(architecture 8)", ["architecture 8"]),
        ("storage 4.4, replication.md 1.2", ["storage 4.4", "replication.md 1.2"]),
    ],
)
def test_planted_citation_is_found(text, found):
    assert list(faults(text)) == found
