"""The page about larger clusters shows what the cost model computes."""

import re

import pytest

from liftbridge_testkit import scale_model
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs" / "explanation" / "scale.md"


@pytest.mark.parametrize(
    ("mark", "computed"),
    [("at rest", scale_model.rest_table), ("partitions", scale_model.partitions_table)],
)
def test_page_shows_what_the_model_computes(mark, computed, rewrite):
    part = re.compile(rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- end of {mark} -->)", re.DOTALL)
    before = PAGE.read_text(encoding="utf-8")
    text = f"\n{computed()}\n\n"
    after, count = part.subn(lambda match: match[1] + text + match[2], before)
    assert count == 1
    if rewrite:
        PAGE.write_text(after, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == after
