"""What brokers do for one record does not grow: counts of a real cluster below their ceilings."""

import pytest
import yaml

from liftbridge_testkit.counts.measuring import TITLES, Work, measure
from liftbridge_testkit.repository import ROOT

CEILINGS = yaml.safe_load((ROOT / "tests" / "bench" / "counts.yaml").read_text(encoding="utf-8"))
FIGURES = [
    (work, role, title)
    for work, roles in CEILINGS.items()
    for role, figures in roles.items()
    for title in figures
]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("counts"))


def test_all_works_and_roles_have_the_same_ceilings(counted):
    assert set(CEILINGS) == set(counted)
    titles = {tuple(figures) for roles in CEILINGS.values() for figures in roles.values()}
    assert len(titles) == 1
    assert set(titles.pop()) <= set(TITLES)
    assert {tuple(roles) for roles in CEILINGS.values()} == {Work._fields}


@pytest.mark.parametrize(("work", "role", "title"), FIGURES)
def test_figure_does_not_exceed_its_ceiling(counted, work, role, title):
    found = getattr(counted[work], role)[title]
    assert found <= CEILINGS[work][role][title], "tests/bench/counts.yaml"
