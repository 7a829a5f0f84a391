"""Liftbridge streams in Spark, which finds data sources in modules named `pyspark_...`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_liftbridge.source.data_source import LiftbridgeSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    """Import the data source when Spark looks for it: `plan` needs no Spark."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from pyspark_liftbridge.source.data_source import LiftbridgeSource  # noqa: PLC0415 - Spark is heavy

    return LiftbridgeSource
