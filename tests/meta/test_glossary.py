"""The glossary: its terms are alive and in order, and no text uses a synonym that it rules out."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest

from liftbridge_testkit.repository import ROOT, files, relative

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PRODUCTS = ("broker/src/", "client/src/", "operator/src/", "spark/src/")
SHOWN = ("deploy/", "examples/", "helm/", "operator/src/", "proto/liftbridge/")
SHOWN_SUFFIXES = {".json", ".proto", ".tpl", ".txt", ".yaml"}

ROW = re.compile(
    r"^\| ([^|]+) \| ([^|]+) \| \[[^\]]+\]\(([^)#]+)[^)]*\) \| ([^|]+) \|$", re.MULTILINE
)
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"(`+)[^`]+\1")
# Between two words of a phrase that goes on in the next line of a source.
MARKS = re.compile(r"[#/\"']+")
COMMENT = re.compile(r"(?:^|\s)# (.*)")


class Entry(NamedTuple):
    """A row of the glossary."""

    term: str
    meaning: str
    page: str
    synonyms: tuple[str, ...]


class Text(NamedTuple):
    """A piece of text of a file, and the line where it begins."""

    name: str
    line: int
    text: str


class Words:
    """Finds the synonyms; a term that contains one ("high watermark") is the right word."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Prepare the search."""
        entries = tuple(entries)
        self._term_of = {word.casefold(): each.term for each in entries for word in each.synonyms}
        words = {*self._term_of, *(each.term for each in entries)}
        alternatives = "|".join(words_pattern(w) for w in sorted(words, key=lambda w: (-len(w), w)))
        # Letters joined by a hyphen, an underscore, a dot or a slash are a name, not a word.
        self._pattern = re.compile(rf"(?<![\w./-])({alternatives})s?(?![\w/-]|\.\w)", re.IGNORECASE)

    def faults(self, text: Text) -> Iterator[str]:
        """Each use of a synonym: where, and the term to write."""
        prose = CODE_SPAN.sub(blank, FENCE.sub(blank, text.text))
        for match in self._pattern.finditer(prose):
            word = " ".join(match[1].casefold().split())
            if word in self._term_of:
                line = text.line + prose.count("\n", 0, match.start())
                yield f"{text.name}:{line}: {word!r}: write {self._term_of[word]!r}"


def words_pattern(words: str) -> str:
    """Pattern of words that may be on two lines."""
    return r"\s+".join(map(re.escape, words.split()))


def blank(match: re.Match[str]) -> str:
    """A match without its characters, with its lines."""
    return " " + "\n" * match[0].count("\n")


def parsed(page: str) -> list[Entry]:
    """Rows of the table of the glossary."""
    return [
        Entry(term, meaning, link, tuple(each.strip() for each in synonyms.split(",")))
        for term, meaning, link, synonyms in ROW.findall(page)
    ]


def texts_of_python(name: str, source: str) -> Iterator[Text]:
    """Comments, docstrings and strings of several words; other strings are names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield Text(name, node.lineno, node.value)
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        comment = COMMENT.search(line)
        if comment:
            block.append(comment[1])
        elif block:
            yield Text(name, number - len(block), "\n".join(block))
            block = []


def texts(entries: Iterable[Entry]) -> Iterator[Text]:
    """Every page, every text that the product shows, and the words in its source.

    Files in which no synonym is anywhere are left out: most need not be parsed.
    """
    synonyms = [" ".join(word.casefold().split()) for each in entries for word in each.synonyms]
    for path in files():
        name = relative(path)
        is_page = path.suffix == ".md" and path != GLOSSARY
        is_shown = name.startswith(SHOWN) and path.suffix in SHOWN_SUFFIXES
        is_source = name.startswith(PRODUCTS) and path.suffix == ".py"
        if not (is_page or is_shown or is_source):
            continue
        text = path.read_text(encoding="utf-8")
        plain = " ".join(MARKS.sub(" ", text.casefold()).split())
        if not any(synonym in plain for synonym in synonyms):
            continue
        if is_source:
            yield from texts_of_python(name, text)
        else:
            yield Text(name, 1, text.replace("//", "  "))


def is_used(term: str, text: str) -> bool:
    """Whether a text has the term, in the singular or the plural, or as part of a name."""
    words = r"[\s_-]+".join(map(re.escape, term.split()))
    return re.search(rf"(?<![a-z]){words}(?:e?s)?(?![a-z])", text, re.IGNORECASE) is not None


def dead_terms(entries: Iterable[Entry]) -> list[str]:
    """Terms that the page that explains them does not use."""
    return [
        f"{each.term}: not on {each.page}"
        for each in entries
        if not is_used(each.term, (GLOSSARY.parent / each.page).read_text(encoding="utf-8"))
    ]


def out_of_order(words: list[str]) -> list[str]:
    """Words that are not behind the word before them, or there twice."""
    return [later for earlier, later in pairwise(map(str.casefold, words)) if later <= earlier]


@cache
def glossary() -> tuple[Entry, ...]:
    return tuple(parsed(GLOSSARY.read_text(encoding="utf-8")))


@cache
def uses() -> tuple[str, ...]:
    words = Words(glossary())
    return tuple(fault for text in texts(glossary()) for fault in words.faults(text))


def test_every_row_of_the_glossary_is_read_and_has_one_to_three_sentences():
    page = GLOSSARY.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(glossary()) == len(lines) - 2  # the heading, and the line below it
    long_or_open = [
        each.term
        for each in glossary()
        if not re.fullmatch(r"(?:.+?[.](?: |$)){1,3}", each.meaning)
    ]
    assert long_or_open == []


def test_no_text_uses_a_synonym_of_a_term():
    assert list(uses()) == []


def test_every_term_is_used_on_the_page_that_explains_it():
    assert dead_terms(glossary()) == []


def test_terms_are_sorted_and_unique():
    assert out_of_order([each.term for each in glossary()]) == []


def test_synonyms_are_unique_and_no_term_is_one():
    synonyms = sorted(word.casefold() for each in glossary() for word in each.synonyms)
    assert out_of_order(synonyms) == []
    assert {each.term.casefold() for each in glossary()} & set(synonyms) == set()


PLANTED = (
    Entry("high watermark", "", "", ("watermark", "high water mark")),
    Entry("pending ack", "", "", ("owed", "outstanding ack")),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The watermark rises.", ["page.md:1: 'watermark': write 'high watermark'"]),
        (
            "Acks are\nOwed, and outstanding\nacks too.",
            [
                "page.md:2: 'owed': write 'pending ack'",
                "page.md:2: 'outstanding ack': write 'pending ack'",
            ],
        ),
        ("The high\nwatermark rises; high watermarks rise.", []),
        ("`watermark`, `owed`, set.watermark.x, watermark_ms, --owed, owed/x, followed", []),
        ("```\nwatermark\n```\nowed", ["page.md:4: 'owed': write 'pending ack'"]),
    ],
)
def test_planted_synonym_is_found_outside_names(text, found):
    assert list(Words(PLANTED).faults(Text("page.md", 1, text))) == found


def test_planted_synonym_is_found_in_comments_docstrings_and_messages_of_source():
    source = '''
def owed(watermark):
    """Move the watermark."""
    # An ack that is
    # owed.
    raise ValueError(f"{watermark}: outstanding " f"ack", "owed")
'''
    faults = [
        fault for text in texts_of_python("a.py", source) for fault in Words(PLANTED).faults(text)
    ]
    assert sorted(faults) == [
        "a.py:3: 'watermark': write 'high watermark'",
        "a.py:5: 'owed': write 'pending ack'",
        "a.py:6: 'outstanding ack': write 'pending ack'",
    ]


def test_planted_term_that_nobody_uses_is_found():
    planted = [Entry(term, "", "logs.md", ()) for term in ("event", "no such term")]
    assert dead_terms(planted) == ["no such term: not on logs.md"]


def test_planted_disorder_is_found():
    assert out_of_order(["ack", "Broker", "cursor"]) == []
    assert out_of_order(["ack", "cursor", "broker", "broker"]) == ["broker", "broker"]
