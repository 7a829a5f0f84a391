"""The entry for Spark, which asks for it in many processes: heavy parts come when used."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_liftbridge.plan.options import OptionError, SourceOptions, read_shape, read_source

NOT_YET: Final = (
    "archive",
    "cursorId",
    "fetch.encoding",
    "fetch.maxBytes",
    "fetch.retries",
    "pushdown",
    "resume",
)
"""Options with a place in the table that nothing reads yet."""


class LiftbridgeSource(DataSource):
    """Streams of Liftbridge."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "liftbridge"

    def schema(self) -> str:
        """Columns, by the options that choose them.

        Raises:
            OptionError: One of these options is wrong.
        """
        from pyspark_liftbridge.source.schema import layout_of  # noqa: PLC0415 - heavy

        return layout_of(read_shape(self.options)).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch.

        Raises:
            OptionError: An option is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.batch import BatchReader  # noqa: PLC0415 - heavy

        del schema
        return BatchReader(_read(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream.

        Raises:
            OptionError: An option is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.stream import StreamReader  # noqa: PLC0415 - heavy

        del schema
        return StreamReader(_read(self.options, is_stream=True))


def _read(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    options = read_source(given, is_stream=is_stream)
    for name in NOT_YET:
        if name in given:
            raise OptionError(f"option '{name}': this version does not support it yet")
    return options
