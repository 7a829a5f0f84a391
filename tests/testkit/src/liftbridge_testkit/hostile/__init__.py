"""Attacks of clients on a running cluster under load, and whether anybody else felt them."""
