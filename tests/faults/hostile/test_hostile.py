"""Attacks of clients on a running cluster under load are made by `make hostile`."""

from liftbridge_testkit.hostile.attacks import attacks, short


def test_short_form_names_attacks_that_exist() -> None:
    assert set(short()) <= {one.name for one in attacks()}
