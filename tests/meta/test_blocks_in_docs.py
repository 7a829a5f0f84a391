"""What pages about Spark and for newcomers show is run: each block by a test, or it says why not.

A test says by its mark `shows` what it runs; its fixture `shown` sees to it that it takes all that.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from liftbridge_testkit.pages import Block, is_run, sections
from liftbridge_testkit.repository import ROOT, python_files

DOCS = ROOT / "docs"
FOR_NEWCOMERS = (
    "tutorials/first-stream.md",
    "tutorials/survive-a-crash.md",
    "how-to/use-the-command.md",
    "how-to/check-a-data-directory.md",
)
ELSEWHERE = {
    "tutorials/kubernetes.md": "typed on a cluster of Kubernetes by tests/e2e/test_tutorial.py",
    "how-to/control-access.md": "tried by tests/integration/test_access_control.py",
    "how-to/build-images.md": "builds images, which takes longer than all tests of this kind",
    "how-to/follow-what-changes.md": "needs streams of the reader that changed",
    "how-to/encrypt-streams.md": "run by tests/integration/test_encrypted_broker.py",
    "how-to/give-a-cluster-a-secret.md": "run by tests/integration/cluster/test_cluster_keys.py",
    "how-to/install-the-operator.md": "needs a cluster of Kubernetes",
    "how-to/keep-streams-on-kubernetes.md": "needs a cluster of Kubernetes",
    "how-to/kubernetes-without-docker.md": "makes a cluster of Kubernetes",
    "how-to/limit-clients.md": "tried by tests/integration/client/test_command_contract.py",
    "how-to/measure.md": "measures for minutes to hours",
    "how-to/migrate-a-casbin-policy.md": "tried by tests/unit/access/test_casbin.py",
    "how-to/operate-a-cluster.md": "names brokers, directories and tokens of the reader",
    "how-to/read-in-groups.md": "tried by tests/integration/memory/test_consumers_in_memory.py",
    "how-to/run-a-broker.md": "names machines of the reader",
    "how-to/run-a-cluster.md": "names machines of the reader",
    "how-to/identify-clients.md": "tried by tests/integration/client/test_client_identity.py",
    "how-to/use-tokens-of-kubernetes.md": "needs a cluster; the token is that of "
    "tests/unit/access/test_proofs.py",
    "how-to/secure-connections.md": "tried by tests/integration/nats/test_subject_rights.py",
    "how-to/serve-clients-outside-kubernetes.md": "needs a cluster of Kubernetes",
    "how-to/test-your-application.md": "run by tests/integration/memory/test_pytest_fixture.py",
    "how-to/upgrade-the-operator.md": "needs a cluster of Kubernetes",
    "how-to/use-existing-clients.md": "run by tests/integration/test_examples.py",
    "how-to/use-the-client.md": "shows parts of programs of the reader",
}
"""Tutorials and how-to pages that no mark covers, and why. What their commands and files say is
known to the programs all the same: see `test_examples_in_docs`."""

SHOWN_OF_SPARK = ("liftbridge spark ", 'format("liftbridge")', "kind: StreamPipeline")


class Claim(NamedTuple):
    """What one mark of a test says that the test runs."""

    page: str
    titles: tuple[str, ...]
    languages: tuple[str, ...]

    def holds_for(self, page: str, title: str, block: Block) -> bool:
        return (
            page == self.page
            and (not self.titles or title in self.titles)
            and is_run(block, self.languages)
        )


def claims_of(tree: ast.AST) -> Iterator[Claim]:
    """Marks of tests that use the fixture."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            continue
        if "shown" not in {one.arg for one in node.args.args}:
            continue
        for call in (one for mark in node.decorator_list for one in ast.walk(mark)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.shows":
                page, *titles = (ast.literal_eval(one) for one in call.args)
                named = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
                yield Claim(page, tuple(titles), tuple(named.get("languages", ())))


def claims() -> list[Claim]:
    return [
        claim
        for path in python_files()
        if ROOT / "tests" in path.parents and path.name.startswith("test_")
        for claim in claims_of(ast.parse(path.read_text(encoding="utf-8")))
    ]


def is_of_spark(page: str) -> bool:
    return "spark" in page or any(
        word in block.text
        for blocks in sections(DOCS / page).values()
        for block in blocks
        for word in SHOWN_OF_SPARK
    )


def shown() -> list[tuple[str, str, Block]]:
    """Blocks of these pages, with their page and section; decisions are no instructions."""
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    return [
        (page, title, block)
        for page in pages
        if page in FOR_NEWCOMERS or (not page.startswith("adr/") and is_of_spark(page))
        for title, blocks in sections(DOCS / page).items()
        for block in blocks
    ]


def nobody_runs(blocks: list[tuple[str, str, Block]], known: list[Claim]) -> list[str]:
    """Blocks that no test runs and that do not say why."""
    return [
        f"{page}, {title!r}: {block.text.splitlines()[0]}"
        for page, title, block in blocks
        if is_run(block) and not any(one.holds_for(page, title, block) for one in known)
    ]


def test_every_block_of_these_pages_is_run_or_says_why_not():
    assert nobody_runs(shown(), claims()) == []


def test_every_page_that_tells_what_to_type_is_covered_or_says_why_not():
    pages = [
        path.relative_to(DOCS).as_posix()
        for folder in ("tutorials", "how-to")
        for path in (DOCS / folder).glob("*.md")
        if any(sections(path).values())
    ]
    covered = {page for page, *_ in shown()}
    assert sorted(ELSEWHERE) == sorted(page for page in pages if page not in covered)


def test_every_claim_is_of_a_block_that_is_there():
    for claim in claims():
        found = sections(DOCS / claim.page)
        assert [title for title in claim.titles if title not in found] == []
        assert any(is_run(one, claim.languages) for blocks in found.values() for one in blocks)


def test_every_fence_of_these_pages_is_that_of_a_block():
    for page in sorted({page for page, *_ in shown()}):
        blocks = [block for one, _, block in shown() if one == page]
        text = (DOCS / page).read_text(encoding="utf-8")
        fences = text.count("```") - 2 * text.count("```{literalinclude}")
        assert fences == 2 * len(blocks), page


PLANTED = """
@pytest.mark.shows("a.md", "One", languages=("console",))
def test_it(shown): ...
"""


@pytest.mark.parametrize(
    ("source", "block", "count"),
    [
        (PLANTED, Block("console", "ls\n"), 0),
        (PLANTED, Block("python", "print()\n"), 1),
        (PLANTED, Block("python", "print()\n", "it prints"), 0),
        (PLANTED.replace("One", "Two"), Block("console", "ls\n"), 1),
        (PLANTED.replace("(shown)", "()"), Block("console", "ls\n"), 1),
        (PLANTED.replace("test_it", "it"), Block("console", "ls\n"), 1),
    ],
)
def test_planted_block_that_nobody_runs_is_found(source, block, count):
    found = nobody_runs([("a.md", "One", block)], list(claims_of(ast.parse(source))))
    assert len(found) == count
