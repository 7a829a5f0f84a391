"""The benchmark behind `make bench-spark`: what the data source and the jobs of Spark cost."""
