"""A stream's records as Parquet files under a Delta log, exactly once; without Spark or a JVM."""
