"""Decides what is read, in which pieces: pure, without Spark, network or clock."""
