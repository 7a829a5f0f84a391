"""The data source that Spark loads, in many processes: heavy parts are imported when used."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_liftbridge.address import whole_address
from pyspark_liftbridge.plan.options import (
    OptionError,
    SinkOptions,
    SourceOptions,
    read_shape,
    read_sink,
    read_source,
)
from pyspark_liftbridge.plan.sinking import check_columns


class LiftbridgeSource(DataSource):
    """Liftbridge streams as a Spark data source."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "liftbridge"

    def schema(self) -> str:
        """Return the columns as DDL, as chosen by options.

        Raises:
            OptionError: One of these options is wrong.
        """
        from pyspark_liftbridge.source.schema import layout_of  # noqa: PLC0415 - heavy

        return layout_of(read_shape(self.options)).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of a batch.

        Raises:
            OptionError: An option is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.batch import BatchReader, PushdownReader  # noqa: PLC0415 - heavy

        del schema
        options = _source(self.options, is_stream=False)
        return (PushdownReader if options.has_pushdown else BatchReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Create the reader of a stream.

        Raises:
            OptionError: An option is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.stream import StreamReader  # noqa: PLC0415 - heavy

        del schema
        return StreamReader(_source(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of a frame.

        Raises:
            OptionError: An option or a column is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.sink import BatchWriter  # noqa: PLC0415 - heavy

        return BatchWriter(_sink(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Create the writer of a streaming frame.

        Raises:
            OptionError: An option or a column is unknown, missing or wrong.
        """
        from pyspark_liftbridge.source.sink import StreamWriter  # noqa: PLC0415 - heavy

        return StreamWriter(_sink(self.options, schema, overwrite=overwrite))


def _source(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Check the options of a source and prepare them for its tasks."""
    options = read_source(given, is_stream=is_stream)
    place = options.archive
    if place is None:
        return options
    return replace(options, archive=place._replace(root=whole_address(place.root)))


def _sink(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Check the options of a sink; create its stream if it does not exist."""
    from pyspark_liftbridge.source import cluster, sink  # noqa: PLC0415 - heavy

    options = read_sink(given)
    if overwrite:
        raise OptionError("a stream cannot be overwritten: use mode append, or output mode append")
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
    if options.stream:
        sink.prepare(cluster.client_of(options.connection, sink.RETRY_NS), options.stream, options)
    return options
