"""Counts what brokers do for one record: calls, messages, system calls; never times."""
