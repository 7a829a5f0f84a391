"""Liftbridge streams in Spark, which finds data sources in modules named `pyspark_...`."""
