"""Modules that need Spark, with it."""

from liftbridge_testkit.lone_imports import lone_imports


def test_each_module_can_be_imported_first():
    assert set(lone_imports("pyspark_liftbridge").values()) == {""}
