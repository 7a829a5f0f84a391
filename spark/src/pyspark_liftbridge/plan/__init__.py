"""Plans of reads and archives: pure functions, without Spark, network or clock."""
