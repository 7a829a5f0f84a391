"""The benchmark behind `make bench-spark`: the cost of the data source and the jobs of Spark."""
